"""What the kernels cost: processor time of Gram matrices and of training, for the three networks."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import numpy as np
import torch

from tangentlab import NTK
from tangentlab.engine.memory import require_memory
from tangentlab.engine.progress_bar import progress_told_to
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import batched, for_trial
from tangentlab.experiments.linearized._recipe import NAMES, PLACE, build, logistic_loss
from tangentlab.figures.style import INK, PALETTE, band, label, panels
from tangentlab.linearized import linearize

PUBLISHED = {"mlp": 180.0, "lenet": 1200.0, "resnet18": 115_200.0}
"""Seconds of the Gram matrix of 60,000 images on one to four GPUs."""
STEPS = 100 * (50_000 // 128)
PUBLISHED_STEPS = {"mlp": 300 / STEPS, "resnet18": 2400 / STEPS}
"""Seconds of a training step on one GPU, from trainings of 5 to 40 minutes."""
LARGE_IMAGES, LARGE_NETS = 30_000, ("mlp", "lenet")
LARGE_BYTES = 4 * LARGE_IMAGES**2
"""The large run: Gram matrices of 3.6 GB in float32."""


@experiment
class KernelRuntimes(Experiment):
    """Seconds per Gram matrix over the number of images, and per training step."""

    name = "kernel-runtimes"
    title = "What a Gram matrix costs"
    question = (
        "The Gram matrix of 60,000 images took the authors 3 minutes for an MLP, 20 for LeNet and 32 hours for ResNet18, on "
        "GPUs. How does it grow here, and what does a step of a linearized network cost?\n\nProcessor time on one thread, on "
        "noise of the shape of CIFAR-10: no number depends on the pictures. --set large=true adds 30,000 images for the MLP "
        "and LeNet, with Gram matrices of 3.6 GB."
    )
    chapter = Chapter.LINEARIZED
    place = f"{PLACE}, A and B"
    claims = claims_of("kernel-runtimes")
    scales = {
        "smoke": {
            "sizes": (40, 80),
            "more_sizes": (120,),
            "base": 4,
            "pixels": 16,
            "resnet_pixels": 16,
            "batch": 20,
            "repeats": 1,
        },
        "paper": {"sizes": (1_000, 4_000, 12_000), "more_sizes": (), "base": 64, "resnet_pixels": 32},
    }
    minutes = {"smoke": 0.2, "desk": 11, "paper": 300}
    notes = {
        "desk": "up to 12,000 images; for ResNet18, with 16 channels in its first stage at 16 x 16 pixels, up to 2,000."
    }

    nets: tuple[str, ...] = ("mlp", "lenet", "resnet18")
    sizes: tuple[int, ...] = (500, 1_000, 2_000)
    more_sizes: tuple[int, ...] = (4_000, 12_000)
    pixels: int = 32
    resnet_pixels: int = 16
    base: int = 16
    batch: int = 128
    repeats: int = 2
    large: bool = False

    def sizes_of(self, kind: str) -> tuple[int, ...]:
        """Numbers of images, the large run left out."""
        return self.sizes + (self.more_sizes if kind in LARGE_NETS else ())

    def cost(self) -> Cost:
        """One step per Gram matrix; while layers are added up there are two copies of it."""
        large, memory = (len(LARGE_NETS), 2 * LARGE_BYTES / 1e6) if self.large else (0, 0.0)
        return Cost(sum(len(self.sizes_of(kind)) for kind in self.nets) + large, 8.0, 3000 + memory)

    def run(self, lab: Lab) -> None:
        """Gram matrices of every network and size, then training steps."""
        if self.large and lab.max_steps is None:
            what = f"The Gram matrix of {LARGE_IMAGES:,} images"
            require_memory(LARGE_BYTES, what, "Close other programs, or leave the large run out: --set large=false.")
        seconds: dict[str, list[float]] = {kind: [] for kind in self.nets}
        with torch.random.fork_rng(devices=[]):
            for kind in self.nets:
                for size in lab.loop(self.sizes_of(kind), f"Gram matrices, {NAMES[kind]}"):
                    seconds[kind].append(self._logged(lab, kind, size, self.repeats if size in self.sizes else 1))
            for kind in lab.loop(LARGE_NETS if self.large else (), "large Gram matrices"):
                self._logged(lab, kind, LARGE_IMAGES, 1)
        steps = [self._steps(lab, kind) for kind in self.nets]
        if any(len(times) < len(self.sizes_of(kind)) for kind, times in seconds.items()):
            for claim in self.claims:
                lab.not_tested(claim.id, "not all sizes were measured")
            return
        last = [times[len(self.sizes) - 1] for times in seconds.values()]
        growth = []
        for kind, times in seconds.items():
            before, after = self.sizes_of(kind)[-2:]
            growth.append(float(np.log(times[-1] / times[-2]) / np.log(after / before)))
        lab.measure("S3-E12-order", min(b / a for a, b in zip(last, last[1:], strict=False)))
        lab.measure("S3-E12-growth", max(growth))
        lab.measure("S3-E12-training", min(b / a for a, b in zip(steps, steps[1:], strict=False)))

    def _image(self, kind: str) -> tuple[int, int, int]:
        side = self.resnet_pixels if kind == "resnet18" else self.pixels
        return 3, side, side

    def _logged(self, lab: Lab, kind: str, images: int, repeats: int) -> float:
        """Processor seconds of one kernel, written down with the published ones."""
        size = for_trial(lab, images)
        seconds = lab.stage(f"gram {kind} {size}", lambda: self._gram(lab, kind, size, repeats))
        lab.log("gram", net=kind, images=size, seconds=seconds, published=PUBLISHED[kind])
        return seconds

    def _gram(self, lab: Lab, kind: str, size: int, repeats: int) -> float:
        """Processor seconds of one kernel, the best of a few; batches are told to the progress bar."""
        with lab.seeded("model", kind):
            model = build(kind, self._image(kind), base=self.base).eval()
        inputs = torch.randn(size, *self._image(kind), generator=lab.generator("images", size))
        times = []
        for _ in range(repeats):
            start = time.process_time()
            with progress_told_to(lambda what, done, total: lab.progress(f"{what}, {size:,} images", done, total)):
                NTK(model, batched(inputs, 125))
            times.append(time.process_time() - start)
        return min(times)

    def _steps(self, lab: Lab, kind: str) -> float:
        """Processor seconds of a training step; that of the linearization is logged next to it."""
        found = lab.stage(f"steps {kind}", lambda: self._timed_steps(lab, kind))
        lab.log("step", net=kind, **found)
        return found["network"]

    def _timed_steps(self, lab: Lab, kind: str) -> dict[str, float]:
        with lab.seeded("model", kind):
            model = build(kind, self._image(kind), base=self.base)
        size, generator = for_trial(lab, self.batch, 8), lab.generator("batch", kind)
        batch = torch.randn(size, *self._image(kind), generator=generator), torch.ones(size)
        found = {}
        for name, trained in (("network", copy.deepcopy(model).train()), ("linearized", linearize(model.eval()))):
            times = []
            for _ in range(self.repeats + 1):
                start = time.process_time()
                logistic_loss(trained, batch).backward()
                times.append(time.process_time() - start)
            found[name] = min(times)
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """Times over sizes, with the published ones at 60,000, and seconds per step."""
        figure, ((left, right),) = panels(2)
        for place, kind in enumerate(self.nets):
            curves = results.curves("gram", "images", "seconds", net=kind)
            band(left, curves, NAMES[kind], color=PALETTE[place], marker="o")
            square = curves.mean[-1] * (60_000 / curves.x[-1]) ** 2
            left.plot([curves.x[-1], 60_000], [curves.mean[-1], square], ":", color=PALETTE[place], linewidth=1)
            left.plot(60_000, PUBLISHED[kind], "D", color=PALETTE[place], markersize=5)
            rows = results.table("step", net=kind)
            for shift, name, alpha in ((-0.2, "network", 1.0), (0.2, "linearized", 0.5)):
                value = float(rows[name].mean())
                right.bar(place + shift, value, 0.36, color=PALETTE[place], alpha=alpha)
                right.annotate(f"{1e3 * value:.0f}", (place + shift, value), ha="center", va="bottom", fontsize=8)
            if kind in PUBLISHED_STEPS:
                right.plot(place - 0.45, PUBLISHED_STEPS[kind], "D", color=INK, markersize=5)
        left.set(xscale="log", yscale="log")
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
        right.set_yscale("log")
        right.set_xticks(range(len(self.nets)), [NAMES[kind] for kind in self.nets])
        label(left, "images", "processor time [s]", "Gram matrix")
        label(right, "network (full), linearized (pale)", "processor time per step [s]", "training step")
        yield Picture(
            "runtimes",
            figure,
            "Left: processor time of a Gram matrix of one output on one thread, continued with the square of the number of "
            "images (dotted); diamonds: the published times for 60,000 images on GPUs. Right: a training step of a batch, "
            "numbers in milliseconds; diamonds: from the published times of whole trainings on a GPU, of full size.",
        )

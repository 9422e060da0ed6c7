"""Experiment 9: what a network puts into one class, adversarial examples included, hangs together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Minibatches, Picture, Results, experiment, train
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, cross_entropy, image_data, loss_and_accuracy
from tangentlab.figures.style import PALETTE, label, panels
from tangentlab.models import ResNet20
from tangentlab.spectral import Path, connecting_path
from tangentlab.spectral.paths import resampled

KINDS = ("image to image", "image to adversarial", "adversarial to adversarial")
SHOWN = 6
"""Places of a path that are drawn as images."""


@experiment
class ConnectedClasses(Experiment):
    """A residual network, adversarial examples, and paths between inputs of one class."""

    name = "connected-classes"
    title = "A class hangs together"
    question = (
        "A network that prefers low frequencies should have no islands: any two inputs that it puts into one class, images of "
        "the class or adversarial examples, should be connected by a path inside of the class. How long is such a path?"
    )
    chapter = Chapter.SPECTRAL
    place = "A.1.7, figures A.11 and A.12"
    claims = claims_of("connected-classes")
    scales = {
        "smoke": {
            "dataset": "digits",
            "pixels": 8,
            "images": 200,
            "base": 4,
            "epochs": 1,
            "batch": 50,
            "members": 6,
            "pairs": 3,
            "iterations": 1,
            "path_steps": 2,
            "attack_steps": 3,
        },
        "paper": {"epochs": 200, "pairs": 4_950},
    }
    minutes = {"smoke": 0.3, "desk": 25, "paper": 1_200}
    notes = {"desk": "10 epochs, 95 random pairs of every class in place of all; one network."}

    dataset: str = "cifar10"
    pixels: int = 32
    images: int = 50_000
    base: int = 16
    epochs: int = 10
    batch: int = 128
    rate: float = 0.1
    members: int = 50
    pairs: int = 95
    iterations: int = 4
    path_steps: int = 10
    path_rate: float = 1e-3
    attack_steps: int = 40
    attack_rate: float = 0.01
    certainty: float = 0.95

    def updates(self) -> int:
        """Of the training."""
        return self.epochs * (self.images // self.batch)

    def cost(self) -> Cost:
        """Updates of the training, and one step per pair."""
        return Cost(self.updates() + 10 * self.pairs, 0.2, 1_500)

    def run(self, lab: Lab) -> None:
        """Train, attack, connect."""
        known, other = image_data(lab, self.dataset, self.pixels, self.images)
        with lab.seeded("model"):
            model = ResNet20(base=self.base, in_channels=known.inputs.shape[1])
        self._train(lab, model, known)
        model.eval()
        lab.log("network", accuracy=loss_and_accuracy(model, other)[1])
        for target in range(10):
            rows = lab.stage(f"class {target}", partial(self._class, lab, model, known, target))
            for row in rows:
                lab.log("path", **row)

    def _train(self, lab: Lab, model: nn.Module, data: Dataset) -> None:
        batches = Minibatches(data, min(self.batch, len(data)), lab.seed, augment=_flipped)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=self.updates() + 1)
        train(
            model,
            batches,
            cross_entropy,
            optimizer,
            self.updates(),
            lab=lab,
            parts={"schedule": schedule},
            after_update=lambda training: schedule.step(),
        )

    def _class(self, lab: Lab, model: nn.Module, data: Dataset, target: int) -> list[Row]:
        """Pairs of one class: images that it has, and others that were turned into it."""
        generator = lab.generator("pairs", target)
        order = torch.randperm(len(data), generator=generator)
        own = self._sure(model, data.inputs[order[data.targets[order] == target][: 2 * self.members]], target)
        strangers = data.inputs[order[data.targets[order] != target][: self.members]]
        fooled = self._sure(model, self._attacked(model, strangers, target), target)
        pools = {KINDS[0]: (own, own), KINDS[1]: (own, fooled), KINDS[2]: (fooled, fooled)}
        rows: list[Row] = []
        for number in lab.loop(range(self.pairs), f"class {target}"):
            kind = KINDS[number % len(KINDS)]
            first, second = pools[kind]
            if len(first) < 2 or len(second) < 2:
                continue
            places = (
                torch.randint(len(first), (1,), generator=generator),
                torch.randint(len(second), (1,), generator=generator),
            )
            start, end = first[int(places[0])], second[int(places[1])]
            if torch.equal(start, end):
                end = second[(int(places[1]) + 1) % len(second)]
            path = connecting_path(
                model, start, end, target, iterations=self.iterations, steps=self.path_steps, lr=self.path_rate
            )
            if number < len(KINDS) and target == 0:
                lab.save_array(f"path {number}", _as_bytes(path))
            least = float(path.probabilities.min())
            rows.append(
                {"target": target, "kind": kind, "connected": path.connected, "least": least, "excess": path.excess}
            )
        return rows

    @torch.no_grad()
    def _sure(self, model: nn.Module, inputs: Tensor, target: int) -> Tensor:
        """Those that the network puts into the class with the wanted certainty, at most `members`."""
        if not len(inputs):
            return inputs
        return inputs[model(inputs).softmax(1)[:, target] >= self.certainty][: self.members]

    def _attacked(self, model: nn.Module, inputs: Tensor, target: int) -> Tensor:
        """Small steps by the sign of the gradient towards the class, until the network is certain of it."""
        moved = inputs.clone()
        labels = torch.full((len(inputs),), target)
        for _ in range(self.attack_steps):
            points = moved.detach().requires_grad_()
            logits = model(points)
            (slope,) = torch.autograd.grad(nn.functional.cross_entropy(logits, labels, reduction="sum"), points)
            unsure = logits.detach().softmax(1)[:, target] < self.certainty + 0.02
            moved = moved - self.attack_rate * slope.sign() * unsure.view(-1, *[1] * (inputs.ndim - 1))
        return moved.detach()

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        paths = results.table("path", seed=seed)
        (network,) = results.table("network", seed=seed).rows
        if not len(paths):
            names = ("SB-9-connected", "SB-9-certain", "SB-9-length")
            return {"SB-9-accuracy": network["accuracy"], **dict.fromkeys(names, "no class has two sure inputs")}
        certain = np.mean(paths["least"] >= self.certainty)
        return {
            "SB-9-accuracy": network["accuracy"],
            "SB-9-connected": float(paths["connected"].mean()),
            "SB-9-certain": float(certain),
            "SB-9-length": float(paths["excess"].mean()),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Probabilities and lengths by kind, and some paths as images."""
        figure, ((left, right),) = panels(2)
        for row, (kind, color) in enumerate(zip(KINDS, PALETTE, strict=False)):
            paths = results.table("path", kind=kind)
            if len(paths):
                spread = row + np.linspace(-0.3, 0.3, len(paths))
                left.plot(paths["least"], spread, ".", color=color, markersize=3, alpha=0.6)
                right.plot(100 * paths["excess"], spread, ".", color=color, markersize=3, alpha=0.6)
        for axes in (left, right):
            axes.set_yticks(range(len(KINDS)), [kind.replace(" to ", "\nto ") for kind in KINDS])
        label(left, "smallest probability of the class on the path", "pair", "certainty")
        label(right, "length beyond the straight line [%]", "pair", "length")
        yield Picture("paths", figure, "Paths between two inputs of one class, a point each: all classes.")
        if results.has_arrays("path 0") and results.has_arrays("path 1") and results.has_arrays("path 2"):
            yield self._images(results)

    def _images(self, results: Results) -> Picture:
        figure, axes = panels(SHOWN, len(KINDS), width=1.15, height=1.25)
        for row, kind in enumerate(KINDS):
            for column, image in enumerate(results.array(f"path {row}")):
                panel = axes[row][column]
                panel.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray")
                panel.set_axis_off()
                if column == 0:
                    panel.set_title(kind, fontsize=8)
        return Picture("figures-a.11-a.12", figure, "Three paths between two inputs of one class, from left to right.")


def _flipped(batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Half of the images mirrored, and the batch shifted by up to an eighth (what leaves on one side enters on the other)."""
    inputs, targets = batch
    mirrored = torch.rand(len(inputs), 1, 1, 1, generator=generator) < 0.5
    reach = inputs.shape[-1] // 8
    down, across = torch.randint(-reach, reach + 1, (2,), generator=generator).tolist()
    return torch.where(mirrored, inputs.flip(-1), inputs).roll((down, across), (-2, -1)), targets


def _as_bytes(path: Path) -> Tensor:
    """Some places of a path as images of 0 to 255, `(places, height, width, channels)`."""
    shape = path.points.shape[1:]
    images = resampled(path.points.flatten(1), SHOWN).view(SHOWN, *shape).movedim(1, -1)
    low, high = images.amin(), images.amax()
    return (255 * (images - low) / (high - low)).byte()

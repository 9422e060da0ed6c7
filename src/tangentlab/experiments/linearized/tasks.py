"""Eigenfunctions of the kernel at initialization as tasks, for networks and for their linearizations."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import batched, for_trial, image_pool
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.linearized._recipe import (
    PLACE,
    EpochLoss,
    Recipe,
    binary_accuracy,
    fresh,
    held_out,
    relabelled,
    train_task,
    two_classes,
)
from tangentlab.experiments.linearized._tasks_claims import (
    crossing,
    spike,
)
from tangentlab.experiments.linearized._tasks_figures import TaskFigures
from tangentlab.linearized import Eigenfunctions, alignments, eigenfunctions, linearize

REACHED, CROSSING = 0.01, "S3-E1-mnist-crossing"


@experiment
class EigenfunctionTasks(TaskFigures, Experiment):
    """Validation accuracy, time, distance and alignment over the index of the eigenfunction."""

    name = "eigenfunction-tasks"
    title = "The kernel's eigenfunctions as tasks"
    question = (
        "The tangent kernel at initialization has eigenfunctions, from those that a linearized network learns at once to "
        "those that it hardly learns. Is this order also that of the network itself?\n\nEach chosen eigenfunction, cut at "
        "0, becomes a binary task on the same images; network and linearization are trained on it, and on the first five "
        "classes against the others (CIFAR2). What training did to the kernel is then seen in the alignments of all "
        "eigenfunctions."
    )
    chapter = Chapter.LINEARIZED
    place = f"{PLACE}, E.1 to E.3, figures 4 to 7"
    claims = claims_of("eigenfunction-tasks")
    scales = {
        "smoke": {
            "data": "digits",
            "pixels": 8,
            "images": 150,
            "valid": 50,
            "functions": 30,
            "indices": (0, 4, 20),
            "epochs": 2,
            "baseline_epochs": 2,
            "batch": 50,
        },
        "paper": {
            "nets": ("mlp", "lenet", "resnet18"),
            "pixels": 32,
            "images": 60_000,
            "valid": 10_000,
            "functions": 1000,
            "indices": (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 999),
            "epochs": 100,
            "baseline_epochs": 200,
            "base": 64,
            "zero_init": True,
        },
    }
    seeds = {"smoke": 1, "desk": 2, "paper": 1}
    minutes = {"smoke": 0.3, "desk": 12, "paper": 20_000}
    notes = {
        "desk": "6,000 images of 16 x 16 pixels in place of 60,000 of 32; 20 epochs (CIFAR2: 40) in place of 100 (200), in "
        "which LeNet comes to a loss of 0.01 on the first eigenfunction only, so that its times are cut off; indices to 100."
    }

    nets: tuple[str, ...] = ("mlp", "lenet")
    data: Literal["digits", "mnist", "cifar10"] = "cifar10"
    pixels: int = 16
    images: int = 6_000
    valid: int = 1_000
    functions: int = 200
    indices: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100)
    epochs: int = 20
    baseline_epochs: int = 40
    batch: int = 128
    rate: float = 0.05
    optimizer: Literal["sgd", "adam"] = "sgd"
    base: int = 16
    zero_init: bool = False

    def recipe(self, epochs: int) -> Recipe:
        """The same for networks and linearizations."""
        return Recipe(epochs, self.batch, self.rate, optimizer=self.optimizer)

    @property
    def further(self) -> bool:
        """Whether this variant judges times, distances and alignments as well."""
        return any(claim.id == "S3-E7-network" for claim in self.claims)

    def cost(self) -> Cost:
        """One step per update."""
        epochs = len(self.indices) * self.epochs + self.baseline_epochs
        return Cost(2 * len(self.nets) * self.recipe(epochs).steps(self.images - self.valid), 0.03, 2500)

    def run(self, lab: Lab) -> None:
        """Eigenfunctions, then a network and a linearization per task."""
        everything = self._images(lab)
        rows = [self._network(lab, kind, everything) for kind in self.nets]
        judged = {claim.id for claim in self.claims}
        late = [row["late"] for row in rows]
        for claim, pick in _VERDICTS.items():
            code = claim if claim in judged else claim.replace("S3-E1-", f"S3-E1{self._code()}-")
            if code == "S3-E2-time" and code in judged and max(late) > 0.5:
                lab.not_tested(code, f"a network never came to a loss of {REACHED} on {max(late):.0%} of its tasks")
            elif code in judged:
                lab.measure(code, pick([row[claim] for row in rows]))
        if CROSSING in judged:
            limit = next(claim.threshold for claim in self.claims if claim.id == CROSSING)
            best, possible = (np.array(where) for where in rows[self.nets.index("lenet")]["crossing"])
            if min(max(self.indices), self.functions, len(everything)) < 500:
                lab.not_tested(CROSSING, "no eigenfunction beyond index 500 was a task")
            elif len(set(np.abs(np.log2(possible / 500)) <= limit)) > 1:
                lab.not_tested(CROSSING, f"the crossing is anywhere from {possible.min():.0f} to {possible.max():.0f}")
            else:
                lab.measure(CROSSING, abs(float(np.log2(best / 500))))

    def _code(self) -> str:
        return self.claims[0].id.removeprefix("S3-E1").removesuffix("-falls")

    def _images(self, lab: Lab) -> Dataset:
        """Images for training, followed by those for validation; the kernel sees them all."""
        return image_pool(lab, self.data, self.pixels, for_trial(lab, self.images))

    def _build(self, lab: Lab, kind: str, data: Dataset) -> nn.Module:
        return fresh(lab, kind, data, base=self.base, zero_init=self.zero_init)

    def _network(self, lab: Lab, kind: str, data: Dataset) -> dict[str, Any]:
        """All tasks of one network; the numbers that decide the claims."""

        def decompose() -> dict[str, Tensor]:
            model = self._build(lab, kind, data).eval()
            count = min(self.functions, len(data))
            found = eigenfunctions(model, batched(data.inputs, 250), count, method="gram", progress=False)
            return {"values": found.eigenvalues, "vectors": found.vectors, "residuals": found.residual_norms}

        parts = lab.stage(f"eigenfunctions {kind}", decompose)
        basis = Eigenfunctions(parts["values"], parts["vectors"], parts["residuals"])
        indices = [index for index in self.indices if index < len(basis)][: lab.capped(len(self.indices))]
        rows = [self._task(lab, kind, data, basis, index) for index in indices]
        own, linear = ([row[key] for row in rows] for key in ("network", "linearized"))
        gap = sum(linear) / len(rows) - sum(own) / len(rows)
        found: dict[str, Any] = {
            "S3-E1-falls": max(rank_correlation(indices, values) for values in (own, linear)),
            "S3-E1-alike": rank_correlation(own, linear),
            "S3-E1-linear": gap,
            "late": sum(not row["in_time"] for row in rows) / len(rows),
        }
        for claim, key in (("time", "updates"), ("distance", "distance"), ("angle", "angle")):
            found[f"S3-E2-{claim}"] = rank_correlation(indices, [row[key] for row in rows])
        if self.further:
            found["S3-E5-spike"] = float(torch.tensor([row["spike"] for row in rows]).median())
            found["S3-E11-binarized"] = abs(self._binarization(lab, kind, basis) - 0.78)
            model = self._build(lab, kind, data).eval()
            starts = lab.stage(f"alignments {kind} start", lambda: self._alignments(lab, model, data, basis))
            for part, values in starts.items():
                lab.save_array(f"alignments-{kind}-start-{part}", values)
        baseline = self._pair(lab, kind, two_classes(data), "five classes", self.baseline_epochs)
        lab.log("baseline", net=kind, **{key: baseline[key] for key in ("network", "linearized")})
        found["S3-E7-network"] = baseline["network"] - baseline["linearized"]
        found["crossing"] = crossing(indices, own, linear, self._validated(lab, data))
        best, possible = found["crossing"]
        lab.log("crossing", net=kind, index=best, lowest=min(possible), highest=max(possible))
        return found

    def _binarization(self, lab: Lab, kind: str, basis: Eigenfunctions) -> float:
        """How much of the eigenvectors their signs keep; how much random signs do is logged with it."""
        kept = float(basis.binarization().mean())
        signs = torch.randn(basis.vectors.shape, generator=lab.generator("signs", kind)).sign()
        chance = (basis.vectors * signs).sum(1) / len(basis.vectors[0]) ** 0.5
        mean, size, rms = (
            float(value) for value in (chance.mean(), chance.abs().mean(), chance.square().mean().sqrt())
        )
        lab.log("binarization", net=kind, kept=kept, random_mean=mean, random_mean_abs=size, random_rms=rms)
        return kept

    def _validated(self, lab: Lab, data: Dataset) -> int:
        """How many of the last images are for validation."""
        return for_trial(lab, self.valid, len(data) // 2)

    def _pair(self, lab: Lab, kind: str, data: Dataset, task: str, epochs: int) -> dict[str, Any]:
        """Train a network and a linearization on the first images; accuracies on the last ones."""
        train, valid = held_out(lab, data, self.valid)
        found: dict[str, Any] = {}
        for name in ("network", "linearized"):
            model = self._build(lab, kind, data)
            start = parameters_to_vector(model.parameters()).detach().clone()
            trained = linearize(model.eval()) if name == "linearized" else model
            losses = EpochLoss(REACHED)
            recipe = self.recipe(epochs)
            training = train_task(lab, trained, train, recipe, f"{kind} {name}, {task}", [losses])
            found[name] = binary_accuracy(trained, valid)
            if name == "network":
                end = parameters_to_vector(model.parameters()).detach()
                cosine = nn.functional.cosine_similarity(start, end, 0)
                found |= {"updates": losses.reached or training.steps, "in_time": losses.reached is not None}
                found |= {"distance": float((end - start).norm())}
                found |= {
                    "angle": 1 - float(cosine),
                    "train_loss": losses.losses[-1] if losses.losses else float("nan"),
                }
                found["model"] = model.eval()
        return found

    def _task(self, lab: Lab, kind: str, data: Dataset, basis: Eigenfunctions, index: int) -> dict[str, float]:
        """One eigenfunction: accuracies, how far the network went, and what became of the kernel."""
        found = self._pair(lab, kind, relabelled(data, basis.labels(index)), f"eigenfunction {index}", self.epochs)
        model = found.pop("model")
        if self.further:
            ends = lab.stage(f"alignments {kind} {index}", lambda: self._alignments(lab, model, data, basis))
            found["spike"] = spike(ends["all"], index) / spike(basis.kernel_eigenvalues, index)
            for part, values in ends.items():
                lab.save_array(f"alignments-{kind}-{index}-{part}", values)
        lab.log("task", net=kind, index=index, **found)
        return found

    def _alignments(self, lab: Lab, model: nn.Module, data: Dataset, basis: Eigenfunctions) -> dict[str, Tensor]:
        """Rayleigh quotients of all eigenfunctions over n, on the images of training, of validation, and on all."""
        split = len(data) - self._validated(lab, data)
        parts = {"all": slice(None), "training": slice(split), "validation": slice(split, None)}
        return {
            name: alignments(model, batched(data.inputs[part], 250), _unit(basis.functions[:, part]), progress=False)
            for name, part in parts.items()
        }


def _unit(functions: Tensor) -> Tensor:
    """Functions with a mean square of 1 on the examples at hand."""
    return functions / functions.square().mean(1, keepdim=True).sqrt()


_VERDICTS: dict[str, Any] = {
    "S3-E1-falls": max,
    "S3-E1-alike": min,
    "S3-E1-linear": min,
    "S3-E2-time": min,
    "S3-E2-distance": min,
    "S3-E2-angle": min,
    "S3-E5-spike": min,
    "S3-E7-network": min,
    "S3-E11-binarized": max,
}


@experiment
class EigenfunctionTasksAdam(EigenfunctionTasks):
    """The same with Adam."""

    name = "eigenfunction-tasks-adam"
    title = "The kernel's eigenfunctions as tasks, with Adam"
    place = f"{PLACE}, E.1, figure 2"
    claims = claims_of("eigenfunction-tasks-adam")
    scales = {**EigenfunctionTasks.scales, "paper": {**EigenfunctionTasks.scales["paper"], "rate": 1e-3}}
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.3, "desk": 8, "paper": 20_000}
    notes = {
        "desk": "6,000 images of 16 x 16 pixels in place of 60,000 of 32; 20 epochs (CIFAR2: 40) in place of 100 (200); "
        "indices to 100.",
        "paper": "the paper does not tell Adam's rate; here 0.001.",
    }

    rate: float = 1e-3
    optimizer: Literal["sgd", "adam"] = "adam"


@experiment
class EigenfunctionTasksMnist(EigenfunctionTasks):
    """The same on MNIST."""

    name = "eigenfunction-tasks-mnist"
    title = "The kernel's eigenfunctions as tasks, on MNIST"
    place = f"{PLACE}, E.1, figure 3"
    claims = claims_of("eigenfunction-tasks-mnist")
    scales = {
        "smoke": EigenfunctionTasks.scales["smoke"],
        "paper": {**EigenfunctionTasks.scales["paper"], "nets": ("mlp", "lenet"), "pixels": 28, "images": 70_000},
    }
    seeds = {"smoke": 1, "desk": 1, "paper": 1}
    minutes = {"smoke": 0.3, "desk": 8, "paper": 5_000}
    notes = {
        "desk": "6,000 images of 16 x 16 pixels in place of 70,000 of 28; 20 epochs (five digits against five: 40) in place "
        "of 100 (200)."
    }

    data: Literal["digits", "mnist", "cifar10"] = "mnist"
    functions: int = 1_000
    indices: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 999)


@experiment
class EigenfunctionTasksResNet(EigenfunctionTasks):
    """The same for a residual network with batch norm."""

    name = "eigenfunction-tasks-resnet"
    title = "The kernel's eigenfunctions as tasks, for ResNet18"
    place = f"{PLACE}, E.1"
    claims = claims_of("eigenfunction-tasks-resnet")
    scales = {
        "smoke": {
            **EigenfunctionTasks.scales["smoke"],
            "images": 60,
            "valid": 20,
            "epochs": 1,
            "baseline_epochs": 1,
            "indices": (0, 8),
            "base": 4,
        },
        "paper": {**EigenfunctionTasks.scales["paper"], "nets": ("resnet18",)},
    }
    seeds = {"smoke": 1, "desk": 1, "paper": 1}
    minutes = {"smoke": 0.4, "desk": 18, "paper": 20_000}
    notes = {
        "desk": "16 channels in the first stage, 4,000 images of 16 x 16 pixels, 10 epochs for each of 4 eigenfunctions and "
        "for CIFAR2. The kernel and the linearization have batch norms at their initial statistics, the network its own."
    }

    nets: tuple[str, ...] = ("resnet18",)
    images: int = 4_000
    indices: tuple[int, ...] = (0, 5, 20, 100)
    epochs: int = 10
    baseline_epochs: int = 10

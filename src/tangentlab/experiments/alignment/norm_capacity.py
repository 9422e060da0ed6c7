"""Figure B.3: the l2 norm of an interpolating solution does not measure its capacity; the optimal rescaling does better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tangentlab.alignment import interpolant_capacity, optimal_rescaling
from tangentlab.errors import InputError
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.figures.style import PALETTE, band, label, legend_below, panels

LEAST_SHARE = 0.1
"""Share that the rarer label must have: with one label only, there is nothing to generalize."""
MOST_DRAWS = 100


def random_features(points: int, dim: int, half_width: float, random: np.random.RandomState) -> Tensor:
    """Random Fourier features of the Gaussian kernel with gamma = 1 at equally spaced points, (points, dim)."""
    from sklearn.kernel_approximation import RBFSampler

    where = np.linspace(-half_width, half_width, points)[:, None]
    features: Any = RBFSampler(gamma=1.0, n_components=dim, random_state=random).fit_transform(where)
    return torch.from_numpy(features).double()


def two_classes(points: int, half_width: float, random: np.random.RandomState) -> tuple[Tensor, Tensor, Tensor, int]:
    """Features whose first left singular vector has both signs: left vectors, singular values, labels, number of draws.

    Features are drawn again until the rarer sign has a share of `LEAST_SHARE`.
    """
    for draws in range(1, MOST_DRAWS + 1):
        left, singular, _ = torch.linalg.svd(random_features(points, points, half_width, random))
        labels = torch.where(left[:, 0] > 0, 1.0, -1.0).double()
        if rarer_share(labels) >= LEAST_SHARE:
            return left, singular, labels, draws
    raise InputError(
        f"None of {MOST_DRAWS} draws of features on [-{half_width:g}, {half_width:g}] gives both labels a share of "
        f"{LEAST_SHARE:.0%}: take a larger half_width."
    )


def rarer_share(labels: Tensor) -> float:
    """Share of the rarer of the labels -1 and 1; 0 for one label only."""
    positive = float((labels > 0).double().mean())
    return min(positive, 1 - positive)


@experiment
class NormCapacity(Experiment):
    """Interpolating solutions of least norm on subsamples, as the features go from isotropic to those of a kernel."""

    name = "norm-capacity"
    title = "Which norm measures the capacity of an interpolant"
    question = (
        "Gradient descent on a linear model finds the interpolant of least l2 norm. Is this norm the one that tells how well "
        "it generalizes?\n\nThe singular values of random features are bent from all equal (c = 0) to those of a Gaussian "
        "kernel (c = 1); labels are the sign of the first singular vector. Interpolants of 50 labels are compared with two "
        "bounds: that of the l2 norm, and that of the norm which makes the bound least."
    )
    chapter = Chapter.ALIGNMENT
    place = "B.2.5, figure B.3"
    claims = claims_of("norm-capacity")
    scales = {"smoke": {"points": 60, "subsamples": 4, "examples": 10, "bends": (0.0, 0.5, 0.9)}, "paper": {}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 2, "paper": 2}
    notes = {
        "desk": "as in the paper (1000 points and features, 100 subsamples of 50). The paper does not tell the interval: here "
        "[−5, 5]. c stops at 0.99, since at c = 1 the kernel is singular to machine precision. In some draws of the "
        "features the first singular vector has one sign, which makes one class: features are drawn again until the rarer "
        "label has a share of at least 10 %.",
    }

    points: int = 1000
    half_width: float = 5.0
    subsamples: int = 100
    examples: int = 50
    bends: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)

    def cost(self) -> Cost:
        """One step per value of c."""
        return Cost(len(self.bends), 2.0, 500)

    def run(self, lab: Lab) -> None:
        """All subsamples at every c."""
        random = np.random.RandomState(int(lab.numpy_generator("features").integers(2**31)))
        left, singular, labels, draws = two_classes(self.points, self.half_width, random)
        lab.log("labels", draws=draws, rarer_share=rarer_share(labels))
        generator = lab.generator("subsamples")
        chosen = [torch.randperm(self.points, generator=generator)[: self.examples] for _ in range(self.subsamples)]
        for bend in lab.loop(self.bends, "bends"):
            self._at(lab, bend, left, 1 + bend * (singular.square() - 1), labels, chosen)

    def _at(
        self, lab: Lab, bend: float, left: Tensor, eigenvalues: Tensor, labels: Tensor, chosen: list[Tensor]
    ) -> None:
        """Errors and bounds at one c; weights are in the basis of the right singular vectors."""
        features = left * eigenvalues.clamp_min(0).sqrt()
        errors, plain, best, places = [], [], [], []
        for rows in chosen:
            kernel = features[rows] @ features[rows].t()
            weights = features[rows].t() @ torch.linalg.solve(kernel, labels[rows])
            errors.append(float(((features @ weights) * labels <= 0).double().mean()))
            plain.append(interpolant_capacity(kernel, labels[rows]).bound)
            best.append(optimal_rescaling(kernel, labels[rows]).bound)
            places.append(weights[[0, 9]])
        spread = torch.stack(places).std(0)
        row = {
            "c": bend,
            "error": float(np.mean(errors)),
            "plain": float(np.mean(plain)),
            "optimal": float(np.mean(best)),
        }
        row["scatter"] = float(spread[1] / spread[0])
        lab.log("bend", **row)
        lab.save_array(f"solutions-{bend:g}", torch.stack(places))

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """How the bounds go with the error over c, and how the solutions scatter."""
        table = results.table("bend", seed=seed)
        error, plain, optimal = (table[key] for key in ("error", "plain", "optimal"))
        follows, plainly = (rank_correlation(values, error, least=3) for values in (optimal, plain))
        return {
            "B.3-error": float(error[-1]),
            "B.3-loose": rank_correlation(table["c"], plain - error, least=3),
            "B.3-optimal": follows,
            "B.3-better": follows - plainly,
            "B.3-scatter": float(table["scatter"][-1] / table["scatter"][0]),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Solutions in a plane, and error and bounds over c."""
        figure, ((left, right),) = panels(2)
        found = set(results.table("bend").distinct("c"))
        shown = [bend for bend in (0.0, 0.5, 0.9, 0.99) if bend in found]
        for bend, color, marker in zip(shown, PALETTE, "osD^", strict=False):
            points = results.array(f"solutions-{bend:g}")
            points = points - points.mean(0)
            left.plot(points[:, 0], points[:, 1], marker, color=color, markersize=3, alpha=0.6, label=f"c = {bend:g}")
        label(left, "along the 1st direction", "along the 10th direction", "solutions, centred")
        names = (
            ("error", "test error", PALETTE[4]),
            ("plain", "l2 bound", PALETTE[5]),
            ("optimal", "optimized bound", PALETTE[0]),
        )
        for key, name, color in names:
            band(right, results.curves("bend", "c", key), name, color=color, marker="o", markersize=3)
        label(right, "c", "error or bound", "capacity")
        legend_below(left, 2)
        legend_below(right, 3)
        yield Picture(
            "figure-b.3",
            figure,
            "Left: interpolating solutions of 100 subsamples, centred, along the first and the tenth right singular vector of "
            "the features; first seed. Right: test error, the bound of the l2 norm and the optimized bound, over the bending "
            "c of the singular values. Mean over subsamples and seeds, all seeds as a band.",
        )

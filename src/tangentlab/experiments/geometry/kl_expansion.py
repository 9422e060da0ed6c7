"""The Fisher matrix as the second-order part of the KL divergence (eq. 2.4.12), exact on normals and small networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from tangentlab.data import Dataset, standardize
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    Picture,
    Results,
    Table,
    experiment,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.geometry.parameter_distance import normal_kl
from tangentlab.figures.style import GRAY, PALETTE, label, legend_beside, panels, quantity

Array = NDArray[Any]


@dataclass(frozen=True)
class ParametricFamily:
    """A family of distributions at one point: its divergence to the point `w + dw`, both ways, and its Fisher."""

    name: str
    size: int
    divergences: Callable[[Tensor], tuple[float, float]]
    fisher: Tensor


def normal_family(mean: float = 0.3, variance: float = 0.7) -> ParametricFamily:
    """N(mean, variance) in these two parameters, everything in closed form."""

    def divergences(step: Tensor) -> tuple[float, float]:
        here, there = (mean, variance), (mean + step[0].item(), variance + step[1].item())
        return normal_kl(there, here), normal_kl(here, there)

    fisher = torch.diag(torch.tensor([1 / variance, 1 / (2 * variance**2)], dtype=torch.float64))
    return ParametricFamily("normal (mean, variance)", 2, divergences, fisher)


def network_family(name: str, net: nn.Module, inputs: Tensor, likelihood: str) -> ParametricFamily:
    """The conditional distributions of a network on `inputs`, by dense automatic differentiation in float64.

    `likelihood="softmax"`: F = 1/n sum J^T (diag p - p p^T) J; `"normal"` (unit variance): F = 1/n sum J^T J.
    """
    net = copy.deepcopy(net).double()
    parameters = {key: value.detach() for key, value in net.named_parameters()}
    shapes = [value.shape for value in parameters.values()]
    origin = torch.cat([value.flatten() for value in parameters.values()])

    def outputs(flat: Tensor) -> Tensor:
        pieces = flat.split([shape.numel() for shape in shapes])
        named = {key: piece.view(shape) for key, piece, shape in zip(parameters, pieces, shapes, strict=True)}
        result: Tensor = functional_call(net, named, (inputs,))
        return result

    here = outputs(origin)
    jacobian = jacrev(outputs, chunk_size=512)(origin)
    if likelihood == "softmax":
        p = here.softmax(-1)
        weight = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        weighted = weight @ jacobian
    else:
        weighted = jacobian
    fisher = torch.einsum("nci,ncj->ij", jacobian, weighted) / len(inputs)

    def divergences(step: Tensor) -> tuple[float, float]:
        there = outputs(origin + step)
        if likelihood == "normal":
            half = 0.5 * (there - here).square().sum(-1).mean().item()
            return half, half
        return softmax_kl(there, here), softmax_kl(here, there)

    return ParametricFamily(name, len(origin), divergences, fisher)


def softmax_kl(p: Tensor, q: Tensor) -> float:
    """Mean over examples of KL(softmax p || softmax q), in nats."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def order(steps: Array, errors: Array) -> float:
    """The slope of log error against log step: the order of convergence."""
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


FAMILIES = ("normal", "softmax-regression", "network-at-start", "network-trained", "regression-network")
LABELS = {
    "normal": "normal distribution",
    "softmax-regression": "softmax regression",
    "network-at-start": "network, at the start",
    "network-trained": "network, trained",
    "regression-network": "regression network",
}


@experiment
class KLExpansion(Experiment):
    """The Fisher matrix as the second-order part of the KL divergence, on normals and on small networks."""

    name = "kl-expansion"
    title = "The Fisher matrix measures small steps by their KL divergence"
    question = (
        "How far does a small step δw in the parameters move the distribution that a model describes? The theory says: "
        "the KL divergence is ½ δwᵀFδw, with the Fisher matrix F, up to something of third order, and it does not "
        "matter in which direction the divergence is taken.\n\nHere both sides are computed exactly, with the Fisher "
        "matrix stored densely, for a normal distribution and for small networks on handwritten digits, along random "
        "directions and for steps over one and a half orders of magnitude."
    )
    chapter = Chapter.GEOMETRY
    place = "§2.4, eq. 2.4.12"
    claims = claims_of("kl-expansion")
    scales = {"smoke": {"examples": 40, "width": 6, "directions": 6, "steps": 7, "updates": 20}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 0.5, "paper": 0.5}

    examples: int = 400
    width: int = 16
    directions: int = 24
    steps: int = 13
    smallest: float = 0.003
    largest: float = 0.1
    updates: int = 300

    def cost(self) -> Cost:
        """One step is one update of the network, or one family, direction and step length."""
        return Cost(self.updates + len(FAMILIES) * self.directions, 0.02, 600)

    def run(self, lab: Lab) -> None:
        """Log both divergences and the quadratic form for every family, direction and step length."""
        lengths = np.geomspace(self.smallest, self.largest, self.steps)
        swapped, relative = [], []
        for key in FAMILIES:
            family = self._family(key, lab)
            kl, back, quadratic = self._measure(key, family, lengths, lab)
            remainder = np.sqrt(((kl - quadratic) ** 2).mean(axis=0))
            lab.measure(f"t9-order-{key}", abs(order(lengths, remainder) - 3))
            relative.append(np.abs(kl[:, 0] / quadratic[:, 0] - 1).max())
            if key != "regression-network":  # its divergence is symmetric
                swapped.append(abs(order(lengths, np.sqrt(((kl - back) ** 2).mean(axis=0))) - 3))
        lab.measure("t9-swapped", max(swapped))
        lab.measure("t9-relative", max(relative))
        lab.measure("t9-normal-fisher", _fisher_error(normal_family().fisher))

    def _measure(self, key: str, family: ParametricFamily, lengths: Array, lab: Lab) -> tuple[Array, ...]:
        """Arrays `(directions, steps)`: KL(w+dw || w), KL(w || w+dw) and the quadratic form."""
        generator = lab.generator("directions", key)
        rows = []
        for direction in lab.loop(range(self.directions), LABELS[key]):
            step = torch.randn(family.size, generator=generator, dtype=torch.float64)
            step /= step.norm()
            curvature = (step @ family.fisher @ step).item()
            values = [(*family.divergences(length * step), 0.5 * length**2 * curvature) for length in lengths.tolist()]
            for length, (kl, back, quadratic) in zip(lengths.tolist(), values, strict=True):
                lab.log("kl", family=key, direction=direction, step=length, kl=kl, swapped=back, quadratic=quadratic)
            rows.append(values)
        return tuple(np.moveaxis(np.array(rows), -1, 0))

    def _family(self, key: str, lab: Lab) -> ParametricFamily:
        data = self._digits(lab)
        inputs = data.inputs.flatten(1).double()
        if key == "normal":
            return normal_family()
        if key == "softmax-regression":
            with lab.seeded("softmax"):
                return network_family(key, nn.Linear(64, 10), inputs, "softmax")
        with lab.seeded("network"):
            net = nn.Sequential(nn.Linear(64, self.width), nn.Tanh(), nn.Linear(self.width, 10))
        if key == "regression-network":
            return network_family(key, net, inputs, "normal")
        if key == "network-trained":
            batches = Minibatches(data, min(50, len(data)), lab.seed)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            train(net, batches, _cross_entropy, optimizer, self.updates, lab=lab, name="digits")
        return network_family(key, net, inputs, "softmax")

    def _digits(self, lab: Lab) -> Dataset:
        (data,) = standardize(lab.dataset("digits"))
        return data.first(self.examples)

    def draw(self, results: Results) -> Iterator[Picture]:
        """The two sides of the equation, their difference, and the relative error."""
        table = results.table("kl")
        figure, ((left, right),) = panels(2)
        for key, color in zip(FAMILIES, PALETTE, strict=False):
            rows = table.where(family=key)
            steps, kl, quadratic = _by_step(rows, "kl"), _by_step(rows, "kl"), _by_step(rows, "quadratic")
            x = np.array(sorted(steps))
            left.loglog(x, [kl[s].mean() for s in x], "o", markersize=3.5, color=color)
            left.loglog(x, [quadratic[s].mean() for s in x], color=color, linewidth=1)
            remainder = [np.sqrt(((kl[s] - quadratic[s]) ** 2).mean()) for s in x]
            right.loglog(x, remainder, "o-", markersize=3.5, linewidth=1.2, color=color, label=LABELS[key])
        guide = np.array(sorted(_by_step(table, "kl")))
        right.loglog(guide, guide**3, "--", color=GRAY, linewidth=1, label="third order")
        label(left, "length of the step δw", quantity("KL divergence", "nats"), "dots: KL, lines: ½ δwᵀFδw")
        label(right, "length of the step δw", quantity("remainder", "nats"), "their difference")
        legend_beside(right)
        yield Picture(
            "expansion",
            figure,
            "Left: the divergence (dots) and the quadratic form of the Fisher matrix (lines), mean over random "
            "directions and seeds. Right: the root mean square of their difference; it falls like the third power of "
            "the step (dashed), so the quadratic form is all there is to second order.",
        )
        figure, ((axes,),) = panels()
        for key, color in zip(FAMILIES, PALETTE, strict=False):
            rows = table.where(family=key)
            error = {s: np.abs(v) for s, v in _by_step(rows, "kl", "quadratic").items()}
            x = np.array(sorted(error))
            axes.loglog(x, [np.median(error[s]) for s in x], color=color, label=LABELS[key])
            low, high = np.array([np.quantile(error[s], (0.25, 0.75)) for s in x]).T
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        label(axes, "length of the step δw", "relative error of ½ δwᵀFδw")
        legend_beside(axes)
        yield Picture(
            "relative-error",
            figure,
            "How good the quadratic form is as an estimate of the divergence: median over directions and seeds, with "
            "the middle half of them as a band.",
        )


def _cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs.flatten(1)), targets)


def _by_step(rows: Table, column: str, over: str | None = None) -> dict[float, Array]:
    """Values of a column (relative to another one, minus 1, when given) grouped by the length of the step."""
    values = rows[column] / rows[over] - 1 if over else rows[column]
    steps = rows["step"]
    return {step: values[steps == step] for step in np.unique(steps).tolist()}


def _fisher_error(fisher: Tensor, mean: float = 0.3, variance: float = 0.7) -> float:
    """Distance to the expectation of the outer product of scores, exact by 40-point Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    gap = math.sqrt(variance) * nodes
    scores = np.stack([gap / variance, 0.5 * (gap**2 / variance**2 - 1 / variance)])
    integral = (scores * weights / weights.sum()) @ scores.T
    return float(np.abs(integral - fisher.numpy()).max())

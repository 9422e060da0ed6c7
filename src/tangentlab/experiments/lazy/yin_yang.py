"""Figure 5.1: where a network and its linearization differ when both have come to the same training loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from tangentlab.data import grid, yin_yang, yin_yang_labels
from tangentlab.data.toys import YIN_YANG_CENTRES, YIN_YANG_RADIUS
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Picture,
    Results,
    experiment,
    geometric_steps,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.lazy._ensemble import Ensemble
from tangentlab.figures.style import DIVERGING, GRAY, INK, PALETTE, label, legend_below, panels
from tangentlab.linearized import AlphaModel
from tangentlab.models import MLP

Array = NDArray[Any]
REGIONS = {"areas": "large areas", "disks": "small disks", "straits": "between disk and boundary"}


def region_masks(points: Tensor) -> dict[str, Tensor]:
    """The two large areas of one class, the two disks, and what lies between a disk and the horizontal boundary."""
    x, y = points.T
    offsets = [points - torch.tensor(centre) for centre in YIN_YANG_CENTRES]
    disks = torch.stack([offset.norm(dim=1) < YIN_YANG_RADIUS for offset in offsets]).any(0)
    sides = [(centre[1] > 0) == (y > 0) for centre in YIN_YANG_CENTRES]
    columns = [offset[:, 0].abs() < YIN_YANG_RADIUS for offset in offsets]
    nearer = [y.abs() < abs(centre[1]) for centre in YIN_YANG_CENTRES]
    straits = torch.stack([a & b & c for a, b, c in zip(sides, columns, nearer, strict=True)]).any(0)
    return {"areas": x * y > 0, "disks": disks, "straits": straits & ~disks}


@experiment
class LazyYinYang(Experiment):
    """Training losses and maps of the loss difference at equal training loss, over many runs."""

    name = "lazy-yin-yang"
    title = "Feature learning hurries through the easy parts"
    question = (
        "A network trained in the usual way and its linearization reach the same training loss. Have they then learned "
        "the same? The task is a map in the plane: two large areas of one class each, and two small disks of the other "
        "class inside. Each run trains one network from one initialization twice, with alpha = 1 (the network) and with "
        "alpha = 100 (nearly its linearization), until the loss comes to 0.5, 0.4 and 0.3. The maps show where, on "
        "average over runs, the one is better than the other at that moment."
    )
    chapter = Chapter.LAZY
    place = "§5.3.1, figure 5.1"
    claims = claims_of("lazy-yin-yang")
    scales = {
        "smoke": {"runs": 3, "iterations": 60, "rate": 0.5, "width": 20, "thresholds": (0.66, 0.6), "side": 12},
        "paper": {"rate": 0.01, "iterations": 250_000},
    }
    seeds = {"desk": 4, "paper": 4}
    minutes = {"smoke": 0.1, "desk": 20, "paper": 200}
    notes = {
        "desk": "25 runs in each of 4 seeds, 100 in all; learning rate 0.1 as in the authors' code (the text says 0.01), "
        "and their geometry: label = side of the horizontal axis, flipped in two disks of radius 0.3.",
        "paper": "the learning rate of the text. 25 runs in each of 4 seeds, 100 in all.",
    }

    runs: int = 25
    points: int = 100
    width: int = 60
    rate: float = 0.1
    alphas: tuple[float, float] = (1.0, 100.0)
    thresholds: tuple[float, ...] = (0.5, 0.4, 0.3)
    iterations: int = 25_000
    side: int = 50

    def cost(self) -> Cost:
        """One step is one iteration of all runs that have not come to the lowest threshold."""
        return Cost(len(self.alphas) * self.iterations, 0.008, 500)

    def run(self, lab: Lab) -> None:
        """Train all runs with both alphas; compare the maps taken at equal loss."""
        data = [yin_yang(self.points, lab.generator("data", run)) for run in range(self.runs)]
        networks = []
        for run in range(self.runs):
            with lab.seeded("model", run):
                networks.append(MLP((2, self.width, self.width, self.width, 1)))
        ensemble = Ensemble(networks)
        x = torch.stack([one.inputs for one in data])
        y = torch.stack([one.targets for one in data]).float()
        lab.save_array("points", x[0])
        found = []
        for alpha in self.alphas:
            compute = partial(self._train, lab, ensemble, alpha, x, y)
            found.append(lab.stage(f"alpha {alpha:g}", compute))
        self._compare(lab, found)

    def _train(self, lab: Lab, ensemble: Ensemble, alpha: float, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Iterations at which each run comes to each threshold (-1: never), (K, R); its loss map then, (K, R, points)."""
        knob = AlphaModel(ensemble, alpha)
        initial = knob.initial_outputs(x, len(x))
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(self.rate))
        reached = torch.full((len(self.thresholds), len(x)), -1)
        maps = torch.zeros(len(self.thresholds), len(x), self.side**2)
        active, shown = torch.arange(len(x)), torch.zeros(len(x))
        recorded = set(geometric_steps(self.iterations, 5.0, 1.3))
        for step in lab.loop(range(self.iterations), f"alpha {alpha:g}"):
            if not len(active):
                continue
            losses = binary_cross_entropy_with_logits(knob(x, initial=initial), y, reduction="none").mean(1)
            shown[active] = losses.detach()
            for place, threshold in enumerate(self.thresholds):
                for row in ((losses <= threshold) & (reached[place, active] < 0)).nonzero()[:, 0].tolist():
                    reached[place, active[row]] = step
                    maps[place, active[row]] = self._map(knob, row)
            if step in recorded:
                lab.log("loss", alpha=alpha, step=step, mean=float(shown.mean()), runs=shown.tolist())
                lab.live(loss=float(shown.mean()))
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            open_rows = (reached[-1, active] < 0).nonzero()[:, 0]
            if len(open_rows) <= 0.75 * len(active):
                for part in (knob.model, knob.start):
                    assert isinstance(part, Ensemble)
                    part.keep(open_rows)
                optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(self.rate))
                active, x, y, initial = active[open_rows], x[open_rows], y[open_rows], initial[open_rows]
        return {"reached": reached, "maps": maps}

    @torch.no_grad()
    def _map(self, knob: AlphaModel, row: int) -> Tensor:
        """Loss of one run at the points of the grid, (points)."""
        points = grid(self.side)
        everywhere = torch.zeros(len(next(knob.parameters())), *points.shape)
        everywhere[row] = points
        outputs = knob(everywhere)[row]
        return binary_cross_entropy_with_logits(outputs, yin_yang_labels(points).float(), reduction="none")

    def _compare(self, lab: Lab, found: list[dict[str, Any]]) -> None:
        steps = torch.stack([one["reached"] for one in found])
        both = (steps >= 0).all(0)
        masks = region_masks(grid(self.side))
        differences: dict[str, list[float]] = {name: [] for name in masks}
        for place, threshold in enumerate(self.thresholds):
            rows = both[place].nonzero()[:, 0]
            count = len(rows)
            lab.log("reached", threshold=threshold, runs=count)
            if not count:
                continue
            delta = (found[0]["maps"][place, rows] - found[1]["maps"][place, rows]).mean(0)
            lab.save_array(f"delta-{threshold:g}", delta.reshape(self.side, self.side))
            for name, mask in masks.items():
                differences[name].append(float(delta[mask].mean()))
                lab.log("region", region=name, threshold=threshold, delta=differences[name][-1])
        last = max((place for place in range(len(self.thresholds)) if both[place].any()), default=None)
        if last is None:
            for claim in self.claims:
                lab.not_tested(claim.id, "no run came to a threshold with both alphas")
            return
        rows = both[last]
        ratio = steps[1, last, rows].double() / steps[0, last, rows].clamp_min(1).double()
        lab.measure("5.1-faster", float(ratio.median()))
        for name in masks:
            lab.measure(f"5.1-{name}", float(np.mean(differences[name])))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figure 5.1, and the differences by region."""
        yield _figure(results)
        yield _regions(results)


def _shown_thresholds(results: Results) -> list[float]:
    table = results.table("reached")
    return [
        threshold
        for threshold in table.distinct("threshold")
        if all(row["runs"] > 0 for row in table.where(threshold=threshold).rows)
    ]


def _weighted_map(results: Results, threshold: float) -> Array:
    """The mean over all runs of all seeds."""
    counts = [results.table("reached", seed=seed, threshold=threshold).rows[0]["runs"] for seed in results.seeds]
    mean: Array = np.average(results.arrays(f"delta-{threshold:g}"), axis=0, weights=counts)
    return mean


def _figure(results: Results) -> Picture:
    thresholds = _shown_thresholds(results)
    figure, ((data, losses, *maps),) = panels(2 + max(len(thresholds), 1), width=2.7, height=3.0)
    _draw_data(data, results.array("points"))
    _draw_losses(losses, results)
    deltas = {threshold: _weighted_map(results, threshold) for threshold in thresholds}
    reach = max((float(np.abs(delta).max()) for delta in deltas.values()), default=1.0)
    for axes, (threshold, delta) in zip(maps, deltas.items(), strict=False):
        image = axes.imshow(delta, origin="lower", extent=(-1, 1, -1, 1), cmap=DIVERGING, vmin=-reach, vmax=reach)
        _outline(axes)
        label(axes, "$x_1$", "", f"training loss {threshold:g}")
        axes.set_yticklabels([])
    if deltas:
        figure.colorbar(image, ax=maps, label="loss, α = 1 minus α = 100 [nats]", shrink=0.85, pad=0.02)
    return Picture(
        "figure-5.1",
        figure,
        "From left to right: the task and the training points of one run; training losses (thin: single runs of one seed; "
        "thick: mean over all runs, a run that has come to the lowest threshold stays there); mean over runs of the "
        "difference of losses at equal training loss. Blue: the non-linear network is better; red: the linear one.",
    )


def _draw_data(axes: Axes, points: Array) -> None:
    side = 200
    classes = yin_yang_labels(grid(side)).reshape(side, side).numpy()
    axes.contourf(
        np.linspace(-1, 1, side),
        np.linspace(-1, 1, side),
        classes,
        levels=[-0.5, 0.5, 1.5],
        alpha=0.25,
        colors=[PALETTE[1], PALETTE[0]],
    )
    own = yin_yang_labels(torch.from_numpy(points)).numpy()
    for value, color, marker in ((0, PALETTE[1], "o"), (1, PALETTE[0], "s")):
        axes.plot(*points[own == value].T, marker, color=color, markersize=3)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
    axes.grid(False)
    label(axes, "$x_1$", "$x_2$", "task")


def _draw_losses(axes: Axes, results: Results) -> None:
    first = results.seeds[0]
    for color, alpha in zip(PALETTE, results.table("loss").distinct("alpha"), strict=False):
        own = results.table("loss", seed=first, alpha=alpha)
        steps = own["step"] + 1
        axes.plot(steps, np.array([row["runs"] for row in own.rows]), color=color, linewidth=0.5, alpha=0.3)
        tables = [results.table("loss", seed=seed, alpha=alpha) for seed in results.seeds]
        length = max(len(table) for table in tables)
        means = [np.pad(table["mean"], (0, length - len(table)), mode="edge") for table in tables]
        longest = max(tables, key=len)
        axes.plot(longest["step"] + 1, np.mean(means, axis=0), color=color, label=f"α = {alpha:g}")
    for threshold in results.table("reached").distinct("threshold"):
        axes.axhline(threshold, color=GRAY, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    label(axes, "iterations + 1", "training loss [nats]", "training")
    legend_below(axes)


def _outline(axes: Axes) -> None:
    """The boundaries of the classes."""
    circle = np.linspace(0, 2 * np.pi, 100)
    axes.axhline(0, color=INK, linewidth=0.7)
    for x, y in YIN_YANG_CENTRES:
        axes.plot(x + YIN_YANG_RADIUS * np.cos(circle), y + YIN_YANG_RADIUS * np.sin(circle), color=INK, linewidth=0.7)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.grid(False)


def _regions(results: Results) -> Picture:
    figure, ((axes,),) = panels(1)
    thresholds = _shown_thresholds(results)
    for color, marker, (region, name) in zip(PALETTE, "osD", REGIONS.items(), strict=False):
        for place, threshold in enumerate(thresholds):
            deltas = results.table("region", region=region, threshold=threshold)["delta"]
            axes.plot(np.full(len(deltas), place), deltas, marker, color=color, alpha=0.4, markersize=4)
            axes.plot([place], [deltas.mean()], marker, color=color, label=name if place == 0 else None, markersize=8)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])
    axes.set_xlim(-0.5, max(len(thresholds), 1) - 0.5)
    label(axes, "training loss [nats]", "loss, α = 1 minus α = 100 [nats]", "where the networks differ")
    legend_below(axes, 3)
    return Picture(
        "regions",
        figure,
        "Mean loss difference in three parts of the map at equal training loss. Large: mean over all runs; small: one seed.",
    )

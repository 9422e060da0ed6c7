"""Sparse regression by a network that is linear in its input: from the kernel regime to the L1 norm by one number."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, legend_beside, panels
from tangentlab.implicit_bias import FlowPotential, distance_potential, least_l1, least_l2, minimum_on


def sparse_problem(features: int, nonzeros: int, samples: int, noise: float, stream: Generator) -> tuple[Tensor, ...]:
    """`X`, `y = X beta + noise` and beta, of norm 1 with equal entries of random signs, in double precision."""
    beta = torch.zeros(features, dtype=torch.float64)
    signs = torch.randint(0, 2, (nonzeros,), generator=stream) * 2 - 1
    beta[:nonzeros] = signs / nonzeros**0.5
    x = torch.randn(samples, features, generator=stream, dtype=torch.float64)
    return x, x @ beta + noise * torch.randn(samples, generator=stream, dtype=torch.float64), beta


@experiment
class SparseRegression(Experiment):
    """`beta = w_+^2 - w_-^2` from `alpha 1`: the limit of its gradient flow, exactly, over alpha."""

    name = "sparse-regression"
    title = "The scale of the start decides between kernel and sparsity"
    question = (
        "A diagonal network can represent every linear predictor, and gradient flow on it finds one that fits. "
        "Which one depends on the scale α of its start: large α behaves as a kernel and finds the least L2 norm, "
        "small α the least L1 norm, which recovers a sparse truth from few samples. How does the error move between "
        "the two, and is it the same as a penalty on the distance from the start?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Sparse Learning"
    claims = claims_of("sparse-regression")
    scales = {"smoke": {"features": 60, "samples": 20, "nonzeros": 2, "alphas": (10.0, 0.1, 1e-3)}, "paper": {}}
    seeds = {"desk": 10, "paper": 10}
    minutes = {"smoke": 0.1, "desk": 1, "paper": 1}
    notes = {"desk": "the slides' own size; they print no numbers, and the scale of the truth is ours (norm 1)"}

    features: int = 1000
    samples: int = 100
    nonzeros: int = 5
    noise: float = 0.1
    alphas: tuple[float, ...] = (10.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-6)

    def cost(self) -> Cost:
        """One step per alpha."""
        return Cost(len(self.alphas), 0.3, 200)

    def run(self, lab: Lab) -> None:
        """Population errors `|beta - beta*|^2` of the flow, of the penalty, and of both limits."""
        x, y, truth = sparse_problem(self.features, self.nonzeros, self.samples, self.noise, lab.generator("data"))
        l1, l2 = least_l1(x, y), least_l2(x, y)

        def error(beta: Tensor) -> float:
            return float((beta - truth).square().sum())

        lab.log("limits", l1=error(l1), l2=error(l2))
        for alpha in lab.loop(list(self.alphas), "scales"):
            flow = minimum_on(x, y, FlowPotential(alpha)).beta
            penalty = minimum_on(x, y, distance_potential(alpha), tolerance=1e-8).beta
            lab.log(
                "errors",
                alpha=alpha,
                flow=error(flow),
                penalty=error(penalty),
                apart=float((flow - penalty).norm() / flow.norm()),
                from_l2=float((flow - l2).norm() / l2.norm()),
                excess=float(flow.abs().sum() / l1.abs().sum()) - 1,
            )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows = sorted(results.table("errors", seed=seed).rows, key=lambda row: -row["alpha"])
        if len(rows) < len(self.alphas):
            return cut_short(self.claims)
        excess = [row["excess"] for row in rows]
        return {
            "S4c-X1-kernel": rows[0]["from_l2"],
            "S4c-X1-rich": rows[0]["flow"] - rows[-1]["flow"],
            "S4c-X1-l1": max(after - before for before, after in zip(excess, excess[1:], strict=False)),
            "S4c-X1-not-yet": excess[-1],
            "S4c-X3-apart": max(row["apart"] for row in rows),
            "S4c-X3-faster": max(row["flow"] - row["penalty"] for row in rows),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Errors over alpha; the potentials of one coordinate."""
        figure, ((left, right),) = panels(2)
        band(left, results.curves("errors", "alpha", "flow"), "flow from α", color=PALETTE[0], marker="o")
        band(
            left, results.curves("errors", "alpha", "penalty"), "penalty on the distance", color=PALETTE[1], marker="s"
        )
        limits = results.table("limits")
        for name, style in (("l2", ":"), ("l1", "--")):
            left.axhline(float(limits[name].mean()), color=GRAY, linestyle=style, label=f"least {name.upper()} norm")
        left.set_xscale("log")
        left.set_yscale("log")
        label(left, "scale of the start α", "|β − β*|²", f"d = {self.features}, {self.samples} samples")
        b = torch.logspace(-2, 4, 200, dtype=torch.float64)
        for name, potential, color in (
            ("q, flow", FlowPotential(1.0), PALETTE[0]),
            ("r, penalty", distance_potential(1.0), PALETTE[1]),
        ):
            values = torch.stack([potential.value(one[None]) for one in b])
            right.plot(b, values / b, color=color, label=name)
        right.set_xscale("log")
        label(right, "b = β / α²", "potential / b", "of one coordinate")
        legend_below(right)
        legend_below(left)
        yield Picture(
            "errors",
            figure,
            "Left: squared error of the interpolant that gradient flow reaches from the scale α, exactly, and of the one that "
            "minimizes the distance of the weights from the start; mean over seeds, all seeds as a band, and both limits. "
            "Right: the two potentials of one coordinate over its size: both are quadratic for small b; for large b the "
            "penalty is proportional to b, an L1 norm, and the flow's grows as b log b, so that it comes to the L1 norm only "
            "logarithmically.",
        )


@experiment
class SampleThresholds(Experiment):
    """The largest alpha from which the flow recovers a sparse truth, over samples and nonzeros."""

    name = "sample-thresholds"
    title = "How small must the start be?"
    question = (
        "From few samples a sparse truth is recovered in the rich regime only. How small does α need to be until the "
        "error is below .025, for several numbers of samples and of nonzeros?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Sparse Learning"
    claims = claims_of("sample-thresholds")
    scales = {
        "smoke": {"features": 60, "samples": (20, 40), "nonzeros": (2, 3), "grid": 7},
        "paper": {},
    }
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.1, "desk": 8, "paper": 8}
    notes = {"desk": "the slides' own size; they show a picture without numbers"}

    features: int = 1000
    samples: tuple[int, ...] = (60, 100, 150, 200, 300)
    nonzeros: tuple[int, ...] = (3, 5, 10)
    noise: float = 0.1
    goal: float = 0.025
    grid: int = 49

    def cost(self) -> Cost:
        """One step per number of samples and of nonzeros."""
        return Cost(len(self.samples) * len(self.nonzeros), 6.0, 300)

    def run(self, lab: Lab) -> None:
        """A grid of alpha from 1 down to 1e-8, until the goal is met."""
        alphas = torch.logspace(0, -8, self.grid, dtype=torch.float64).tolist()
        for nonzeros, samples in lab.loop([(k, m) for k in self.nonzeros for m in self.samples], "settings"):
            stream = lab.generator("data", nonzeros)  # the samples of a larger set begin with those of a smaller one
            x, y, truth = sparse_problem(self.features, nonzeros, max(self.samples), self.noise, stream)
            found = 0.0
            for alpha in alphas:
                beta = minimum_on(x[:samples], y[:samples], FlowPotential(alpha)).beta
                if float((beta - truth).square().sum()) < self.goal:
                    found = alpha
                    break
            lab.log("thresholds", nonzeros=nonzeros, samples=samples, alpha=found)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Differences between neighbours of the table, in decades; a threshold below the grid counts as its end."""
        rows = results.table("thresholds", seed=seed).rows
        if len(rows) < self.cost().steps:
            return cut_short(self.claims)
        size = {(row["nonzeros"], row["samples"]): max(row["alpha"], 1e-8) for row in rows}
        logs = {key: torch.tensor(value).log10().item() for key, value in size.items()}
        few, many = min(self.samples), max(self.samples)
        return {
            "S4c-X2-samples": sum(logs[k, many] - logs[k, few] for k in self.nonzeros) / len(self.nonzeros),
            "S4c-X2-nonzeros": sum(logs[min(self.nonzeros), m] - logs[max(self.nonzeros), m] for m in self.samples)
            / len(self.samples),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Thresholds over the number of samples."""
        figure, ((axes,),) = panels()
        for nonzeros, color in zip(self.nonzeros, PALETTE, strict=False):
            curves = results.curves("thresholds", "samples", "alpha", nonzeros=nonzeros)
            band(axes, curves, str(nonzeros), color=color, marker="o")
        axes.set_yscale("symlog", linthresh=1e-8)
        label(axes, "samples", "largest α with an error below .025", f"d = {self.features}")
        legend_beside(axes, "nonzeros")
        yield Picture(
            "thresholds",
            figure,
            "The largest scale of the start from which the flow's error is below .025, over the number of samples; mean over "
            "seeds, all seeds as a band. 0: not even the smallest α of the grid, 1e-8.",
        )

"""Matrix completion by factors: orthogonal starts of every scale, from entries that stay frozen to the recovered matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import PALETTE, band, label, legend_below, panels
from tangentlab.implicit_bias import (
    follow_flow,
    least_nuclear,
    orthogonal_start,
    product_kernel,
    product_matrix,
)


@experiment
class MatrixCompletion(Experiment):
    """`U V^T` from `U = alpha [I 0]`, `V = alpha [0 I]`, on 60 % of the entries of a matrix of rank 1."""

    name = "matrix-completion"
    title = "Kernel and rich regimes in matrix completion"
    question = (
        "A matrix is fitted to some of its entries by gradient flow on two factors. At an orthogonal start the "
        "tangent kernel couples no entry to any other, so in the kernel regime entries that were not observed stay "
        "what they were. Small starts recover a matrix of low rank. Where is the change, and is the result the "
        "matrix of least nuclear norm?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Kernel and Deep Regimes in Matrix Completion"
    claims = claims_of("matrix-completion")
    scales = {"smoke": {"size": 4, "alphas": (10.0, 0.1)}, "paper": {}}
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.2, "desk": 8, "paper": 8}
    notes = {"desk": "the slides print no sizes: 10 x 10 of rank 1, 60 % of the entries, are ours"}

    size: int = 10
    share: float = 0.6
    alphas: tuple[float, ...] = (10.0, 3.0, 1.0, 0.3, 0.1, 0.01, 1e-3)

    def cost(self) -> Cost:
        """One step per alpha."""
        return Cost(len(self.alphas), 12.0, 300)

    def run(self, lab: Lab) -> None:
        """The flow of every alpha until it fits, and the oracle."""
        n, stream = self.size, lab.generator("data")
        truth = torch.outer(*torch.randn(2, n, generator=stream, dtype=torch.float64))
        truth = truth / truth.norm() * n**0.5
        seen = torch.zeros(n, n, dtype=torch.bool)
        while not bool(seen.any(0).all() and seen.any(1).all()):
            seen = torch.rand(n, n, generator=stream) < self.share
        entries = torch.eye(n * n, dtype=torch.float64)[seen.flatten()]
        oracle = least_nuclear(entries, truth[seen], (n, n), gap=1e-4)
        hidden = truth[~seen].norm()
        for alpha in lab.loop(list(self.alphas), "scales"):
            start = orthogonal_start(n, n, alpha)
            kernel = product_kernel(start, n, n)
            path = follow_flow(
                lambda w: (product_matrix(w, n, n) - truth)[seen].square().sum(),
                start,
                until=1e7,
                loss_below=1e-10,
                tolerance=1e-7,
            )
            found = product_matrix(path.end, n, n)
            lab.log(
                "completion",
                alpha=alpha,
                coupling=float((kernel - kernel.diag().diag()).abs().max() / kernel.diagonal().mean()),
                change=float(found[~seen].norm() / hidden),
                error=float((found - truth)[~seen].norm() / hidden),
                excess=float(torch.linalg.matrix_norm(found, "nuc")) / oracle.lower - 1,
            )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows = sorted(results.table("completion", seed=seed).rows, key=lambda row: -row["alpha"])
        if len(rows) < len(self.alphas):
            return cut_short(self.claims)
        return {
            "S4c-X4-kernel": max(row["coupling"] for row in rows),
            "S4c-X4-frozen": rows[0]["change"],
            "S4c-X4-rich": rows[-1]["change"] - rows[0]["change"],
            "S4c-X4-recovery": rows[0]["error"] - rows[-1]["error"],
            "S4c-X4-nuclear": rows[-1]["excess"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Change and error on what was not observed."""
        figure, ((axes,),) = panels(width=6.0)
        for name, words, color in (
            ("change", "change, not observed", PALETTE[0]),
            ("error", "error, not observed", PALETTE[1]),
            ("excess", "nuclear norm / least − 1", PALETTE[2]),
        ):
            band(axes, results.curves("completion", "alpha", name), words, color=color, marker="o")
        axes.set_xscale("log")
        axes.set_yscale("log")
        label(
            axes,
            "scale of the start α",
            "relative size",
            f"{self.size} x {self.size}, rank 1, {self.share:.0%} observed",
        )
        legend_below(axes, 3)
        yield Picture(
            "completion",
            figure,
            "Gradient flow on both factors until the observed entries fit: how far the other entries moved, how far they are "
            "from the truth (both relative to their size), and how much the nuclear norm exceeds a certified lower bound. Mean "
            "over seeds, all seeds as a band.",
        )

"""The tangent kernel of the emulating network: it knows linear functions only, and yet SGD makes it learn parities."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import PALETTE, heatmap, label, panels
from tangentlab.limits import EmulatingNetwork, Monomials, UniformInputs, accuracy, all_inputs, train_by_sgd
from tangentlab.limits.walsh import degrees, walsh_coefficients
from tangentlab.metrics import NTK


@experiment
class EmulatorKernel(Experiment):
    """Kernel at the start against its formula, its alignment with all parities, and the accuracy after SGD."""

    name = "emulator-kernel"
    title = "First-order analysis says that it cannot learn"
    question = (
        "A linearized network learns what its tangent kernel sees. At its start, the network that emulates "
        "elimination has the kernel 4 κ² (1 + ⟨x, x'⟩): of all parities it sees the constant and the single "
        "coordinates. SGD teaches it all parities. How?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Theorem 2"
    claims = claims_of("emulator-kernel")
    scales = {"smoke": {"n": 4}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 1, "paper": 1}
    notes = {"desk": "the slides say nothing about kernels: these claims are ours"}

    n: int = 8

    def cost(self) -> Cost:
        """The kernel at the start, halfway and at the end."""
        return Cost(3, 5.0, 500)

    def run(self, lab: Lab) -> None:
        """Kernels over all inputs along the training on a parity of three signs."""
        n, samples = self.n, 2 * self.n
        x = all_inputs(n, torch.float64)
        stream = lab.generator("samples")
        function = Monomials(n, 3).sample(1, stream)
        network = EmulatingNetwork("parity", n, samples)
        kappa = 1 / (2 * network.rate)
        seen = UniformInputs(n).sample(samples, stream)
        labels = function.labels(seen)
        for moment, (start, end) in enumerate(lab.loop([(0, 0), (0, n), (n, samples)], "moments")):
            train_by_sgd(network, seen[start:end], labels[start:end], network.rate)
            kernel = NTK(network, x, function=lambda output, batch: output[:, None]).matrix() / (4 * kappa**2)
            for degree, share in enumerate(by_degree(kernel, n).tolist()):
                lab.log("alignment", moment=moment, degree=degree, share=share)
            score = accuracy(network.predict(x), function.labels(x.float()))
            lab.log("moments", moment=moment, stored=end, accuracy=score, trace=float(kernel.trace()) / len(x))
            if moment == 0:
                formula = 1 + x @ x.t()
                lab.log(
                    "start", error=float((kernel - formula).abs().max()), rank=int(torch.linalg.matrix_rank(kernel))
                )
                lab.save_array("kernel", kernel[:64, :64])

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        moments, start = results.table("moments", seed=seed).rows, results.table("start", seed=seed).rows
        if len(moments) < 3 or not start:
            return cut_short(self.claims)
        blind = results.table("alignment", seed=seed).where(moment=0)
        return {
            "S4a-K-formula": start[0]["error"],
            "S4a-K-rank": abs(start[0]["rank"] - self.n - 1),
            "S4a-K-blind": max(row["share"] for row in blind.rows if row["degree"] >= 2),
            "S4a-K-learns": moments[-1]["accuracy"],
            "S4a-K-quiet": moments[-1]["trace"] / moments[0]["trace"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """The kernel, and what it sees."""
        figure, ((left, right),) = panels(2)
        heatmap(left, results.array("kernel"), "kernel / 4 κ²", diverging=True)
        label(left, "input", "input", "at the start")
        shares = results.curves("alignment", "degree", "share", moment=0)
        right.bar(shares.x, shares.mean, color=PALETTE[0])
        label(right, "degree of the parity", "share of the kernel", "which parities it sees")
        yield Picture(
            "kernel",
            figure,
            "Left: the tangent kernel of the emulating network at its start, 64 inputs: 4 κ² (1 + ⟨x, x'⟩). Right: "
            "the share of its trace in parities of each degree: none from degree 2 on. While it trains, f stays 0 "
            "and one block of memory after the other has this kernel; when all are full, no memory edge has a "
            "gradient any more, and f is the parity.",
        )


def by_degree(kernel: Tensor, n: int) -> Tensor:
    """The share of a kernel over all inputs in parities of each degree, `(n + 1,)`: `<chi_S, K chi_S>` over the trace."""
    energy = walsh_coefficients(walsh_coefficients(kernel).t().contiguous()).diagonal()
    total = torch.zeros(n + 1, dtype=kernel.dtype).index_add(0, degrees(n), energy)
    return total / total.sum()

"""Batch size and precision: coarse gradients carry more when they come from few samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short, mean_of
from tangentlab.figures.style import heatmap, label, panels
from tangentlab.limits import Descent, EmulatingNetwork, Monomials, Parities, UniformInputs, accuracy, relu_network


@experiment
class BatchPrecision(Experiment):
    """Bits of the gradient against batch size, on an ordinary network and on the emulating one."""

    name = "batch-precision"
    title = "Few bits need small batches"
    question = (
        "Gradients are clipped and rounded to a few bits. A gradient over many samples is small and may be rounded "
        "away; that of one sample is large and noisy, and survives. How do accuracy, bits and batch size trade on "
        "an ordinary network that learns a product of two signs, and on the network that emulates elimination?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Theorem 2"
    claims = claims_of("batch-precision")
    scales = {
        "smoke": {"n": 5, "steps": 20, "batches": (1, 8), "bits": (2, 6), "emulated": 4, "functions": 1},
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 4}
    notes = {
        "desk": "the slides say poly-precision and no more; the trade-off is that of later papers, the settings are ours"
    }

    n: int = 10
    width: int = 32
    steps: int = 2000
    rate: float = 0.05
    reach: float = 1.0
    batches: tuple[int, ...] = (1, 4, 16, 64, 256)
    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    emulated: int = 8
    functions: int = 3

    def cost(self) -> Cost:
        """One step per batch size and number of bits, on either network."""
        return Cost(2 * len(self.batches) * len(self.bits), 3.0, 500)

    def run(self, lab: Lab) -> None:
        """Both networks over the grid."""
        grid = [(batch, bits) for batch in self.batches for bits in self.bits]
        inputs = UniformInputs(self.n)
        for batch, bits in lab.loop(grid, "an ordinary network"):
            with lab.seeded("model"):
                model = relu_network(self.width)(self.n)
            stream = lab.generator("ordinary", batch, bits)
            function = Monomials(self.n, 2).sample(1, lab.generator("function"))
            options = {"steps": self.steps, "rate": self.rate, "bits": bits, "reach": self.reach}
            Descent(**options, batch=batch).train(model, function, inputs, stream)  # type: ignore[arg-type]
            x = inputs.sample(2000, stream)
            with torch.no_grad():
                score = accuracy(model(x), function.labels(x))
            lab.log("accuracy", network="ordinary", batch=batch, bits=bits, accuracy=score)
        for batch, bits in lab.loop(grid, "the emulating network"):
            scores = [self._emulated(lab, batch, bits, k) for k in range(self.functions)]
            lab.log("accuracy", network="emulating", batch=batch, bits=bits, accuracy=float(np.mean(scores)))

    def _emulated(self, lab: Lab, batch: int, bits: int, number: int) -> float:
        """Elimination with gradients whose largest entry is that of a memory edge, 1 / gamma."""
        n = self.emulated
        network = EmulatingNetwork("parity", n, 2 * n)
        stream = lab.generator("emulated", batch, bits, number)
        function = Parities(n).sample(1, stream)
        learner = Descent(steps=2 * n, rate=network.rate, batch=batch, bits=bits, reach=1 / network.rate)
        learner.train(network, function, UniformInputs(n), stream)
        x = UniformInputs(n).sample(200, stream)
        return accuracy(network.predict(x), function.labels(x))

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Corners of the grids."""
        table = results.table("accuracy", seed=seed)
        if len(table) < self.cost().steps:
            return cut_short(self.claims)
        coarse, fine = min(self.bits), max(self.bits)
        small, large = min(self.batches), max(self.batches)

        def at(network: str, batch: int, bits: int) -> float:
            return float(table.where(network=network, batch=batch, bits=bits)["accuracy"][0])

        batches = [at("emulating", batch, bits) for batch in self.batches if batch > 1 for bits in self.bits]
        return {
            "S4a-P-trade": at("ordinary", small, coarse) - at("ordinary", large, coarse),
            "S4a-P-fine": at("ordinary", large, fine),
            "S4a-P-emulated": min(at("emulating", 1, bits) for bits in self.bits),
            "S4a-P-emulated-batches": abs(float(np.mean(batches)) - 0.5),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Two heat maps."""
        figure, ((left, right),) = panels(2)
        for axes, network, title in (
            (left, "ordinary", "ReLU network, product of 2"),
            (right, "emulating", "emulating network, parities"),
        ):
            table = results.table("accuracy", network=network)
            values = [[mean_of(table.where(batch=b, bits=k), "accuracy") for b in self.batches] for k in self.bits]
            heatmap(axes, values, "accuracy", vmin=0.45, vmax=1.0, origin="lower")
            axes.set_xticks(range(len(self.batches)), [str(b) for b in self.batches])
            axes.set_yticks(range(len(self.bits)), [str(k) for k in self.bits])
            label(axes, "samples per step", "bits of the gradient", title)
        yield Picture(
            "trade-off",
            figure,
            "Accuracy over batch size and bits of the gradient, mean over seeds. Left: with few bits an ordinary "
            "network learns from small batches only, as gradients over many samples are rounded away. Right: the "
            "emulating network needs batches of one sample, and then two bits are enough.",
        )

"""SGD with one sample per step makes a network run Gaussian elimination; gradient descent teaches it nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, label, legend_below, panels
from tangentlab.limits import EmulatingNetwork, Monomials, Parities, UniformInputs, accuracy, all_inputs, train_by_sgd

NOISE_UNIT = "γ / √(T n)"


@experiment
class SGDEmulation(Experiment):
    """Batch 1 at n = 10, 20, 40 with and without noise; batches, exact gradients, rates, noises and float32 at n = 10."""

    name = "sgd-emulation"
    title = "SGD learns parities, gradient descent on the same network does not"
    question = (
        "There is a network of plateau units, every gate a weighted edge, whose training by plain SGD with one "
        "sample per step is a run of Gaussian elimination: each step writes a sample into the weights. Does it "
        "learn parities from 2 n samples, how much noise does it stand, and what becomes of it with larger batches?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Theorem 2 and Corollary"
    claims = claims_of("sgd-emulation")
    scales = {
        "smoke": {
            "sizes": (5, 6),
            "functions": 2,
            "batches": (1, 2, 8),
            "rates": (0.25, 16.0),
            "noises": (0.1, 1.0),
            "singles": (4,),
            "exact": 5,
            "sweep": 5,
            "test": 50,
        },
        "paper": {},
    }
    seeds = {"desk": 2, "paper": 2}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 4}
    notes = {
        "desk": "the slides show the construction as a picture only: this one, which stores all samples first, is ours"
    }

    sizes: tuple[int, ...] = (10, 20, 40)
    functions: int = 5
    test: int = 200
    sweep: int = 10
    exact: int = 10
    batches: tuple[int, ...] = (1, 2, 3, 4, 8, 32, 256)
    rates: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0, 32.0, 64.0, 128.0)
    noises: tuple[float, ...] = (0.05, 0.1, 0.25, 0.35, 0.5, 1.0)
    singles: tuple[int, ...] = (8, 12, 16, 20, 24)

    def cost(self) -> Cost:
        """One step per size and noise, batch, rate, noise level and size in float32, and one for exact gradients."""
        steps = 2 * len(self.sizes) + len(self.batches) + len(self.rates) + len(self.noises) + len(self.singles) + 1
        return Cost(steps, 6.0, 900)

    def run(self, lab: Lab) -> None:
        """Everything on random parities."""
        for n, noise in lab.loop([(n, noise) for n in self.sizes for noise in (0.0, 0.1)], "sizes"):
            for k in range(self.functions if n <= 20 else 2):
                self._learn(lab, "sizes", n, k, noise=noise)
        for batch in lab.loop(self.batches, "batches"):
            for k in range(2 * self.functions if batch <= 32 else self.functions):
                self._learn(lab, "batches", self.sweep, k, batch=batch)
        standard = EmulatingNetwork("parity", self.sweep, 2 * self.sweep).rate
        for factor in lab.loop(self.rates, "rates"):
            for k in range(self.functions):
                self._learn(lab, "rates", self.sweep, k, rate=factor * standard, factor=factor)
        for noise in lab.loop(self.noises, "noises"):
            for k in range(self.functions):
                self._learn(lab, "noises", self.sweep, k, noise=noise)
        for n in lab.loop(self.singles, "float32"):
            for k in range(self.functions):
                self._learn(lab, "float32", n, k, dtype=torch.float32)
        for _ in lab.loop(range(1), "exact gradients"):
            self._population(lab)

    def _learn(
        self,
        lab: Lab,
        table: str,
        n: int,
        number: int,
        *,
        noise: float = 0.0,
        batch: int = 1,
        rate: float | None = None,
        factor: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """One network and one parity; noise in units of gamma / sqrt(T n)."""
        generator = lab.generator(table, n, number)
        function = Parities(n).sample(1, generator)
        inputs = UniformInputs(n)
        network = EmulatingNetwork("parity", n, 2 * n, rate=rate, dtype=dtype)
        x = inputs.sample(2 * n * batch, generator)
        unit = network.rate / math.sqrt(2 * n * n)
        began = time.perf_counter()
        train_by_sgd(network, x, function.labels(x), network.rate, batch=batch, noise=noise * unit, generator=generator)
        seconds = time.perf_counter() - began
        new = inputs.sample(self.test, generator)
        score = accuracy(network.predict(new), function.labels(new))
        row = {"n": n, "noise": noise, "batch": batch, "factor": factor, "accuracy": score, "seconds": seconds}
        lab.log(table, **row, gates=network.size["gates"], edges=network.size["edges"], levels=network.size["levels"])

    def _population(self, lab: Lab) -> None:
        """Exact gradients over all inputs, for parities of two coordinates and more."""
        n = self.exact
        x = all_inputs(n)
        for k in (2, 3, n):
            labels = Monomials(n, k).sample(1, lab.generator("exact", k)).labels(x)
            network = EmulatingNetwork("parity", n, 2 * n)
            repeats = 10
            train_by_sgd(network, x.repeat(repeats, 1), labels.repeat(repeats), network.rate, batch=len(x))
            lab.log("exact", k=k, accuracy=accuracy(network.predict(x), labels))

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        tables = {name: results.table(name, seed=seed).rows for name in ("sizes", "batches", "exact")}
        if not all(tables.values()) or {row["n"] for row in tables["sizes"]} != set(self.sizes):
            return cut_short(self.claims)
        sizes = tables["sizes"]
        small, large = (next(row for row in sizes if row["n"] == n) for n in (min(self.sizes), max(self.sizes)))
        worst = 0.0
        for batch in self.batches:
            found = torch.tensor([row["accuracy"] for row in tables["batches"] if row["batch"] == batch])
            if batch > 1 and len(found) > 1:
                chance = 0.5 / math.sqrt(self.test * len(found))
                worst = max(worst, abs(float(found.mean()) - 0.5) / max(chance, float(found.std()) / len(found) ** 0.5))
        return {
            "S4a-X4-learns": min(row["accuracy"] for row in sizes if row["noise"] == 0),
            "S4a-X4-noise": min(row["accuracy"] for row in sizes if row["noise"] > 0),
            "S4a-X4-descent": max(abs(row["accuracy"] - 0.5) for row in tables["exact"]),
            "S4a-X4-batches": worst,
            "S4a-X4-size": math.log(large["edges"] / small["edges"]) / math.log(large["n"] / small["n"]),
            "S4a-X4-time": max(row["seconds"] for row in sizes),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Where it learns and where it fails."""
        figure, ((first, second, third),) = panels(3)
        sweeps = (
            (first, "batches", "batch", "samples per step", "batch size"),
            (second, "rates", "factor", "rate × 16 T² n", "learning rate"),
            (third, "noises", "noise", f"noise on every edge [{NOISE_UNIT}]", "noise"),
        )
        for axes, table, column, name, title in sweeps:
            rows = results.table(table)
            places = sorted(rows.distinct(column))
            for place in places:
                values = rows.where(**{column: place})["accuracy"]
                axes.plot([place] * len(values), values, ".", color=PALETTE[0], alpha=0.5)
            axes.plot(places, [rows.where(**{column: p})["accuracy"].mean() for p in places], color=PALETTE[0])
            axes.axhline(0.5, color=GRAY, linestyle=":")
            axes.set_xscale("log")
            axes.set_ylim(0.38, 1.03)
            label(axes, name, "accuracy", title)
        yield Picture(
            "thresholds",
            figure,
            f"The accuracy on new inputs after one pass over 2 n samples of a random parity of n = {self.sweep} "
            "signs: every point is a parity, lines are means. One sample per step teaches this network, two or more "
            "do not; it stands rates of some tens of times 1 / (16 T² n) and Gaussian noise on all edges after every "
            "step up to a quarter of γ / √(T n).",
        )
        yield self._growth(results)

    def _growth(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        rows = results.table("sizes", noise=0.0)
        sizes = sorted(rows.distinct("n"))
        for column, color in (("edges", PALETTE[0]), ("gates", PALETTE[1]), ("levels", PALETTE[2])):
            left.plot(sizes, [rows.where(n=n)[column].mean() for n in sizes], marker="o", color=color, label=column)
        left.set_yscale("log")
        left.set_xscale("log")
        left.set_xticks(sizes, [str(n) for n in sizes])
        left.minorticks_off()
        label(left, "n", "number", "the network")
        legend_below(left, 3)
        single = results.table("float32")
        for name, table, color in (("float64", rows, PALETTE[0]), ("float32", single, PALETTE[4])):
            places = sorted(table.distinct("n"))
            worst = [table.where(n=n)["accuracy"].min() for n in places]
            right.plot(places, worst, marker="o", color=color, label=name)
        right.set_ylim(0.38, 1.03)
        label(right, "n", "smallest accuracy", "precision")
        legend_below(right, 2)
        return Picture(
            "size",
            figure,
            "Left: size of the network that emulates elimination on 2 n samples: about the cube of n. Right: the "
            "smallest accuracy over parities and seeds with weights in double and in single precision.",
        )

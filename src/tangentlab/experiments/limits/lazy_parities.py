"""Parities of few signs in the lazy and in the feature-learning regime: one network, one knob."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_beside, panels
from tangentlab.limits import accuracy, all_inputs, relu_network, squared_loss
from tangentlab.linearized import AlphaModel


@experiment
class LazyParities(Experiment):
    """Products of 1 to 4 out of 10 signs, learnt from 400 samples by `alpha (f - f0)` for several alpha."""

    name = "lazy-parities"
    title = "Features learn products of signs, kernels do not"
    question = (
        "A product of k signs is a function of k coordinates out of n. A network that learns features can find "
        "them; a network that stays linear in its parameters learns by a kernel that treats all coordinates alike, "
        "and would need as many samples as there are products. How does the accuracy from a few hundred samples "
        "change along the knob between the two?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Corollary of Theorem 1"
    claims = claims_of("lazy-parities")
    scales = {
        "smoke": {"n": 6, "samples": 30, "width": 16, "steps": 20, "degrees": (1, 2), "alphas": (1.0, 100.0)},
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 4}
    notes = {"desk": "the slides have no experiments and say nothing about lazy training: all claims are ours"}

    n: int = 10
    samples: int = 400
    width: int = 128
    steps: int = 5000
    rate: float = 0.1
    degrees: tuple[int, ...] = (1, 2, 3, 4)
    alphas: tuple[float, ...] = (1.0, 10.0, 100.0)

    def cost(self) -> Cost:
        """One step per degree and alpha."""
        return Cost(len(self.degrees) * len(self.alphas), 8.0, 500)

    def run(self, lab: Lab) -> None:
        """Full-batch gradient descent with rate eta / alpha^2, outputs alpha (f - f0)."""
        x = all_inputs(self.n)
        order = torch.randperm(len(x), generator=lab.generator("split"))
        seen, rest = order[: self.samples], order[self.samples :]
        for k, alpha in lab.loop([(k, alpha) for k in self.degrees for alpha in self.alphas], "trainings"):
            y = x[:, :k].prod(1)
            with lab.seeded("model"):
                network = relu_network(self.width)(self.n)
            model = AlphaModel(network.eval(), alpha, offset=False)
            start = model.initial_outputs(x)
            optimizer = torch.optim.SGD(model.model.parameters(), lr=self.rate / alpha**2)
            for _ in range(self.steps):
                optimizer.zero_grad()
                loss = squared_loss(model(x[seen], initial=start[seen])[:, 0], y[seen]).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                outputs = model(x, initial=start)[:, 0]
            scores = {"train": accuracy(outputs[seen], y[seen]), "test": accuracy(outputs[rest], y[rest])}
            lab.log("accuracy", k=k, alpha=alpha, loss=loss.item(), **scores)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """The two ends of the knob."""
        table = results.table("accuracy", seed=seed)
        if len(table) < self.cost().steps:
            return cut_short(self.claims)
        rich, lazy = (table.where(alpha=alpha) for alpha in (min(self.alphas), max(self.alphas)))
        found: dict[str, float | str] = {"S4a-L-linear": float(lazy.where(k=1)["test"][0])}
        found["S4a-L-fitted"] = float(min(rich["train"]))
        for k in (2, 3):
            name = {2: "S4a-L-two", 3: "S4a-L-three"}[k]
            if k in self.degrees:
                found[name] = float(rich.where(k=k)["test"][0] - lazy.where(k=k)["test"][0])
            else:
                found[name] = f"needs the degree {k}"
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """Test accuracy over the degree."""
        figure, ((axes,),) = panels()
        for alpha, color in zip(results.table("accuracy").distinct("alpha"), PALETTE, strict=False):
            band(axes, results.curves("accuracy", "k", "test", alpha=alpha), f"α = {alpha:g}", color=color, marker="o")
        axes.axhline(0.5, color=GRAY, linestyle=":")
        axes.set_xticks(self.degrees)
        label(axes, "signs in the product", "test accuracy", f"n = {self.n}, {self.samples} samples")
        legend_beside(axes, "lazy for large α")
        yield Picture(
            "lazy",
            figure,
            "Test accuracy on products of k signs after training α (f − f₀) with the rate η / α²: α = 1 learns "
            "features, large α is the linearized network. Mean over seeds, all seeds as a band.",
        )

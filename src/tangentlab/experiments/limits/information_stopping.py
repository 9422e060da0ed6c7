"""Early stopping by the information space: no example held out, against the best point in hindsight and against validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, label_noise
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Minibatches, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, batched, cross_entropy, follow, for_trial, image_data
from tangentlab.experiments.limits._measures import cut_short, share_right
from tangentlab.figures.style import GRAY, PALETTE, label, legend_below, panels
from tangentlab.linearized import InformationSpace, information_space
from tangentlab.models import LeNet5
from tangentlab.recorder import Geometric, Patience

LOSSES = ("squared", "cross-entropy")
NAMES = {"mlp": "MLP 784-512-10", "lenet": "LeNet"}
CHECKS = Geometric(5, 1.15)
"""As `InformationStopping` has it by default."""


def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Half the mean squared distance from one-hot labels."""
    outputs = model(batch[0])
    return 0.5 * (outputs - torch.eye(outputs.shape[1])[batch[1]]).square().sum(1).mean()


@experiment
class InformationStoppingRule(Experiment):
    """Two networks on noisy MNIST labels with both losses: where the rule stops, and what it misses."""

    name = "information-stopping"
    title = "Noisy labels: when to stop, without held-out data"
    question = (
        "With noisy labels a network learns the true ones first and the noise later, so there is a best moment to stop. The "
        "error in the 50 leading directions of the tangent kernel at the start falls, and rises again when noise is learnt: "
        "how good is the moment at which it is smallest, against the best in hindsight, and against validation on 20 % of "
        "the same noisy labels, which are then missing in the training?\n\nr, patience and the step sizes were fixed "
        "beforehand, after a trial with noise 0.2, 0.4 and 0.6 and one seed of the MLP."
    )
    chapter = Chapter.LIMITS
    place = "slides of Soltanolkotabi, Experiment II - Early stopping and robustness"
    claims = claims_of("information-stopping")
    scales = {
        "smoke": {
            "data": "digits",
            "nets": ("mlp",),
            "images": 200,
            "test": 100,
            "probe": 100,
            "noises": (0.2, 0.6),
            "epochs": 4,
            "batch": 50,
            "dimensions": (5, 50, 80),
        },
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.2, "desk": 45, "paper": 45}
    notes = {
        "desk": "the slides show a picture without numbers, so all thresholds are ours. Noise .1, .2, .4 and .6; plain SGD "
        "with batches of 100 for 20 epochs, LeNet at twice the step size (three times with cross-entropy); 3,000 test images; "
        "the kernel is that of 2,000 of the 10,000 training images."
    }

    data: str = "mnist"
    nets: tuple[str, ...] = ("mlp", "lenet")
    images: int = 10_000
    test: int = 3_000
    probe: int = 2_000
    noises: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6)
    dimension: int = 50
    dimensions: tuple[int, ...] = (10, 25, 50, 100, 200)
    patience: float = 0.5
    least: int = 100
    held_out: float = 0.2
    epochs: int = 20
    batch: int = 100
    rates: tuple[float, float] = (0.05, 0.1)
    lenet_rates: tuple[float, float] = (0.1, 0.3)
    factors: tuple[float, ...] = (0.25, 4.0)
    factor_noise: float = 0.4

    def steps(self) -> int:
        """Updates of a training on all images."""
        return self.epochs * (self.images // self.batch)

    def cost(self) -> Cost:
        """Updates of all trainings, those with held-out labels among them."""
        validated = round((1 - self.held_out) * self.images) // self.batch * self.epochs
        grid = len(LOSSES) * len(self.noises) * len(self.nets)
        return Cost((grid + len(LOSSES) * len(self.factors)) * self.steps() + grid * (validated + 1), 0.015, 2000)

    def run(self, lab: Lab) -> None:
        """A kernel for every network, then all trainings."""
        train, test = image_data(lab, self.data, 28, for_trial(lab, self.images))
        test = test.first(min(self.test, len(test)))
        for net in self.nets:
            space = self._space(lab, net, train)
            for loss, noise in lab.loop(list(product(LOSSES, self.noises)), f"trainings of {NAMES[net]}"):
                noisy, _ = label_noise(train, noise, lab.generator("noise", f"{noise:g}"))
                self._train(lab, net, loss, noise, 1.0, noisy, test, space)
                self._validated(lab, net, loss, noise, noisy, test)
        noisy, _ = label_noise(train, self.factor_noise, lab.generator("noise", f"{self.factor_noise:g}"))
        for loss, factor in product(LOSSES, self.factors):
            self._train(lab, "mlp", loss, self.factor_noise, factor, noisy, test, self._space(lab, "mlp", train))

    def _fresh(self, lab: Lab, net: str, train: Dataset) -> nn.Module:
        with lab.seeded("model", net):
            if net == "lenet":
                return LeNet5(1, train.inputs.shape[-1], 10)
            size = train.inputs[0].numel()
            return nn.Sequential(nn.Flatten(), nn.Linear(size, 512), nn.ReLU(), nn.Linear(512, 10))

    def _space(self, lab: Lab, net: str, train: Dataset) -> InformationSpace:
        some = train.inputs[: self.probe]
        most = min(max(self.dimensions), len(some))
        return information_space(
            self._fresh(lab, net, train), batched(some, 500), most, outputs="trace", method="gram", progress=False
        )

    def _descend(
        self,
        lab: Lab,
        table: str,
        net: str,
        loss: str,
        data: Dataset,
        measure: Callable[..., Row],
        **facts: float,
    ) -> None:
        model = self._fresh(lab, net, data)
        rates = self.lenet_rates if net == "lenet" else self.rates
        rate = rates[LOSSES.index(loss)] * facts.get("factor", 1.0)
        steps = self.epochs * (len(data) // min(self.batch, len(data)))
        follow(
            lab,
            table,
            model,
            Minibatches(data, min(self.batch, len(data)), lab.seed),
            torch.optim.SGD(model.parameters(), lr=rate),
            steps,
            [0, *CHECKS.between(0, steps)],
            measure,
            loss=squared if loss == "squared" else cross_entropy,
            name=f"{table} {net} {loss} {facts}",
            net=net,
            loss_name=loss,
            **facts,
        )

    def _train(
        self,
        lab: Lab,
        net: str,
        loss: str,
        noise: float,
        factor: float,
        data: Dataset,
        test: Dataset,
        space: InformationSpace,
    ) -> None:
        """On all images; at every look the test accuracy and the error in the leading directions."""
        labels, inputs = torch.eye(10)[data.targets[: self.probe]], data.inputs[: self.probe]

        def measure(training) -> Row:  # type: ignore[no-untyped-def]
            with torch.no_grad():
                outputs = training.model(inputs)
                right = share_right(training.model(test.inputs), test.targets)
            residual = (outputs if loss == "squared" else outputs.softmax(1)) - labels
            parts = {f"r{r}": _information(space, r, residual) for r in self.dimensions if r <= len(space)}
            return {"test": right, "fitted": share_right(outputs, data.targets[: self.probe]), **parts}

        self._descend(lab, "whole", net, loss, data, measure, noise=noise, factor=factor)

    def _validated(self, lab: Lab, net: str, loss: str, noise: float, data: Dataset, test: Dataset) -> None:
        """On 80 % of the images; at every look the share of wrong answers on the rest, as labelled."""
        kept = len(data) - round(self.held_out * len(data))
        part, rest = data.first(kept), data.take(torch.arange(kept, len(data)))

        def measure(training) -> Row:  # type: ignore[no-untyped-def]
            with torch.no_grad():
                wrong = 1 - share_right(training.model(rest.inputs), rest.targets)
                return {"test": share_right(training.model(test.inputs), test.targets), "wrong": wrong}

        self._descend(lab, "validated", net, loss, part, measure, noise=noise)

    def gaps(self, results: Results, seed: int, rule: str, **which: float | str) -> list[float]:
        """Best test accuracy in hindsight less that of the rule, for every noise: `rule` is "wrong" or a column "r50"."""
        found = []
        for noise in self.noises:
            facts = {"seed": seed, "noise": noise, **which}
            whole = results.table("whole", **{"factor": 1.0, **facts}).rows
            rows = whole if rule != "wrong" else results.table("validated", **facts).rows
            if whole and rows:
                found.append(max(row["test"] for row in whole) - self.stopped(rows, rule)["test"])
        return found

    def stopped(self, rows: Sequence[Row], column: str) -> Row:
        """The row that the rule takes."""
        rule, best = Patience(self.patience, self.least), rows[0]
        for row in rows:
            if rule.improved(row["step"], row[column]):
                best = row
            if rule.exhausted(row["step"]):
                break
        return best

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Means and maxima over networks, losses and noise."""
        pairs = list(product(self.nets, LOSSES))
        whole = results.table("whole", seed=seed).rows
        wanted = len(pairs) * len(self.noises) + len(LOSSES) * len(self.factors)
        ends = [row for row in whole if row["step"] == self.steps()]
        if len(ends) < wanted:
            return cut_short(self.claims)

        def all_gaps(rule: str) -> list[float]:
            return [gap for net, loss in pairs for gap in self.gaps(results, seed, rule, net=net, loss_name=loss)]

        own, validated, many = all_gaps(f"r{self.dimension}"), all_gaps("wrong"), all_gaps(f"r{self.dimensions[-1]}")
        others = []
        for loss, factor in product(LOSSES, self.factors):
            rows = results.table("whole", seed=seed, loss_name=loss, factor=factor).rows
            others.append(max(row["test"] for row in rows) - self.stopped(rows, f"r{self.dimension}")["test"])
        high = [row for row in ends if row["noise"] >= 0.4 and row["factor"] == 1.0]
        lost = [max(r["test"] for r in whole if _same(r, row)) - row["test"] for row in high]
        return {
            "S4b-STOP-needed": sum(lost) / len(lost),
            "S4b-STOP-mean": sum(own) / len(own),
            "S4b-STOP-worst": max(own),
            "S4b-STOP-validation": (sum(validated) - sum(own)) / len(own),
            "S4b-STOP-many": max(many) - max(own),
            "S4b-STOP-rates": max(others),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """One training in detail, and gaps by rule and by r."""
        yield self._training(results)
        yield self._gaps(results)

    def _training(self, results: Results) -> Picture:
        figure, axes = panels(2)
        for panel, loss in zip(axes[0], LOSSES, strict=True):
            rows = results.table(
                "whole", seed=results.seeds[0], net="mlp", loss_name=loss, factor=1.0, noise=self.noises[-1]
            ).rows
            steps = [row["step"] + 1 for row in rows]
            panel.plot(steps, [row["test"] for row in rows], color=PALETTE[0], label="test accuracy")
            for r, style in ((self.dimension, "-"), (self.dimensions[-1], ":")):
                values = [row[f"r{r}"] for row in rows]
                panel.plot(
                    steps,
                    [v / values[0] for v in values],
                    color=PALETTE[1],
                    linestyle=style,
                    label=f"error in {r} directions",
                )
            panel.axvline(
                self.stopped(rows, f"r{self.dimension}")["step"] + 1, color=GRAY, linestyle="--", label="chosen"
            )
            panel.set_xscale("log")
            label(panel, "updates + 1", "accuracy; error over that at the start", f"{loss}, noise {self.noises[-1]:g}")
            legend_below(panel)
        return Picture(
            "training",
            figure,
            f"The MLP with the most noise, one seed: test accuracy, and the error in the {self.dimension} and the "
            f"{self.dimensions[-1]} leading directions of the initial kernel. Dashed: the moment that the rule takes.",
        )

    def _gaps(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        pairs = list(product(self.nets, LOSSES))
        for place, rule in enumerate((f"r{self.dimension}", "wrong")):
            for x, (net, loss) in enumerate(pairs):
                found = [
                    100 * gap
                    for seed in results.ended
                    for gap in self.gaps(results, seed, rule, net=net, loss_name=loss)
                ]
                name = ("information space", "validation on noisy labels")[place]
                left.plot(
                    [x + 0.25 * place] * len(found),
                    found,
                    "o",
                    color=PALETTE[place],
                    markersize=4,
                    label=name if x == 0 else None,
                )
        left.set_xticks([x + 0.12 for x in range(len(pairs))], [f"{net}\n{loss}" for net, loss in pairs], fontsize=7)
        label(left, "network and loss", "behind hindsight [points]", "all noises and seeds")
        legend_below(left)
        for color, (net, loss) in zip(PALETTE, pairs, strict=False):
            dimensions = [r for r in self.dimensions if f"r{r}" in results.table("whole").rows[0]]
            worst = [
                max(
                    (
                        100 * gap
                        for s in results.ended
                        for gap in self.gaps(results, s, f"r{r}", net=net, loss_name=loss)
                    ),
                    default=0.0,
                )
                for r in dimensions
            ]
            right.plot(dimensions, worst, "o-", color=color, label=f"{net}, {loss}")
        right.set_xscale("log")
        right.set_xticks(self.dimensions, [str(r) for r in self.dimensions])
        right.minorticks_off()
        label(right, "directions r", "largest gap [points]", "sensitivity to r")
        legend_below(right)
        return Picture(
            "gaps",
            figure,
            "Test accuracy at the best moment in hindsight less that at the chosen one. Left: the rule, and validation on 20 % "
            "of the noisy labels (which are missing in its training); one point per noise and seed. Right: the largest gap "
            "over noises and seeds for other r.",
        )


def _information(space: InformationSpace, r: int, residual: Tensor) -> float:
    """As `InformationStopping` has it."""
    return float(space.leading(r).split(residual.T).information.norm())


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("net", "loss_name", "noise", "factor"))

"""Table 5.3: classifiers whose codes carry little information about the image, by MINE, by DVB, or only by noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Game,
    Lab,
    Minibatches,
    OnPeriod,
    Picture,
    Player,
    Results,
    experiment,
    play,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import some_of
from tangentlab.experiments.information._games import Information
from tangentlab.experiments.information._measures import last_rows
from tangentlab.figures.style import INK, label, panels
from tangentlab.information import (
    AdditiveEncoder,
    Concatenated,
    DonskerVaradhan,
    GaussianEncoder,
    PropagatedEncoder,
    score_pairs,
)


class Row(NamedTuple):
    """A row of the table: its title, the paper's error in percent, the kind of encoder, and what holds information back."""

    title: str
    published: float | None
    encoder: str
    penalty: str = ""


ROWS = {
    "baseline": Row("baseline", 1.38, "plain"),
    "dropout": Row("dropout", 1.34, "plain", "dropout"),
    "dvb": Row("DVB", 1.13, "gaussian", "rate"),
    "dvb-noise": Row("DVB + additive noise", 1.06, "noisy gaussian", "rate"),
    "gaussian": Row("MINE (Gaussian)", 1.11, "gaussian", "mine"),
    "propagated": Row("MINE (propagated)", 1.10, "propagated", "mine"),
    "additive": Row("MINE (additive)", 1.01, "additive", "mine"),
    "noise-only": Row("additive noise only", None, "additive"),
}


class BottleneckTurn:
    """`cross-entropy + beta I(X; Z)`: the statistics network moves, then encoder and decoder together."""

    def __init__(self, penalty: str, beta: float) -> None:
        self.penalty, self.beta = penalty, beta
        self.information = Information(1.0 if penalty == "mine" else 0.0)

    def __call__(self, players: Mapping[str, Player], batch: tuple[Tensor, ...]) -> None:
        x, targets = batch
        encoder, decoder = players["network"].models
        code = encoder(x)
        loss = cross_entropy(decoder(code.z), targets)
        if self.penalty == "rate":
            loss = loss + self.beta * code.rate.mean()
        if self.penalty == "mine":
            self.information.estimate(players, x, code.z)
            scores = score_pairs(players["statistics"].model, x, code.z, "deranged")
            loss = loss + self.beta * DonskerVaradhan()(scores)
        players["network"].move(loss)


@experiment
class InformationBottleneck(Experiment):
    """Every row of the table from the same images; the seed draws weights and noise."""

    name = "information-bottleneck"
    title = "The information bottleneck on digits"
    question = (
        "A classifier of digits, seen as 784 numbers, gets a noisy code whose information about the image is kept small: by "
        "MINE with three encoders, by the variational bound of DVB, or not at all. What is its error on test images?"
    )
    chapter = Chapter.INFORMATION
    place = "table 5.3"
    claims = claims_of("information-bottleneck")
    scales = {
        "smoke": {"dataset": "digits", "images": 200, "epochs": 2, "width": 16, "latent": 8, "period": 1},
        "paper": {"images": 60_000, "epochs": 200, "width": 1024, "rate": 1e-4, "period": 10},
    }
    seeds = {"desk": 5, "paper": 10}
    minutes = {"smoke": 0.2, "desk": 60, "paper": 6000}
    notes = {
        "desk": "10,000 images, 30 epochs, 512 units, learning rate 5e-4, no averaging of weights; the paper has 60,000 "
        "images, about 200 epochs and 1,024 units. Confidence penalty and label smoothing are left out."
    }

    dataset: str = "mnist"
    images: int = 10_000
    batch: int = 100
    epochs: int = 30
    period: int = 5
    width: int = 512
    latent: int = 256
    beta: float = 1e-3
    sigma: float = 0.3
    rate: float = 5e-4

    def cost(self) -> Cost:
        """Turns of all rows."""
        return Cost(len(ROWS) * self.epochs * (self.images // self.batch), 0.02, 600)

    def run(self, lab: Lab) -> None:
        """All rows on the same images."""
        data, test = some_of(lab.dataset(self.dataset), self.images), lab.dataset(self.dataset, "test")
        for name, row in ROWS.items():
            with lab.seeded("players"):
                players = self._players(row, data.inputs[0].numel(), data.classes or 10)
            self._play(lab, name, row, players, Minibatches(data, self.batch, lab.seed), tuple(test))

    def _players(self, row: Row, features: int, classes: int) -> dict[str, Player]:
        hidden = (self.width, self.width)
        makers: dict[str, Callable[[], nn.Module]] = {
            "plain": lambda: AdditiveEncoder(features, hidden, self.latent, 0.0),
            "additive": lambda: AdditiveEncoder(features, hidden, self.latent, self.sigma),
            "propagated": lambda: PropagatedEncoder(features, hidden, self.latent),
            "gaussian": lambda: GaussianEncoder(features, hidden, self.latent),
            "noisy gaussian": lambda: GaussianEncoder(features, hidden, self.latent, self.sigma),
        }
        linear = nn.Linear(self.latent, classes)
        decoder = nn.Sequential(nn.Dropout(0.5), linear) if row.penalty == "dropout" else linear
        adam = {"lr": self.rate, "betas": (0.5, 0.999)}
        players = {"network": Player.adam(makers[row.encoder](), decoder, **adam)}  # type: ignore[arg-type]
        if row.penalty == "mine":
            units = min(512, self.width)
            statistics = Concatenated(features, self.latent, (units, units), "elu", noise=(0.3, 0.5, 0.5))
            players["statistics"] = Player.adam(statistics, **adam)  # type: ignore[arg-type]
        return players

    def _play(
        self, lab: Lab, name: str, row: Row, players: dict[str, Player], batches: Minibatches, test: tuple[Tensor, ...]
    ) -> None:
        network = players["network"]

        def decay(game: Game) -> None:
            """The rate falls by 3 % every two epochs (Alemi et al. 2016)."""
            if game.step:
                for group in network.optimizer.param_groups:
                    group["lr"] *= 0.97

        def record(game: Game) -> None:
            network.model.eval()
            encoder, decoder = network.models
            with torch.no_grad():
                logits = torch.cat([decoder(encoder(part).z) for part in test[0].split(1000)])
            network.model.train()
            error = 100 * (logits.argmax(1) != test[1]).double().mean()
            lab.log("error", arm=name, step=game.step, epoch=game.epoch, error=error)

        turn = BottleneckTurn(row.penalty, self.beta)
        play(
            players,
            batches,
            turn,
            self.epochs * batches.per_epoch,
            lab=lab,
            name=name,
            callbacks=[
                OnPeriod(2 * batches.per_epoch, decay),
                OnPeriod(self.period * batches.per_epoch, record),
            ],
            parts={"information": turn.information},
        )

    def errors(self, results: Results, seed: int) -> dict[str, float]:
        """Test error of every row at the end, in percent."""
        return {arm: float(row["error"]) for arm, row in last_rows(results, "error", seed, "arm").items()}

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Differences of test errors."""
        errors = self.errors(results, seed)
        return {
            "M6-baseline": errors["baseline"] - errors["additive"],
            "M6-dvb": errors["baseline"] - errors["dvb"],
            "M6-mine": errors["dvb"] - errors["additive"],
            "M6-gaussian": errors["dvb"] - errors["gaussian"],
            "M6-control": errors["noise-only"] - errors["additive"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """The table as points: ours and the paper's."""
        figure, ((ours, theirs),) = panels(2, width=4.6, height=3.6, sharey=True)
        names = list(ROWS)
        places = {name: len(names) - 1 - place for place, name in enumerate(names)}
        found = [self.errors(results, seed) for seed in results.seeds]
        for name, place in places.items():
            values = [errors[name] for errors in found]
            ours.plot(values, [place] * len(values), "o", color=INK, alpha=0.35)
            ours.plot([sum(values) / len(values)], [place], "|", color=INK, markersize=14, markeredgewidth=2)
            if (published := ROWS[name].published) is not None:
                theirs.plot([published], [place], "D", color=INK)
        ours.set_yticks(list(places.values()), [ROWS[name].title for name in names])
        label(ours, "test error [%]", "method", f"{self.images:,} images, {self.epochs} epochs")
        label(theirs, "test error [%]", "", "table 5.3 of the paper")
        yield Picture(
            "table-5.3",
            figure,
            "Test errors: every seed and their mean (left), and the published ones (right), which were obtained with 60,000 "
            "images. 'Additive noise only' is the encoder of the row above without the information term.",
        )

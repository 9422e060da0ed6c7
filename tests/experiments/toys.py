"""Small experiments on which the bench is tested; processes find them through ``$TANGENTLAB_EXPERIMENTS``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tangentlab.data import disk
from tangentlab.experiments import (
    Chapter,
    Claim,
    Cost,
    Experiment,
    Game,
    Lab,
    Minibatches,
    OnPeriod,
    OnProgress,
    Picture,
    Player,
    Results,
    Training,
    experiment,
    play,
    train,
)
from tangentlab.figures.style import band, label, panels

EVERYWHERE = ("smoke", "desk", "paper")


@experiment
class ToyTraining(Experiment):
    """Two small trainings, a stage between them, callbacks, an array: everything that has to survive a kill."""

    name = "toy-training"
    title = "A toy <b>that trains</b>"
    question = "Does the bench <script>alert('no')</script> survive?"
    chapter = Chapter.GEOMETRY
    place = "nowhere & everywhere"
    claims = (Claim("toy-learns", "The loss falls.", "last over first loss", "<=", 0.9, "nowhere", EVERYWHERE),)
    scales = {"smoke": {"steps": 12}}
    seeds = {"smoke": 2}
    minutes = {"smoke": 0.1}
    notes = {"smoke": "It is <i>tiny</i>."}

    steps: int = 40
    width: int = 8
    delay: float = 0.0
    draw_delay: float = 0.0
    checkpoint_seconds: float = 0.0
    hold: str = ""

    def cost(self) -> Cost:
        return Cost(2 * self.steps + 3, 0.001, 300)

    def run(self, lab: Lab) -> None:
        _, first = self._train(lab, "first")
        total = lab.stage("between", lambda: self._between(lab))
        ratio, second = self._train(lab, "second")
        lab.save_array("weights", torch.cat([first, second, total["sum"]]))
        lab.measure("toy-learns", ratio)

    def _between(self, lab: Lab) -> dict[str, Tensor]:
        values = torch.zeros(2)
        for number in lab.loop(range(3), "between"):
            time.sleep(self.delay)
            values += torch.randn(2, generator=lab.generator("between", number))
            lab.log("between", number=number, value=values)
        return {"sum": values}

    def _train(self, lab: Lab, name: str) -> tuple[float, Tensor]:
        data = disk(64, lab.generator("data"))
        with lab.seeded("model", name):
            net = nn.Sequential(nn.Linear(2, self.width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(self.width, 2))
        net.eval()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        start = cross_entropy(net, (data.inputs, data.targets)).item()
        net.train()

        def record(training: Training) -> None:
            time.sleep(self.delay)
            while training.step == 3 and self.hold and Path(self.hold).exists():
                time.sleep(0.01)
                lab.progress("held", 0, None)
            values = {"loss": full_loss(training), "batch_loss": training.loss}
            lab.log("loss", training=name, step=training.step, **values)

        def passed(training: Training, threshold: float) -> None:
            lab.log("passed", training=name, step=training.step, threshold=threshold)

        train(
            net,
            Minibatches(data, 16, lab.seed),
            cross_entropy,
            optimizer,
            self.steps,
            lab=lab,
            name=name,
            callbacks=[OnPeriod(1, record), OnProgress(full_loss, (0.68, 0.6, 0.5), passed)],
            checkpoint_seconds=self.checkpoint_seconds,
        )
        weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        net.eval()
        with torch.no_grad():
            final = cross_entropy(net, (data.inputs, data.targets)).item()
        return final / start, weights

    def draw(self, results: Results) -> Iterator[Picture]:
        time.sleep(self.draw_delay)
        figure, ((axes,),) = panels()
        band(axes, results.curves("loss", "step", "loss", training="second"), "second")
        label(axes, "step", "loss [nats]")
        yield Picture("loss", figure, "The <u>loss</u> of the second training.")


def full_loss(training: Training) -> float:
    with torch.no_grad():
        return cross_entropy(training.model, training.batches.tensors).item()


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@experiment
class ToyGame(Experiment):
    """A small game with noise, dropout and batch statistics: everything that has to survive a kill."""

    name = "toy-game"
    title = "A toy that plays"
    question = "Does a game survive?"
    chapter = Chapter.GEOMETRY
    place = "nowhere"
    claims = (Claim("toy-game-finite", "Losses are finite.", "finite", ">=", 1.0, "nowhere", EVERYWHERE),)
    scales = {"smoke": {"steps": 12}}
    seeds = {"smoke": 1}
    minutes = {"smoke": 0.1}

    steps: int = 40
    delay: float = 0.0

    @staticmethod
    def players() -> dict[str, Player]:
        one = nn.Sequential(nn.Linear(1, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))
        other = nn.Linear(1, 1), nn.Linear(1, 1)
        return {"one": Player.adam(one, lr=0.01), "other": Player.adam(*other, lr=0.02)}

    def run(self, lab: Lab) -> None:
        with lab.seeded("players"):
            players = self.players()

        def record(game: Game) -> None:
            time.sleep(self.delay)
            lab.log("losses", step=game.step, **game.losses)

        data = torch.randn(24, 1, generator=lab.generator("data"))
        batches = Minibatches((data,), 6, lab.seed)
        game = play(
            players, batches, toy_turn, self.steps, lab=lab, callbacks=[OnPeriod(1, record)], checkpoint_seconds=0.0
        )
        parts = [value for player in players.values() for value in player.model.parameters()]
        lab.save_array("weights", torch.cat([part.detach().flatten() for part in parts]))
        lab.measure("toy-game-finite", float(not game.diverged))

    def draw(self, results: Results) -> Iterator[Picture]:
        figure, ((axes,),) = panels()
        band(axes, results.curves("losses", "step", "one"), "one")
        label(axes, "step", "loss [nats]")
        yield Picture("loss", figure, "The loss of the first player.")


def toy_turn(players: Mapping[str, Player], batch: tuple[Tensor, ...]) -> None:
    """One wants its outputs on noisy data to be what the other says; the other wants to be far from them."""
    inputs = batch[0] + 0.1 * torch.randn_like(batch[0])
    one, (first, second) = players["one"].model, players["other"].models
    players["other"].move(-(one(inputs).detach() - second(first(inputs))).square().mean().tanh())
    players["one"].move((one(inputs) - second(first(inputs)).detach()).square().mean())


@experiment
class ToyClaims(Experiment):
    """Measures what it is told to, forgets what it is told to, and fails when it is told to."""

    name = "toy-claims"
    title = "A toy with claims"
    question = "Are verdicts right?"
    chapter = Chapter.LIMITS
    place = "nowhere"
    claims = (
        Claim("toy-a", "The value is at least 1.", "value", ">=", 1.0, "p. 1", EVERYWHERE),
        Claim("toy-b", "The other value is below 1.", "other value", "<", 1.0, "p. 2", EVERYWHERE),
        Claim("toy-paper", "Only the paper's scale can tell.", "value", ">=", 1.0, "p. 3", ("paper",)),
    )

    values: tuple[float, ...] = (2.0, 2.0, 2.0)
    forget: bool = False
    unknown: bool = False
    fail_seed: int | None = None
    data: str = ""
    mode: str = "plain"

    def run(self, lab: Lab) -> None:
        print("a stray line on standard output")
        lab.log("value", value=self.values[lab.seed % len(self.values)])
        if self.fail_seed == lab.seed:
            raise ArithmeticError("told to fail")
        if self.data:
            lab.dataset(self.data)
        lab.measure("toy-a", self.values[lab.seed % len(self.values)])
        lab.measure("toy-paper", 3.0)
        if self.unknown:
            lab.measure("toy-z", 0.0)
        if self.mode == "reason":
            lab.not_tested("toy-b", "the moon is full")
        elif not self.forget:
            lab.measure("toy-b", 0.0)

    def draw(self, results: Results) -> Iterator[Picture]:
        if self.mode == "undrawable":
            raise ValueError("no ink")
        figure, ((axes,),) = panels()
        axes.plot(results.table("value")["value"])
        label(axes, "seed", "value")
        yield Picture("values", figure, "Values.")

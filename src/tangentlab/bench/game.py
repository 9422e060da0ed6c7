"""`play`: several players who move in turn, such as generator, discriminator and statistics network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.bench.callbacks import Callback
from tangentlab.bench.course import CHECKPOINT_SECONDS, Stateful, UpdateCourse, repeat
from tangentlab.bench.lab import Lab
from tangentlab.bench.minibatches import Batch, Minibatches


class _NotFinite(Exception):
    """A loss of a player is not finite; `play` ends the game."""


@dataclass
class Player:
    """A model with the optimizer of its parameters, and the loss of its last move (NaN before the first one)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: float = field(default=math.nan, init=False)

    @classmethod
    def adam(cls, *models: nn.Module, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> Player:
        """A player of one model, or of several that move together, with Adam."""
        model = models[0] if len(models) == 1 else nn.ModuleList(models)
        return cls(model, torch.optim.Adam(model.parameters(), lr=lr, betas=betas, fused=True))

    @property
    def models(self) -> list[nn.Module]:
        """The models that move together, as `adam` got them."""
        return list(self.model) if isinstance(self.model, nn.ModuleList) else [self.model]

    def move(self, loss: Tensor, backward: Callable[[Iterable[nn.Parameter]], None] | None = None) -> None:
        """One step of the optimizer down `loss`, along which only this player's parameters get gradients.

        `backward(parameters)` may fill the gradients in another way (adaptive clipping). A loss that is not finite ends the
        game before the step is made.
        """
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise _NotFinite
        self.optimizer.zero_grad(set_to_none=True)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if backward is not None:
            backward(parameters)
        else:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and last loss."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss = state["loss"]


@dataclass(kw_only=True)
class Game(UpdateCourse):
    """Where a game is: `step` turns are played; `loss` is the sum of the players' last losses."""

    players: Mapping[str, Player]

    @property
    def losses(self) -> dict[str, float]:
        """Of every player's last move."""
        return {name: player.loss for name, player in self.players.items()}


Turn = Callable[[Mapping[str, Player], Batch], None]
"""Lets every player move, as often and in the order it likes; whatever it draws comes from torch's global generator."""


def play(
    players: Mapping[str, Player],
    batches: Minibatches,
    turn: Turn,
    steps: int,
    *,
    lab: Lab | None = None,
    name: str = "play",
    callbacks: Sequence[Callback] = (),
    parts: Mapping[str, Stateful] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Game:
    """Call `turn(players, batch)` for `steps` batches, or until a callback stops it or a loss is not finite.

        def turn(players, batch):
            players["discriminator"].move(discriminator_loss(batch))
            players["generator"].move(generator_loss(len(batch[0])))

        play({"generator": Player.adam(g, lr=1e-4), "discriminator": Player.adam(d, lr=1e-4)}, batches, turn, 5000, lab=lab)

    Checkpoints, `name`, `callbacks` and `parts` are those of `train`: a game that was killed goes on bit for bit. Unlike a
    training, a game that diverges in the middle of a turn keeps the moves that were made before.
    """
    game = Game(players=players, batches=batches, steps=lab.capped(steps) if lab else steps)

    def update(state: Game) -> None:
        try:
            turn(players, batches.at(state.step))
        except _NotFinite:
            state.diverged = True
        state.loss = sum(state.losses.values())

    stateful: dict[str, Stateful] = {f"player {key}": player for key, player in players.items()}
    return repeat(
        game,
        update,
        {**stateful, **{f"part {key}": part for key, part in (parts or {}).items()}},
        lab=lab,
        name=name,
        kind="play",
        callbacks=callbacks,
        live=lambda state: state.losses,
        checkpoint_seconds=checkpoint_seconds,
    )

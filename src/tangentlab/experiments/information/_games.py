"""Turns of the adversarial games: GAN with or without MINE, packed or not, and adversarial inference with its extensions.

The information term of a generator is Donsker-Varadhan on the minibatch, with adaptive clipping; the statistics network itself
follows MINE's corrected gradient. Both see one stranger per example, a derangement, as in algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.experiments import Player
from tangentlab.information import (
    MINE,
    DonskerVaradhan,
    clipped_backward,
    discriminator_loss,
    generator_loss,
    inference_loss,
    score_pairs,
    squared_cycle,
)
from tangentlab.models.stack import dense_stack

LEAKY = partial(nn.LeakyReLU, 0.2)


class DenseGenerator(nn.Module):
    """Two hidden layers with batch norm and leaky ReLUs (C.1.2), of one or two inputs side by side."""

    def __init__(self, features: int, outputs: int, width: int) -> None:
        super().__init__()
        self.layers = dense_stack((features, width, width, outputs), LEAKY, batch_norm=True, plain_end=True)

    def forward(self, *inputs: Tensor) -> Tensor:
        """`(n, features)` in all to `(n, outputs)`."""
        return self.layers(torch.cat(inputs, 1))


class DenseCritic(nn.Module):
    """Three hidden layers (C.1.2), of one or two inputs side by side: a discriminator or a statistics network."""

    def __init__(self, features: int, width: int, activation: Callable[[], nn.Module] = LEAKY) -> None:
        super().__init__()
        self.layers = dense_stack((features, width, width, width, 1), activation, batch_norm=False, plain_end=True)

    def forward(self, *inputs: Tensor) -> Tensor:
        """`(n, features)` in all to `(n,)`."""
        return self.layers(torch.cat(inputs, 1))[:, 0]


@dataclass
class Information:
    """The term `beta I(x; z)` of a game: the statistics network's move, and that of those who raise the information."""

    beta: float
    objective: MINE = field(default_factory=MINE)

    def estimate(self, players: Mapping[str, Player], x: Tensor, z: Tensor) -> None:
        """One step of the statistics network."""
        if self.beta:
            scores = score_pairs(players["statistics"].model, x.detach(), z.detach(), "deranged")
            players["statistics"].move(-self.objective(scores))

    def raise_with(self, player: Player, loss: Tensor, players: Mapping[str, Player], x: Tensor, z: Tensor) -> None:
        """One step of `player` down its own loss, and up the information with a gradient no longer than that of the loss."""
        if not self.beta:
            player.move(loss)
            return
        information = DonskerVaradhan()(score_pairs(players["statistics"].model, x, z, "deranged"))
        player.move(
            loss - self.beta * information,
            lambda parameters: clipped_backward(loss, -information, parameters, self.beta),
        )

    def state_dict(self) -> dict[str, Any]:
        """The moving average of the objective."""
        return dict(self.objective.state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it up."""
        self.objective.log_average = state.get("log_average")


@dataclass
class GanTurn:
    """Discriminator, statistics network and generator move once each (equations 16 and 17 with its logarithm).

    * `latent`, `codes`: entries of z, and how many of them, the last ones, are the code c of which the samples should tell
    * `prior`: draws `(n, latent)`
    * `packed`: samples that the discriminator sees together
    """

    latent: int
    codes: int
    information: Information
    prior: Callable[[int, int], Tensor] = torch.randn
    packed: int = 1

    def __call__(self, players: Mapping[str, Player], batch: tuple[Tensor, ...]) -> None:
        generator, discriminator = players["generator"], players["discriminator"]
        real = batch[0]
        z = self.prior(len(real), self.latent)
        with torch.no_grad():
            made = generator.model(z)
        discriminator.move(
            discriminator_loss(discriminator.model(self.pack(real)), discriminator.model(self.pack(made)))
        )
        self.information.estimate(players, made, z[:, -self.codes :])
        z = self.prior(len(real), self.latent)
        made = generator.model(z)
        loss = generator_loss(discriminator.model(self.pack(made)))
        self.information.raise_with(generator, loss, players, made, z[:, -self.codes :])

    def pack(self, samples: Tensor) -> Tensor:
        """`packed` samples as one with as many times the channels."""
        whole = samples[: len(samples) // self.packed * self.packed]
        return whole.reshape(-1, self.packed * samples.shape[1], *samples.shape[2:])


@dataclass
class InferenceTurn:
    """Discriminator, statistics network, then encoder and decoder together (equation 19).

    * `latent`: entries of z, a standard normal
    * `cycle`: "" for ALI, "l2" or "adversarial" for ALICE, whose further discriminator tells (x, x) from (x, G(F(x)))
    """

    latent: int
    information: Information
    cycle: str = ""

    def __call__(self, players: Mapping[str, Player], batch: tuple[Tensor, ...]) -> None:
        x, z = batch[0], torch.randn(len(batch[0]), self.latent)
        encoder, decoder = players["inference"].models
        discriminator = players["discriminator"]
        code, sample = encoder(x), decoder(z)
        discriminator.move(
            discriminator_loss(discriminator.model(x, code.detach()), discriminator.model(sample.detach(), z))
        )
        self.information.estimate(players, x, code)
        loss = inference_loss(discriminator.model(x, code), discriminator.model(sample, z))
        if self.cycle:
            loss = loss + self._cycle(players, x, decoder(code))
        self.information.raise_with(players["inference"], loss, players, x, code)

    def _cycle(self, players: Mapping[str, Player], x: Tensor, reconstructed: Tensor) -> Tensor:
        if self.cycle == "l2":
            return squared_cycle(x, reconstructed)
        judge = players["cycle"]
        judge.move(
            discriminator_loss(
                judge.model(torch.cat([x, x], 1)), judge.model(torch.cat([x, reconstructed.detach()], 1))
            )
        )
        return generator_loss(judge.model(torch.cat([x, reconstructed], 1)))

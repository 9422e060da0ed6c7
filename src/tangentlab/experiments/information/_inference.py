"""Adversarial inference and its rivals: ALI, ALI + MINE, ALICE with squared errors, ALICE with an adversarial cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from tangentlab.bench.callbacks import Callback
from tangentlab.experiments import Game, Lab, Minibatches, Player, play
from tangentlab.experiments.information._games import InferenceTurn, Information


class Rival(NamedTuple):
    """A way to train encoder and decoder: the weight of the information, and the cycle of `InferenceTurn`."""

    title: str
    beta: float
    cycle: str


RIVALS = {
    "ali": Rival("ALI", 0.0, ""),
    "mine": Rival("ALI + MINE", 1.0, ""),
    "alice-l2": Rival("ALICE (l2)", 0.0, "l2"),
    "alice-adv": Rival("ALICE (adv.)", 0.0, "adversarial"),
}


class Networks(NamedTuple):
    """What makes each network anew; encoder and decoder are those whose initial weights all rivals share."""

    encoder: Callable[[], nn.Module]
    decoder: Callable[[], nn.Module]
    discriminator: Callable[[], nn.Module]
    statistics: Callable[[], nn.Module]
    cycle: Callable[[], nn.Module]


def compete(
    lab: Lab,
    rival: str,
    networks: Networks,
    batches: Minibatches,
    steps: int,
    latent: int,
    rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    callbacks: Callable[[nn.Module, nn.Module], Sequence[Callback]] = lambda encoder, decoder: (),
) -> tuple[nn.Module, nn.Module, Game]:
    """Encoder and decoder after `steps` turns, and the game; `callbacks(encoder, decoder)` makes those that watch it."""
    chosen = RIVALS[rival]
    with lab.seeded("players"):
        encoder, decoder, discriminator = networks.encoder(), networks.decoder(), networks.discriminator()
        statistics, cycle = networks.statistics(), networks.cycle()
    players = {
        "inference": Player.adam(encoder, decoder, lr=rate, betas=betas),
        "discriminator": Player.adam(discriminator, lr=rate, betas=betas),
    }
    if chosen.beta:
        players["statistics"] = Player.adam(statistics, lr=rate, betas=betas)
    if chosen.cycle == "adversarial":
        players["cycle"] = Player.adam(cycle, lr=rate, betas=betas)
    information = Information(chosen.beta)
    game = play(
        players,
        batches,
        InferenceTurn(latent, information, chosen.cycle),
        steps,
        lab=lab,
        name=rival,
        callbacks=callbacks(encoder, decoder),
        parts={"information": information},
    )
    return encoder, decoder, game

"""The optimizers that race each other in chapter 4; each has two hyper-parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tangentlab.experiments.natural_gradient._optimizer_race import Competitor
from tangentlab.figures.style import PALETTE
from tangentlab.optim import SOAP, NaturalSGD

NATURAL = {"ekfac": "EKFAC", "ekfac-ra": "EKFAC-ra", "kfac": "KFAC"}
COLORS = {"ekfac": PALETTE[0], "ekfac-ra": PALETTE[2], "kfac": PALETTE[1]}


MODEL_FISHER = "ekfac-ra-model"
"""EKFAC-ra as we would use it today: labels drawn from the model, and steps clipped by their KL divergence."""
KL_CLIP = 0.01


def natural(key: str, name: str, color: str, period: int, kind: str = "", **options: Any) -> Competitor:
    """A method on natural gradients: learning rate and damping; `options` are those of the preconditioner `kind`."""

    def make(model: nn.Module, lr: float, damping: float) -> torch.optim.Optimizer:
        own = {"preconditioner": kind or key, "damping": damping, "period": period, **options}
        return NaturalSGD(model, lr=lr, momentum=0.9, **own)

    return Competitor(key, name, "learning rate", "damping", make, color=color)


def model_fisher(likelihood: str, period: int, **options: Any) -> Competitor:
    """EKFAC-ra in the eigenbasis of the model's own Fisher matrix, one label drawn per example, with clipped steps."""
    own = {"curvature": "monte-carlo", "likelihood": likelihood, "kl_clip": KL_CLIP, **options}
    return natural(MODEL_FISHER, "EKFAC-ra, model's Fisher", PALETTE[7], period, kind="ekfac-ra", **own)


def sgd(key: str, norm: bool) -> Competitor:
    """SGD with momentum, with batch norm in the network or without."""

    def make(model: nn.Module, lr: float, one_minus: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=1 - one_minus)

    name, color = ("SGD + momentum + BN", PALETTE[4]) if norm else ("SGD + momentum", PALETTE[6])
    return Competitor(key, name, "learning rate", "1 - momentum", make, norm=norm, color=color)


def adam() -> Competitor:
    """Adam on a network with batch norm."""

    def make(model: nn.Module, lr: float, one_minus: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 1 - one_minus))

    return Competitor("adam", "Adam + BN", "learning rate", "1 - beta2", make, norm=True, color=PALETTE[3])


def soap() -> Competitor:
    """SOAP on a network without batch norm."""

    def make(model: nn.Module, lr: float, one_minus: float) -> torch.optim.Optimizer:
        return SOAP(model.parameters(), lr=lr, betas=(0.95, 1 - one_minus), weight_decay=0.0, period=10)

    return Competitor("soap", "SOAP", "learning rate", "1 - beta2", make, color=PALETTE[5])

"""What an optimizer does to one mode of a linear model trained with the squared loss.

A linear model f = f0 + J w with the loss `scale / 2 |f - y|^2 + decay / 2 |w|^2` splits into the eigenvectors of its kernel
J J^T. In the mode of eigenvalue l, start with the residual 1: then `residual(t) = 1 - l reached(t)`, and on other points,
with kernel k(x, .) to the training points, the function has moved by `-k(x, .) u reached(t)`. Both numbers obey one linear
recursion (or differential equation), also for l = 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError


@dataclass(frozen=True)
class ModeOptimizer(ABC):
    """An optimizer, seen through the modes: `factors(eigenvalues, time)`.

    Attributes:
        lr: learning rate eta.
        momentum: mu; see the subclass.
        weight_decay: the factor of 1/2 |w|^2, w counted from the start; the limit is then kernel ridge regression.
        scale: of the loss `scale / 2 |f - y|^2`. 1 for the plain sum, 1/n for the mean over n examples,
            2 / (n c) for `torch.nn.MSELoss` of c outputs.
    """

    lr: float = 1.0
    momentum: float | None = None
    weight_decay: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (self.lr > 0 and self.scale > 0 and self.weight_decay >= 0):
            raise InputError(f"The arguments lr and scale must be positive and weight_decay at least 0: {self}.")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InputError(f"The argument momentum lies in [0, 1), not {self.momentum}.")

    def factors(self, eigenvalues: Tensor, time: float) -> tuple[Tensor, Tensor]:
        """(residual, reached) of modes with these eigenvalues, (m,) each, in float64; `time` may be `math.inf`.

        A null mode (eigenvalue 0, no weight decay) never moves, and a kernel to other points is 0 on it; its `reached`, which
        grows for ever and would multiply nothing but rounding, counts as 0.
        """
        values = eigenvalues.to(torch.float64).clamp_min(0)
        if not time >= 0:
            raise InputError(f"The argument time is a number >= 0 or infinity, not {time!r}.")
        if math.isinf(time):
            return self._limit(values)
        residual, reached = self._factors(values, float(time))
        if not bool(torch.isfinite(residual).all()):
            raise InputError(f"{self._divergence(values)} At time {time:g} it is beyond all numbers.")
        return residual, torch.where(self._strength(values) > 0, reached, torch.zeros_like(reached))

    @abstractmethod
    def _factors(self, values: Tensor, time: float) -> tuple[Tensor, Tensor]:
        """At a finite time."""

    @abstractmethod
    def time_constants(self, eigenvalues: Tensor) -> Tensor:
        """Time after which a mode has shrunk by 1/e, (m,): infinite for a null mode."""

    @abstractmethod
    def largest_lr(self, eigenvalues: Tensor) -> float:
        """The learning rate from which on the fastest mode does not converge."""

    def _strength(self, values: Tensor) -> Tensor:
        """Curvature of the loss in each mode."""
        return self.scale * values + self.weight_decay

    def _divergence(self, values: Tensor) -> str:
        largest = self.largest_lr(values)
        return f"lr = {self.lr:g} diverges: the largest curvature allows less than {largest:.6g}."

    def _limit(self, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.lr >= self.largest_lr(values):
            raise InputError(self._divergence(values))
        strength = self._strength(values)
        alive, inverse = strength > 0, 1 / strength.clamp_min(1e-300)
        residual = torch.where(alive, self.weight_decay * inverse, torch.ones_like(values))
        return residual, torch.where(alive, self.scale * inverse, torch.zeros_like(values))


@dataclass(frozen=True)
class GradientFlow(ModeOptimizer):
    """`dw/dt = -lr dL/dw`; the time t is that of t steps of gradient descent with a small learning rate.

    With momentum it is the heavy ball, `w'' = -(1 - mu) / sqrt(lr) w' - dL/dw` in the time sqrt(lr) t, the limit in which
    learning rate and 1 - mu go to zero together. That holds for `momentum=0.0` as well; None is the plain flow.
    """

    def _factors(self, values: Tensor, time: float) -> tuple[Tensor, Tensor]:
        if self.momentum is not None:
            return _heavy_ball(self, values, time)
        exponent = self.lr * time * self._strength(values)
        full = torch.where(exponent > 0, -torch.expm1(-exponent) / exponent.clamp_min(1e-300), torch.ones_like(values))
        reached = self.lr * self.scale * time * full
        return torch.exp(-exponent) + self.weight_decay / self.scale * reached, reached

    def time_constants(self, eigenvalues: Tensor) -> Tensor:
        """1 / (lr curvature); with momentum, that of the slower of the two exponentials."""
        strength = self._strength(eigenvalues.to(torch.float64).clamp_min(0))
        if self.momentum is None:
            return 1 / (self.lr * strength)
        friction = (1 - self.momentum) / math.sqrt(self.lr)
        root = (friction**2 / 4 - strength).clamp_min(0).sqrt()
        slower = torch.where(root > 0, (friction / 2 + root) / strength, torch.full_like(root, 2 / friction))
        return slower / math.sqrt(self.lr)

    def largest_lr(self, eigenvalues: Tensor) -> float:
        """Infinite: the flow always converges."""
        return math.inf


@dataclass(frozen=True)
class GradientDescent(ModeOptimizer):
    """Full-batch `torch.optim.SGD`; the time is the number of steps, a whole number.

    Attributes:
        nesterov: as in torch.
    """

    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise InputError("The argument nesterov=True needs a momentum, as in torch.optim.SGD.")

    def _factors(self, values: Tensor, time: float) -> tuple[Tensor, Tensor]:
        if time != int(time):
            raise InputError(f"Gradient descent is defined after whole steps, not at {time}: use GradientFlow.")
        power = torch.linalg.matrix_power(self._one_step(values), int(time))
        return power[:, 0, 0], power[:, 1, 0]

    def _one_step(self, values: Tensor) -> Tensor:
        """(m, 3, 3): one step of (residual, reached, buffer); the velocity is the buffer's new value.

        buffer' = mu buffer + g with the gradient g = scale residual - decay reached, then reached' = reached + lr d and
        residual' = residual - lr value d, with d = buffer' (Nesterov: g + mu buffer').
        """
        mu = self.momentum or 0.0
        ones, zeros = torch.ones_like(values), torch.zeros_like(values)
        gradient = torch.stack([self.scale * ones, -self.weight_decay * ones, zeros], 1)
        buffer = gradient + torch.stack([zeros, zeros, mu * ones], 1)
        move = self.lr * (gradient + mu * buffer if self.nesterov else buffer)
        keep = torch.eye(3, dtype=values.dtype, device=values.device)
        return torch.stack([keep[0] - values[:, None] * move, keep[1] + move, buffer], 1)

    def time_constants(self, eigenvalues: Tensor) -> Tensor:
        """-1 / log of the largest modulus of the recursion's eigenvalues (without those of the constant state)."""
        values = eigenvalues.to(torch.float64).clamp_min(0)
        decay = self._moduli(values)
        return torch.where((decay < 1) & (self._strength(values) > 0), -1 / decay.log(), math.inf)

    def _moduli(self, values: Tensor) -> Tensor:
        """Spectral radius of each mode: the roots of z^2 - (trace) z + determinant of (w, buffer)."""
        mu, x = self.momentum or 0.0, self.lr * self._strength(values)
        first = 1 + mu - x * (1 + mu if self.nesterov else 1)
        last = mu * (1 - x) if self.nesterov else mu + torch.zeros_like(x)
        root = torch.complex(first**2 / 4 - last, torch.zeros_like(x)).sqrt()
        return torch.maximum((first / 2 + root).abs(), (first / 2 - root).abs())

    def largest_lr(self, eigenvalues: Tensor) -> float:
        """2 (1 + mu) / curvature; with Nesterov's momentum 2 (1 + mu) / (1 + 2 mu) / curvature."""
        mu = self.momentum or 0.0
        steepest = float(self._strength(eigenvalues.to(torch.float64)).max())
        return 2 * (1 + mu) / (1 + 2 * mu if self.nesterov else 1) / steepest if steepest > 0 else math.inf


def _heavy_ball(flow: GradientFlow, values: Tensor, time: float) -> tuple[Tensor, Tensor]:
    """The exponential of the generator of (residual, reached, velocity)."""
    ones, zeros = torch.ones_like(values), torch.zeros_like(values)
    friction = (1 - (flow.momentum or 0.0)) / math.sqrt(flow.lr)
    rows = [
        torch.stack([zeros, zeros, -values], 1),
        torch.stack([zeros, zeros, ones], 1),
        torch.stack([flow.scale * ones, -flow.weight_decay * ones, -friction * ones], 1),
    ]
    power = torch.linalg.matrix_exp(math.sqrt(flow.lr) * time * torch.stack(rows, 1))
    return power[:, 0, 0], power[:, 1, 0]

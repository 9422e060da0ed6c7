"""The three data sets of George (2023), section 5.4.4, whose modes are examples, label noise and a spurious feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.linearized.quadratic import QuadraticModel


@dataclass(frozen=True)
class QuadraticExample:
    """Inputs `(n, d)`, targets `(n,)` and named groups of examples whose losses are compared."""

    inputs: Tensor
    targets: Tensor
    groups: dict[str, Tensor]

    def model(self, sigma: float) -> QuadraticModel:
        """The quadratic model that starts from `w = sqrt(sigma) (1, ..., 1)`, i.e. `theta_l(0) = sigma / 2`."""
        return QuadraticModel.of(self.inputs, self.targets, sigma / 2)

    def group_losses(self, losses: Tensor) -> dict[str, Tensor]:
        """Mean over each group of losses `(..., n)`."""
        return {name: losses[..., rows].mean(-1) for name, rows in self.groups.items()}


def reversed_order(mu: Sequence[float], features: int | None = None) -> QuadraticExample:
    """Example 1: `x_i = sqrt(mu_i) e_i`, `y_i = mu_{n-i+1} / sqrt(mu_i)`, mu descending: every mode is an example.

    The linearized model learns at the speeds mu_i, the full one at `y~_i = mu_{n-i+1}`: in the opposite order.
    """
    values = torch.tensor(list(mu), dtype=torch.float64)
    n = len(values)
    if not bool((values > 0).all()) or bool((values[1:] >= values[:-1]).any()):
        raise InputError(
            "The argument mu must be positive and strictly descending: the order of the modes is the point."
        )
    inputs = _coordinates(n, features or n, n)
    inputs[:, :n] = torch.diag(values.sqrt())
    groups = {f"example {i + 1}": torch.tensor([i]) for i in range(n)}
    return QuadraticExample(inputs, values.flip(0) / values.sqrt(), groups)


def noisy_labels(n: int, noisy: int, eta: float, features: int | None = None) -> QuadraticExample:
    """Example 2: `x_i = kappa_i y_i e_1 + eta e_{i+1}`, kappa = -1 for the `noisy` last examples: their labels are wrong.

    `X X^T = z z^T + eta^2 I` with `z = kappa y`: one shared direction with eigenvalue `n + eta^2`, which carries the
    share `1 - 2q/n` of the labels, and eta^2 for everything that belongs to one example.
    """
    kappa, targets = _signs(n, noisy)
    inputs = _coordinates(n, features or n + 1, n + 1)
    inputs[:, 0] = kappa * targets
    inputs[:, 1 : n + 1] = eta * torch.eye(n, dtype=torch.float64)
    clean = torch.arange(n - noisy)
    return QuadraticExample(inputs, targets, {"clean": clean, "noisy": torch.arange(n - noisy, n)})


def spurious_feature(n: int, minority: int, lam: float, eta: float, features: int | None = None) -> QuadraticExample:
    """Example 3: `x_i = kappa_i y_i e_1 + lam y_i e_2 + eta e_{i+2}`, kappa = -1 for the `minority` last examples.

    e_1 is the spurious feature, which agrees with the label on the majority only; e_2 the core feature, which always does
    and is weaker by lam.
    """
    kappa, targets = _signs(n, minority)
    inputs = _coordinates(n, features or n + 2, n + 2)
    inputs[:, 0], inputs[:, 1] = kappa * targets, lam * targets
    inputs[:, 2 : n + 2] = eta * torch.eye(n, dtype=torch.float64)
    return QuadraticExample(
        inputs, targets, {"majority": torch.arange(n - minority), "minority": torch.arange(n - minority, n)}
    )


def _signs(n: int, few: int) -> tuple[Tensor, Tensor]:
    """kappa: -1 for the last `few` examples, which must be a minority; targets: alternating signs."""
    if not 1 <= few < -(-n // 2):
        raise InputError(f"Between 1 and ceil(n / 2) - 1 of {n} examples can be the few, not {few}.")
    kappa = torch.ones(n, dtype=torch.float64)
    kappa[n - few :] = -1
    return kappa, 1.0 - 2.0 * (torch.arange(n, dtype=torch.float64) % 2)


def _coordinates(n: int, features: int, needed: int) -> Tensor:
    if features < needed:
        raise InputError(f"This data set of {n} examples needs at least {needed} features, not {features}.")
    return torch.zeros(n, features, dtype=torch.float64)

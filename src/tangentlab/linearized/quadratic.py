"""A regression whose training is known in closed form, lazy and not: the quadratic model of George (2023), section 5.4.

The function is `f(x) = theta^T x` with `theta = 1/2 sum_l w_l^2 v_l`, where `X = sum_l sqrt(mu_l) u_l v_l^T` is the
singular value decomposition of the inputs and w is trained by gradient flow on `1/2 |X theta - y|^2`. Every mode l moves
on its own, with `theta_l = w_l^2 / 2`:

    full        d theta_l / dt = -2 mu_l theta_l    (theta_l - theta*_l)
    linearized  d theta_l / dt = -2 mu_l theta_l(0) (theta_l - theta*_l)

so that the linearized model learns at the speed `2 mu_l theta_l(0)`, which knows nothing of the labels, and the full one
in the end at `2 y~_l = 2 mu_l theta*_l`, which does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError

Regime = Literal["full", "linearized"]
EQUAL = 1e-9
"""Singular values closer than this, relative to the largest one, belong to one eigenspace."""


@dataclass(frozen=True)
class QuadraticModel:
    """Inputs in their singular basis, and where every mode starts and ends; all in float64.

    Attributes:
        inputs: X `(n, d)`.
        targets: y `(n,)`.
        basis: `(d, d)`, the v_l as columns, signs such that every `u_l^T y >= 0`.
        mu: `(d,)` squared singular values, descending, 0 beyond the rank.
        start: `(d,)` theta_l(0) > 0.
        solution: `(d,)` theta*_l: `u_l^T y / sqrt(mu_l)` within the rank, theta_l(0) beyond it, where nothing moves.
    """

    inputs: Tensor
    targets: Tensor
    basis: Tensor
    mu: Tensor
    start: Tensor
    solution: Tensor

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor, start: Tensor | float) -> QuadraticModel:
        """From data `(n, d)`, `(n,)` and `theta_l(0) = w_l(0)^2 / 2`, one number or `(d,)` in the order of the modes.

        The parametrization refers to one basis, and in an eigenspace of several dimensions the basis is a choice: here
        its first vector is the one that carries the labels, the others carry none of them. Cost: one full decomposition.
        """
        inputs, targets = inputs.double(), targets.double()
        if inputs.ndim != 2 or targets.shape != inputs.shape[:1]:
            raise InputError(f"The inputs (n, d) and targets (n,) are needed, got {inputs.shape} and {targets.shape}.")
        mu, basis, labels = _label_basis(inputs, targets)
        first = torch.as_tensor(start, dtype=torch.float64).expand(len(mu)).clone()
        if not bool((first > 0).all()):
            raise InputError(
                "The start theta_l(0) = w_l(0)^2 / 2 must be positive in every mode: a weight of 0 never moves."
            )
        moving = mu > 0
        solution = torch.where(moving, labels / mu.clamp_min(torch.finfo(mu.dtype).tiny).sqrt(), first)
        return cls(inputs, targets, basis, mu, first, solution)

    def turned(self, generator: torch.Generator) -> QuadraticModel:
        """The same model in other bases of the eigenspaces of several dimensions, drawn at random (Haar).

        Which basis the squares refer to is a choice there: `of` lets one mode of the eigenspace carry all of its labels. All
        modes start from the same value in each of these spaces, or the choice would not be free.
        """
        basis, solution = self.basis.clone(), self.solution.clone()
        for value in self.mu[self.mu > 0].unique():
            place = (self.mu == value).nonzero().flatten()
            if len(place) < 2:
                continue
            turn, upper = torch.linalg.qr(torch.randn(len(place), len(place), generator=generator, dtype=self.mu.dtype))
            turn = turn * upper.diagonal().sign()
            along = turn.T @ self.solution[place]
            signs = torch.where(along < 0, -1.0, 1.0)
            basis[:, place] = self.basis[:, place] @ turn * signs
            solution[place] = along * signs
        return replace(self, basis=basis, solution=solution)

    @property
    def correlations(self) -> Tensor:
        """`y~_l = v_l^T X^T y = mu_l theta*_l`, `(d,)`; 0 beyond the rank."""
        return self.mu * self.solution

    def modes(self, times: Tensor | float, regime: Regime = "full") -> Tensor:
        """theta_l(t) in closed form (proposition 5.4.1), `(times, d)`; infinity is a time.

        Full: `theta0 theta* / (theta0 + exp(-2 y~ t) (theta* - theta0))`, and `theta0 / (1 + 2 mu theta0 t)` where theta*
        is 0. Linearized: `theta* + exp(-2 mu theta0 t) (theta0 - theta*)`.
        """
        _check(regime)
        t = torch.as_tensor(times, dtype=torch.float64).reshape(-1, 1)
        if bool((t < 0).any()) or bool(t.isnan().any()):
            raise InputError("The times cannot be negative or NaN.")
        start, end, moves = self.start, self.solution, self.mu > 0
        if regime == "linearized":
            left = torch.exp(-_times(2 * self.mu * start, t))
            return torch.where(moves, end + left * (start - end), start)
        left = torch.exp(-_times(2 * self.correlations, t))
        towards = start * end / (start + left * (end - start))
        decaying = start / (1 + _times(2 * self.mu * start, t))
        return torch.where(moves, torch.where(end > 0, towards, decaying), start)

    def weights(self, times: Tensor | float, regime: Regime = "full") -> Tensor:
        """theta(t) in the coordinates of the inputs, `(times, d)`."""
        return self.modes(times, regime) @ self.basis.T

    def predictions(self, times: Tensor | float, regime: Regime = "full", inputs: Tensor | None = None) -> Tensor:
        """f(x_i) at every time, `(times, n)`, at the training inputs or at others `(m, d)`."""
        points = self.inputs if inputs is None else inputs.double()
        return self.weights(times, regime) @ points.T

    def losses(self, times: Tensor | float, regime: Regime = "full") -> Tensor:
        """`1/2 (f(x_i) - y_i)^2` of every training example, `(times, n)`."""
        return 0.5 * (self.predictions(times, regime) - self.targets).square()

    def convergence_times(self, eps: float, regime: Regime = "full", *, approximate: bool = False) -> Tensor:
        """The time at which `|theta_l - theta*_l| = eps`, `(d,)`; 0 for a mode that starts within eps.

        Full: `log((theta* - theta0) (theta* - eps) / (theta0 eps)) / (2 y~)`, linearized: `log((theta* - theta0) / eps) /
        (2 mu theta0)`, for a start below theta*; likewise above. `approximate` gives the leading terms for small eps and
        theta0: `log(theta*^2 / (eps theta0)) / (2 y~)` and `log(theta* / eps) / (2 mu theta0)`, meant for theta* > 0.
        """
        _check(regime)
        if not eps > 0:
            raise InputError(f"The argument eps must be positive, got {eps}.")
        start, end, mu = self.start, self.solution, self.mu
        if approximate:
            ratio = end / eps if regime == "linearized" else end.square() / (eps * start)
            speed = 2 * mu * start if regime == "linearized" else 2 * self.correlations
            return ratio.log() / speed
        far = (start - end).abs() > eps
        if regime == "linearized":
            times = ((start - end).abs() / eps).log() / (2 * mu * start)
        else:
            arrival = end + eps * (start - end).sign()
            times = (arrival * (start - end) / (start * (arrival - end))).log() / (2 * self.correlations)
            times = torch.where(end > 0, times, (start / eps - 1) / (2 * mu * start))
        return torch.where(far, times, 0.0)

    def schedule(self, regime: Regime = "full") -> Tensor:
        """Claim 1: the modes in the order in which they are learnt, `(rank,)`, by y~_l or by mu_l theta_l(0).

        Up to logarithms `t_l / t_k = y~_k / y~_l` in the full model and `mu_k theta_k(0) / (mu_l theta_l(0))` in the
        linearized one: labels set the order in the full model only. Modes without labels are not learnt and left out.
        """
        _check(regime)
        speed = self.correlations if regime == "full" else self.mu * self.start
        learnt = ((self.mu > 0) & (self.solution > 0)).nonzero().squeeze(1)
        return learnt[speed[learnt].argsort(descending=True, stable=True)]


def sequential_value(model: QuadraticModel, mode: int, other: int, eps: float, sigma: float, shape: Tensor) -> float:
    """Claim 2: where mode `other` is when `mode` has converged to eps, for a start `theta(0) = sigma shape` near 0.

    `theta*' s' / (s' + theta*' (eps s / theta*^2)^rho sigma^(rho - 1))` with `rho = y~' / y~` and s the shape: as sigma
    falls it goes to theta*' where the other correlation is larger and to 0 where it is smaller, so that modes are learnt
    one after the other. Of the model only solution and correlations are used.
    """
    rho = float(model.correlations[other] / model.correlations[mode])
    end, own = float(model.solution[other]), float(model.solution[mode])
    s_other, s_own = float(shape[other]), float(shape[mode])
    return end * s_other / (s_other + end * (eps * s_own / own**2) ** rho * sigma ** (rho - 1))


def _check(regime: str) -> None:
    if regime not in ("full", "linearized"):
        raise InputError(f"The argument regime is 'full' or 'linearized', not {regime!r}.")


def _times(speed: Tensor, t: Tensor) -> Tensor:
    """speed * t, with 0 times infinity as 0: what does not move, never does."""
    return torch.where(speed == 0, 0.0, speed * t)


def _label_basis(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mu (d,), V (d, d), u_l^T y (d,)): singular vectors that carry the labels first in every eigenspace."""
    left, singular, right = torch.linalg.svd(inputs, full_matrices=True)
    d = inputs.shape[1]
    mu, labels, basis = inputs.new_zeros(d), inputs.new_zeros(d), right.T.clone()
    rank = int((singular > EQUAL * singular.max()).sum()) if len(singular) else 0
    start = 0
    while start < rank:
        stop = start + int((singular[start:rank] > singular[start] - EQUAL * singular[0]).sum())
        values = singular[start:stop]
        turn, along = _towards(left[:, start:stop].T @ targets)
        labels[start:stop] = along
        basis[:, start:stop] = basis[:, start:stop] @ turn
        mu[start:stop] = values.square().mean()
        start = stop
    # y is 0 along a mode up to rounding only, where the data say exactly 0
    labels[labels < 1e-12 * targets.norm()] = 0.0
    return mu, basis, labels


def _towards(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """An orthogonal matrix whose first column is along `coefficients`, and the coefficients in its columns."""
    size, norm = len(coefficients), coefficients.norm()
    along = coefficients.new_zeros(size)
    along[0] = norm
    turn = torch.eye(size, dtype=coefficients.dtype)
    if norm > 0:
        turn = torch.linalg.qr(torch.cat([coefficients[:, None], turn], 1)).Q
        turn[:, 0] = coefficients / norm
    return turn, along

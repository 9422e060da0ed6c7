"""Gradient flow of any loss of a flat vector of weights, by an adaptive integrator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tangentlab.errors import InputError, NumericsError, SolveError

STIFF, PLAIN = "LSODA", "DOP853"
METHODS = (STIFF, PLAIN, "RK23", "RK45", "Radau", "BDF")


@dataclass(frozen=True)
class FlowPath:
    """Weights along `w' = -dL/dw`.

    Attributes:
        times: `(t,)`.
        weights: `(t, p)`.
        losses: `(t,)`.
        evaluations: of the gradient.
    """

    times: Tensor
    weights: Tensor
    losses: Tensor
    evaluations: int

    @property
    def end(self) -> Tensor:
        """The last weights, `(p,)`."""
        return self.weights[-1]


def follow_flow(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    until: float,
    loss_below: float | None = None,
    moments: int = 2,
    tolerance: float = 1e-9,
    method: str = STIFF,
) -> FlowPath:
    """Integrates gradient flow in double precision until a time, or until the loss has fallen below a bound.

    The flow of `log L` has the path of that of L, in a time in which the loss falls by a constant factor: give the logarithm
    (`torch.logsumexp(-margins, 0)`) to follow an exponential loss to its end.

    Args:
        loss: of the flat weights `(p,)`, differentiable by torch.
        start: `(p,)`.
        until: the time at which it ends.
        loss_below: ends as soon as the loss is below; if it is at the start, the path is that one point.
        moments: how many points in time are kept, at least 2: the first and the last are among them.
        tolerance: relative, of the integrator; the absolute one is a thousandth of it times the size of the start.
        method: an integrator of `scipy.integrate.solve_ivp`.

    Raises:
        InputError: the loss is not a finite scalar at the start, or an argument makes no sense.
        SolveError: the bound on the loss was not reached in time, or the integrator gave up.
    """
    first, evaluate = _checked_start(start, until, moments, method), _Evaluation(loss)
    here = evaluate.loss(first.numpy())
    if not np.isfinite(here):
        raise InputError("The loss is not finite at the start of the flow.")
    if loss_below is not None and here <= loss_below:
        return FlowPath(torch.zeros(1, dtype=torch.float64), first[None], torch.tensor([here], dtype=torch.float64), 0)

    def reached(_: float, point: np.ndarray) -> float:
        return evaluate.loss(point) - (loss_below or 0.0)

    reached.terminal = True  # type: ignore[attr-defined]
    found = solve_ivp(
        evaluate.slope,
        (0.0, float(until)),
        first.numpy(),
        method=method,
        rtol=tolerance,
        atol=1e-3 * tolerance * max(float(first.abs().max()), 1e-12),
        t_eval=np.linspace(0.0, float(until), moments) if moments > 2 else None,
        events=None if loss_below is None else [reached],
    )
    if not found.success:
        raise SolveError(
            f"The integrator {method} gave up: {found.message} Try another method= or a larger tolerance=."
        )
    if loss_below is not None and found.status != 1:
        raise SolveError(
            f"The loss was {evaluate.loss(found.y[:, -1]):.2e} at time {until:g}, still above {loss_below:.2e}: raise until=."
        )
    times, points = _kept(found, moments)
    losses = torch.tensor([evaluate.loss(point) for point in points], dtype=torch.float64)
    return FlowPath(torch.from_numpy(times.copy()), torch.from_numpy(points.copy()), losses, int(found.nfev))


def _checked_start(start: Tensor, until: float, moments: int, method: str) -> Tensor:
    """The start in double precision, once all arguments make sense."""
    first = start.detach().to("cpu", torch.float64)
    if first.ndim != 1 or not len(first):
        raise InputError(f"The weights are one flat vector, not {tuple(first.shape)}: use parameters_to_vector.")
    if not until >= 0 or moments < 2 or method not in METHODS:
        raise InputError(
            f"A flow needs until >= 0 ({until}), moments >= 2 ({moments}), and a method ({method!r}) among {METHODS}."
        )
    return first


def _kept(found: Any, moments: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and weights that are kept, the moment at which the loss reached its bound as the last."""
    times, points = found.t, found.y.T
    if found.status == 1:
        times, points = np.append(times, found.t_events[0][:1]), np.vstack([points, found.y_events[0][:1]])
    return (times[[0, -1]], points[[0, -1]]) if moments == 2 else (times, points)


class _Evaluation:
    """A loss and its negative gradient as functions of numpy vectors."""

    def __init__(self, loss: Callable[[Tensor], Tensor]) -> None:
        self.function = loss

    def loss(self, point: np.ndarray) -> float:
        with torch.no_grad():
            value = self.function(torch.from_numpy(np.ascontiguousarray(point)))
        if value.numel() != 1:
            raise InputError(f"The loss is one number, not a tensor of shape {tuple(value.shape)}: sum it.")
        return float(value)

    def slope(self, _: float, point: np.ndarray) -> np.ndarray:
        with torch.inference_mode(False), torch.enable_grad():
            weights = torch.from_numpy(np.ascontiguousarray(point)).requires_grad_()
            value = self.function(weights)
            if not value.requires_grad:
                raise InputError("The loss does not depend on the weights by torch operations, so it has no gradient.")
            (gradient,) = torch.autograd.grad(value, weights)
        if not bool(gradient.isfinite().all()):
            raise NumericsError("The gradient left the range of finite numbers along the flow: use a smaller until=.")
        return -gradient.numpy()

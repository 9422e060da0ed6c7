"""Training in function space with any loss: steps of gradient descent, or gradient flow by an ODE solver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.frozen import all_frozen
from tangentlab.errors import InputError, NumericsError
from tangentlab.kernels.function_space import Columns, require_shape, times
from tangentlab.kernels.mode_dynamics import GradientDescent

OutputLoss = Callable[[Tensor], Tensor]
"""The loss (a scalar) as a function of the outputs on all training points, (n,) or (n, outputs)."""


@dataclass(frozen=True)
class KernelTrajectory:
    """What the function was at some times.

    Attributes:
        times: (T,) steps, or times of the flow.
        train: (T, n, ...) outputs on the training points.
        coefficients: (T, n, ...), c of `f(x) = f0(x) + sum_i k(x, x_i) c_i`.
    """

    times: Tensor
    train: Tensor
    coefficients: Tensor
    columns: Columns

    def test(self, cross_kernel: Any, initial: Tensor | None = None) -> Tensor:
        """(T, points, ...): the outputs on other points, from their kernel to the training points and f0 on them."""
        with all_frozen([cross_kernel]):
            moved = torch.stack(
                [self.columns.restore(times(cross_kernel, self.columns.lay_out(c))) for c in self.coefficients]
            )
        if initial is None:
            return moved
        require_shape(initial, moved[0], "initial")
        return initial + moved


def kernel_descent(
    kernel: Any,
    loss: OutputLoss,
    initial: Tensor,
    steps: Iterable[int],
    *,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> KernelTrajectory:
    """Full-batch SGD of the linear model with this kernel, `f <- f - lr K dL/df`, for any loss.

    Args:
        kernel: (n, n) tensor or `FMat`, dense or implicit.
        loss: differentiable function of the outputs in the shape of `initial`.
        initial: f0 on the training points, (n,) or (n, outputs).
        steps: when to record; 0 is the start.
        lr: learning rate.
        momentum: as in `torch.optim.SGD`, and so are `nesterov` and `weight_decay` (towards the start).

    Cost: one product with the kernel per step, after which outputs on all other points follow from the coefficients.
    """
    GradientDescent(lr, momentum, weight_decay, nesterov=nesterov)  # refuses what is out of range
    wanted = sorted({int(step) for step in steps}) if isinstance(steps, Iterable) else []
    if not wanted or wanted[0] < 0:
        raise InputError("The steps are the (nonnegative) numbers of steps after which to record.")
    columns = Columns.of(initial, _dim(kernel))
    start = columns.lay_out(initial)
    outputs, dual, velocity = start, torch.zeros_like(start), torch.zeros_like(start)
    kept = []
    with all_frozen([kernel]):
        for step in range(wanted[-1] + 1):
            if step in wanted:
                kept.append((outputs, dual))
            if step == wanted[-1]:
                break
            slope = _slope(loss, outputs, columns) + weight_decay * dual
            velocity = momentum * velocity + slope
            dual = dual - lr * (slope + momentum * velocity if nesterov else velocity)
            outputs = start + times(kernel, dual)
    return _trajectory(torch.tensor(wanted), kept, columns)


def kernel_flow(
    kernel: Any,
    loss: OutputLoss,
    initial: Tensor,
    at: Iterable[float],
    *,
    lr: float = 1.0,
    rtol: float = 1e-8,
    atol: float = 1e-10,
    method: str = "LSODA",
) -> KernelTrajectory:
    """Gradient flow `df/dt = -lr K dL/df` for any loss, by `scipy.integrate.solve_ivp` on the dual coefficients.

    Args:
        kernel: (n, n) tensor or `FMat`.
        loss: differentiable function of the outputs in the shape of `initial`.
        initial: f0 on the training points.
        at: times to record.
        lr: learning rate.
        rtol: relative tolerance of the solver, and `atol` the absolute one.
        method: of scipy; the default switches to a stiff method where the spectrum of the kernel demands it.
    """
    from scipy.integrate import solve_ivp

    wanted = torch.tensor(sorted({float(time) for time in at}), dtype=torch.float64)
    if not len(wanted) or wanted[0] < 0 or not bool(torch.isfinite(wanted).all()):
        raise InputError("The at are the (nonnegative, finite) times to record.")
    columns = Columns.of(initial, _dim(kernel))
    start = columns.lay_out(initial)

    def outputs(dual: Any) -> tuple[Tensor, Tensor]:
        coefficients = torch.as_tensor(dual).reshape(start.shape).to(start)
        return start + times(kernel, coefficients), coefficients

    def slope(_: float, dual: Any) -> Any:
        return -lr * _slope(loss, outputs(dual)[0], columns).flatten().double().cpu().numpy()

    zero, span = torch.zeros(start.numel(), dtype=torch.float64).numpy(), (0.0, float(wanted[-1]))
    if span[1] == 0:
        return _trajectory(wanted, [(start, torch.zeros_like(start))], columns)
    options: dict[str, Any] = {"method": method, "t_eval": wanted.numpy(), "rtol": rtol, "atol": atol}
    with all_frozen([kernel]):
        solution = solve_ivp(slope, span, zero, **options)
        if not solution.success:
            raise NumericsError(f"The flow could not be integrated: {solution.message}")
        return _trajectory(wanted, [outputs(dual) for dual in solution.y.T], columns)


def _dim(kernel: Any) -> int:
    return int(kernel.shape[0]) if isinstance(kernel, Tensor) else int(kernel.dim)


def _slope(loss: OutputLoss, outputs: Tensor, columns: Columns) -> Tensor:
    with torch.enable_grad():
        values = columns.restore(outputs).detach().requires_grad_()
        value = loss(values)
        if value.ndim:
            raise InputError(f"The loss must be one number, this one has the shape {tuple(value.shape)}.")
        (grad,) = torch.autograd.grad(value, values)
    return columns.lay_out(grad)


def _trajectory(at: Tensor, kept: list[tuple[Tensor, Tensor]], columns: Columns) -> KernelTrajectory:
    train, dual = (torch.stack([columns.restore(pair[place]) for pair in kept]) for place in (0, 1))
    return KernelTrajectory(at, train, dual, columns)

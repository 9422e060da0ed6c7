"""Preconditioned conjugate gradients on many right-hand sides at once."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.linalg._matvec import Matvec, at_least_one, product


@dataclass(frozen=True)
class CGReport:
    """How a `conjugate_gradients` run ended.

    Attributes:
        converged: every right-hand side reached the tolerance, by its true residual.
        iterations: batched products spent on iterations (a check of the true residual is not counted).
        iterations_per_rhs: `(rhs,)` iterations of each right-hand side until it stopped.
        residual_norms: `(rhs,)` true `|b - A x|`, recomputed at the end.
        relative_residuals: `(rhs,)` true `|b - A x| / |b|` (0 where b = 0).
        bad_curvature: `(rhs,)` whether a search direction had `p^T A p <= 0`: A is singular or indefinite there.
        message: what happened, in words.
    """

    converged: bool
    iterations: int
    iterations_per_rhs: Tensor
    residual_norms: Tensor
    relative_residuals: Tensor
    bad_curvature: Tensor
    message: str


def conjugate_gradients(
    matvec: Matvec,
    rhs: Tensor,
    *,
    preconditioner: Matvec | None = None,
    start: Tensor | None = None,
    rtol: float | None = None,
    max_iterations: int | None = None,
    on_failure: Literal["raise", "report"] = "raise",
) -> tuple[Tensor, CGReport]:
    """Solves `A x = b` for a symmetric positive definite A given by its products.

    Each right-hand side has its own step sizes and leaves the batch when its residual is below `rtol * |b|`. The
    recursive residual drifts from the true one, so the true residual is computed when all have stopped, and those that
    are not done are restarted from it as long as that still helps (Hestenes and Stiefel 1952; van der Vorst and Ye
    2000 on residual replacement). On A singular but b in its range, the solution of least norm is found from a zero
    start. Cost: one batched product per iteration, one more per check; memory five times that of `rhs`.

    Args:
        matvec: A, `(vectors, dim) -> (vectors, dim)`; called on the right-hand sides that are still active.
        rhs: `(dim,)` or `(rhs, dim)`.
        preconditioner: an approximation of A^-1, symmetric positive definite, same form as `matvec`.
        start: first iterate, shape of `rhs`; by default zero.
        rtol: relative tolerance; by default 1e-8 in float64 and 1e-5 in float32.
        max_iterations: by default `10 * dim`, at most 10000.
        on_failure: `"raise"` a SolveError, or only `"report"` and return the last iterate.

    Returns:
        The solution in the shape of `rhs`, and a `CGReport`.

    Raises:
        SolveError: with `on_failure="raise"`, when bad curvature, stagnation or the iteration limit stopped it.
    """
    if on_failure not in ("raise", "report"):
        raise InputError(f"The argument on_failure must be 'raise' or 'report', got {on_failure!r}.")
    if rhs.ndim not in (1, 2) or rhs.shape[-1] < 1:
        raise InputError(f"The argument rhs must be (dim,) or (rhs, dim), got shape {tuple(rhs.shape)}.")
    if start is not None and start.shape != rhs.shape:
        raise InputError(f"The argument start has shape {tuple(start.shape)}, rhs {tuple(rhs.shape)}.")
    if not bool(torch.isfinite(rhs).all()):
        raise InputError("The right-hand side has non-finite entries.")
    limit = min(10 * rhs.shape[-1], 10_000) if max_iterations is None else max_iterations
    at_least_one(max_iterations=limit)
    tolerance = max(1e-8, 100 * torch.finfo(rhs.dtype).eps) if rtol is None else rtol
    first = torch.zeros_like(rhs) if start is None else start.to(rhs)
    run = _Run(
        matvec,
        preconditioner,
        rhs.reshape(-1, rhs.shape[-1]),
        first.reshape(-1, rhs.shape[-1]).clone(),
        tolerance,
        limit,
    )
    report = run.solve()
    if on_failure == "raise" and not report.converged:
        raise SolveError(report.message)
    return run.x.reshape(rhs.shape), report


class _Run:
    """State of one solve: all right-hand sides `(rhs, dim)`, and which of them are active."""

    def __init__(
        self, matvec: Matvec, preconditioner: Matvec | None, rhs: Tensor, x: Tensor, rtol: float, limit: int
    ) -> None:
        self.matvec, self.preconditioner, self.limit = matvec, preconditioner, limit
        self.rhs, self.x = rhs, x
        self.goal = rtol * rhs.norm(dim=1)
        self.iterations = 0
        self.per_rhs = torch.zeros(len(rhs), dtype=torch.long, device=rhs.device)
        self.bad = torch.zeros(len(rhs), dtype=torch.bool, device=rhs.device)

    def solve(self) -> CGReport:
        nonzero = bool((self.x != 0).any())
        residual = self.rhs - product(self.matvec, self.x) if nonzero else self.rhs.clone()
        norms = residual.norm(dim=1)
        stagnated = torch.zeros_like(self.bad)
        while True:
            todo = ((norms > self.goal) & ~self.bad & ~stagnated).nonzero().flatten()
            if not len(todo) or self.iterations >= self.limit:
                break
            self._iterate(todo, residual[todo])
            residual[todo] = self.rhs[todo] - product(self.matvec, self.x[todo])
            after = residual.norm(dim=1)
            if self.iterations < self.limit:
                stagnated |= (after > norms / 2) & (after > self.goal)
            norms = after
        return self._report(norms, stagnated)

    def _iterate(self, active: Tensor, residual: Tensor) -> None:
        """Conjugate gradients from the given residuals until each active right-hand side stops."""
        z = self._precondition(residual)
        direction = z
        rho = (residual * z).sum(1)
        while len(active) and self.iterations < self.limit:
            image = product(self.matvec, direction)
            self.iterations += 1
            self.per_rhs[active] += 1
            curvature = (direction * image).sum(1)
            floor = torch.finfo(image.dtype).eps * direction.norm(dim=1) * image.norm(dim=1)
            bad = (curvature <= floor) | (rho <= 0)
            self.bad[active] = bad
            alpha = torch.where(bad, 0.0, rho / torch.where(bad, 1.0, curvature))[:, None]
            self.x[active] += alpha * direction
            residual = residual - alpha * image
            go_on = (residual.norm(dim=1) > self.goal[active]) & ~bad
            active, residual, direction, rho = active[go_on], residual[go_on], direction[go_on], rho[go_on]
            z = self._precondition(residual)
            rho_next = (residual * z).sum(1)
            direction = z + (rho_next / rho)[:, None] * direction
            rho = rho_next

    def _precondition(self, residual: Tensor) -> Tensor:
        return residual if self.preconditioner is None else product(self.preconditioner, residual)

    def _report(self, norms: Tensor, stagnated: Tensor) -> CGReport:
        done = norms <= self.goal
        size = self.rhs.norm(dim=1)
        relative = torch.where(size > 0, norms / torch.where(size > 0, size, 1.0), norms)
        self.bad &= ~done
        return CGReport(
            converged=bool(done.all()),
            iterations=self.iterations,
            iterations_per_rhs=self.per_rhs,
            residual_norms=norms,
            relative_residuals=relative,
            bad_curvature=self.bad,
            message=self._message(done, stagnated, relative),
        )

    def _message(self, done: Tensor, stagnated: Tensor, relative: Tensor) -> str:
        total, missing = len(done), int((~done).sum())
        if not missing:
            return f"all {total} right-hand sides converged in {self.iterations} iterations"
        worst = float(relative.max())
        if bool(self.bad.any()):
            reason = (
                "a direction of no or negative curvature was met: the matrix is singular or indefinite; add damping"
            )
        elif bool((stagnated & ~done).any()):
            reason = "the residual no longer shrinks: loosen rtol, add damping, or work in float64"
        else:
            reason = f"the limit of {self.limit} iterations was reached: raise it, add damping, or precondition"
        return f"{missing} of {total} right-hand sides did not converge (relative residual up to {worst:.2g}): {reason}"

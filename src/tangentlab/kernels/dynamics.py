"""Training in function space with the squared loss, in closed form: any time, any point, given kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.function_space import Columns, eigensystem, require_shape, times
from tangentlab.kernels.mode_dynamics import GradientFlow, ModeOptimizer


@dataclass(frozen=True)
class EarlyStopping:
    """The best of the given times.

    Attributes:
        time: where the test loss is smallest.
        loss: mean over test examples of 1/2 |f - y|^2 at that time.
        times: the times that were tried, (T,).
        losses: their test losses, (T,).
    """

    time: float
    loss: float
    times: Tensor
    losses: Tensor


class KernelDynamics:
    """`f(t) = y + sum_j p_j(t) u_j <u_j, f0 - y>`: every eigenvector of the kernel is learned at its own rate.

    With the tangent kernel of a network this is the training of its linearization (`linearize`) with all data in every
    step. On other points `f(x, t) = f0(x) - k(x, X) sum_j q_j(t) u_j <u_j, f0 - y>`; p and q are those of the optimizer.
    At infinity it is interpolation of least norm from f0, with weight decay kernel ridge regression
    (`kernels.ridge_dual`, `penalty = weight_decay / (scale n)`).

    Args:
        kernel: K (n, n) as a tensor or an `FMat` (of one or several outputs), or, for many examples, the largest
            `Eigenpairs` of one from `K.top_eigenpairs(k)`: what they do not span then stays as it is, see `error_bound`.
        targets: y, (n,) or (n, outputs). The kernel is shared by the outputs, or has the size n * outputs.
        initial: f0 on the training points; 0 by default.
        optimizer: `GradientFlow` or `GradientDescent`; plain gradient flow with learning rate 1 by default.

    Cost: 9 n^3 once for a kernel, nothing for eigenpairs; then k n per time.
    """

    def __init__(
        self, kernel: Any, targets: Tensor, initial: Tensor | None = None, *, optimizer: ModeOptimizer | None = None
    ) -> None:
        self.spectrum = eigensystem(kernel)
        self.optimizer = GradientFlow() if optimizer is None else optimizer
        self.targets = targets
        self._columns = Columns.of(targets, len(self.spectrum.vectors))
        initial = torch.zeros_like(targets) if initial is None else initial
        if initial.shape != targets.shape:
            raise InputError(f"The argument initial is {tuple(initial.shape)}, the targets are {tuple(targets.shape)}.")
        self._residual = self._columns.lay_out((initial - targets).to(self.spectrum.vectors))

    @property
    def eigenvalues(self) -> Tensor:
        """Of the kernel, descending, (k,)."""
        return self.spectrum.values

    @cached_property
    def projections(self) -> Tensor:
        """<u_j, f0 - y>, (k, m); m is 1 for a kernel over all outputs."""
        return self.spectrum.vectors.t() @ self._residual

    def modes(self, time: float) -> Tensor:
        """<u_j, f(t) - y> of every mode, (k, m): the mode-by-mode learning curves."""
        return self._factors(time)[0][:, None] * self.projections

    def time_constants(self) -> Tensor:
        """Time in which each mode shrinks by 1/e, (k,)."""
        return self.optimizer.time_constants(self.eigenvalues)

    def largest_lr(self) -> float:
        """The learning rate from which on gradient descent diverges."""
        return self.optimizer.largest_lr(self.eigenvalues)

    def train(self, time: float) -> Tensor:
        """f(t) on the training points, in the shape of the targets."""
        return self.targets + self._columns.restore(self._residuals(time))

    def loss(self, time: float) -> Tensor:
        """scale / 2 |f(t) - y|^2 on the training points, without the weight decay."""
        return self.optimizer.scale / 2 * self._residuals(time).square().sum()

    def coefficients(self, time: float) -> Tensor:
        """c(t) of `f(x, t) = f0(x) + sum_i k(x, x_i) c_i(t)`, in the shape of the targets."""
        return self._columns.restore(self._dual(time))

    def test(self, time: float, cross_kernel: Any, initial: Tensor | None = None) -> Tensor:
        """f(t) on other points, given their kernel to the training points and f0 on them (0 by default).

        cross_kernel: (points, n) as a tensor, or an `FMat`, dense or implicit, such as `NTK(model, test, train)`.
        """
        moved = self._columns.restore(times(cross_kernel, self._dual(time)))
        if initial is None:
            return moved
        require_shape(initial, moved, "initial")
        return initial + moved

    def early_stopping(
        self, candidates: Iterable[float], cross_kernel: Any, targets: Tensor, initial: Tensor | None = None
    ) -> EarlyStopping:
        """The candidate time with the smallest test loss; `math.inf` may be among them."""
        tried = [float(time) for time in candidates]
        if not tried:
            raise InputError("Give at least one time to stop at.")
        images = times(cross_kernel, torch.cat([self._dual(time) for time in tried], 1)).chunk(len(tried), 1)
        moved = [self._columns.restore(image) for image in images]
        start = torch.zeros_like(targets) if initial is None else initial
        for values, what in ((targets, "targets"), (start, "initial")):
            require_shape(values, moved[0], what)
        errors = [start + move - targets for move in moved]
        losses = torch.stack([0.5 * error.square().sum() / len(targets) for error in errors])
        best = int(losses.argmin())
        return EarlyStopping(tried[best], float(losses[best]), torch.tensor(tried, dtype=torch.float64), losses)

    def error_bound(self, time: float) -> Tensor:
        """Bound of |f(t) - f_exact(t)| on the training points that comes from eigenpairs left out; 0 for a whole kernel.

        The rest of f0 - y lies in modes with eigenvalues between 0 and the smallest one kept; it is left where it was, and
        may have moved by at most the largest `1 - p` of these (on a grid of eigenvalues).
        """
        if self.spectrum.complete:
            return self._residual.new_zeros(())
        points = 4097 if self.optimizer.momentum else 65  # 1 - p then oscillates with the root of the eigenvalue
        roots = torch.linspace(0, 1, points, dtype=torch.float64, device=self.eigenvalues.device)
        grid = roots.square() * self.eigenvalues[-1]
        moved = (1 - self.optimizer.factors(grid, time)[0]).abs().max().to(self._residual)
        return moved * self._left_out.norm()

    @cached_property
    def _left_out(self) -> Tensor:
        return self._residual - self.spectrum.vectors @ self.projections

    def _factors(self, time: float) -> tuple[Tensor, Tensor]:
        residual, reached = self.optimizer.factors(self.eigenvalues, time)
        return residual.to(self._residual), reached.to(self._residual)

    def _residuals(self, time: float) -> Tensor:
        known = self.spectrum.vectors @ self.modes(time)
        return known if self.spectrum.complete else known + self._left_out

    def _dual(self, time: float) -> Tensor:
        return -(self.spectrum.vectors @ (self._factors(time)[1][:, None] * self.projections))

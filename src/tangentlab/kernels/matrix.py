"""What a kernel is: a matrix, or anything that can give one."""

from typing import Protocol

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError


class HasMatrix(Protocol):
    """Anything that can give its kernel matrix."""

    def matrix(self) -> Tensor:
        """The kernel matrix `(n, n)`."""
        ...


Kernel = Tensor | HasMatrix


def kernel_matrix(kernel: Kernel) -> Tensor:
    """The matrix `(n, n)` of a kernel, checked to be square, nonempty and finite."""
    if not isinstance(kernel, Tensor) and not hasattr(kernel, "matrix"):
        raise InputError(f"A kernel is a tensor or an FMat, not a {type(kernel).__name__}: see torch.as_tensor.")
    matrix = kernel if isinstance(kernel, Tensor) else kernel.matrix()
    if not matrix.is_floating_point():
        raise InputError(f"A kernel is of real numbers, this one of {matrix.dtype}: pass kernel.double().")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"A kernel is a nonempty square matrix (n, n), got shape {tuple(matrix.shape)}.")
    if not bool(torch.isfinite(matrix).all()):
        raise NumericsError("The kernel has non-finite entries.")
    return matrix


def check_targets(rows: Tensor, targets: Tensor) -> None:
    """Require one target (or one row of targets) for every row."""
    if targets.ndim not in (1, 2) or len(targets) != len(rows) or not len(rows):
        raise InputError(
            f"One row of targets per example is needed, (n,) or (n, c); got {tuple(targets.shape)} for {len(rows)} examples."
        )
    if targets.dtype != rows.dtype:
        raise InputError(f"Kernel or features are {rows.dtype}, targets {targets.dtype}: convert one with .to(dtype).")

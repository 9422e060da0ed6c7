"""FMat: a symmetric matrix on function space, such as the Gram matrix of tangent features; FMatDense stores it."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.linalg import safe_eigh
from tangentlab.objects.algebra import Scalar, is_scalar, one_number
from tangentlab.objects.fvector import FVector, check_centring
from tangentlab.objects.spectral import Spectral
from tangentlab.objects.spectrum import Spectrum


class FMat(Spectral):
    """A kernel on function space, FVector -> FVector; a cross kernel has other examples on the right.

    A new representation needs `sizes`, `_product`, `tensor` and `_example`.
    """

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int, int]:
        """(outputs, examples, outputs', examples')."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """The numbers themselves, (outputs, examples, outputs', examples'); `matrix()` flattens them."""

    def to_dense(self) -> FMatDense:
        """Deprecated, as `PMat.to_dense` is a tensor: `tensor()` has the numbers, `FMatDense(K.tensor())` the object."""
        warnings.warn(
            "FMat.to_dense() gives an object and PMat.to_dense() a tensor: use K.tensor(), or FMatDense(K.tensor()).",
            DeprecationWarning,
            stacklevel=2,
        )
        return self._dense()

    def _dense(self) -> FMatDense:
        return FMatDense(self.tensor())

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.sizes[0]

    @property
    def examples(self) -> int:
        """Number of examples on the left."""
        return self.sizes[1]

    @property
    def is_cross(self) -> bool:
        """Whether left and right examples may differ (not square)."""
        return self.sizes[:2] != self.sizes[2:]

    @property
    def dim(self) -> int:
        """outputs * examples, of a square kernel."""
        if self.is_cross:
            raise InputError(f"This needs a square kernel, and this one is {self.sizes}.")
        return self.sizes[0] * self.sizes[1]

    def mv(self, v: FVector) -> FVector:
        """K v. Also written `K @ v`."""
        if not isinstance(v, FVector):
            raise InputError(f"A kernel acts on FVectors, not on a {type(v).__name__}.")
        if v.shape != self.sizes[2:]:
            raise InputError(f"The kernel acts on (outputs, examples) = {self.sizes[2:]}, not {v.shape}.")
        image = self._product(v.flat.reshape(-1, v.flat.shape[-1]))
        return FVector(image.reshape(*v.data.shape[:-2], *self.sizes[:2]))

    def __matmul__(self, v: FVector) -> FVector:
        return self.mv(v)

    def vTMv(self, v: FVector) -> Tensor:
        """v^T K v."""
        return v.dot(self.mv(v))

    def _as_vectors(self, flat: Tensor) -> FVector:
        return FVector(flat.unflatten(-1, self.sizes[:2]))

    def _on_vectors(self, v: FVector, function: Any) -> FVector:
        if not isinstance(v, FVector) or v.shape != self.sizes[2:]:
            raise InputError(f"An FVector with (outputs, examples) = {self.sizes[2:]} is expected, not {v!r}.")
        return self._as_vectors(function(v.flat.reshape(-1, self.dim)).reshape(v.flat.shape))

    @abstractmethod
    def diag(self) -> FVector:
        """The diagonal."""

    def trace(self) -> Tensor:
        """Sum of the diagonal."""
        return self.diag().flat.sum()

    def matrix(self) -> Tensor:
        """(outputs * examples, outputs' * examples')."""
        return self._dense().matrix()

    def _matrix(self) -> Tensor:
        return self.matrix()

    def _of_spectrum(self, function: Callable[[Tensor], Tensor]) -> FMatDense:
        values, vectors = self._dense()._decomposition()
        return FMatDense(((vectors * function(values)) @ vectors.t()).reshape(self.sizes))

    def _spectrum(self) -> Spectrum:
        return Spectrum.of_basis(*self._dense()._decomposition())

    def norm(self, ord: int | str = "fro") -> Tensor:
        """Frobenius norm; with ord=2 the largest |eigenvalue| (singular value of a cross kernel), with ord=-2 the smallest."""
        if self.is_cross and ord in (2, -2):
            return torch.linalg.matrix_norm(self.matrix(), ord)  # type: ignore[arg-type]
        return super().norm(ord)

    def eigh(self) -> tuple[Tensor, list[FVector]]:
        """Eigenvalues, ascending, and the eigenvectors as FVectors."""
        values, vectors = self._dense()._decomposition()
        return values, [FVector(column.reshape(self.sizes[:2])) for column in vectors.t()]

    def numel(self) -> int:
        """Numbers stored."""
        return 0

    def nbytes(self) -> int:
        """Memory of what is stored, in bytes."""
        return self.numel() * self._example().element_size()


class FMatDense(FMat):
    """K (outputs, examples, outputs', examples'). `matrix()` flattens it, output-major."""

    def __init__(self, data: Tensor) -> None:
        if data.ndim != 4:
            raise InputError(f"A kernel is (outputs, examples, outputs, examples), got shape {tuple(data.shape)}.")
        self.data = data

    @classmethod
    def from_matrix(cls, matrix: Tensor, outputs: int = 1) -> FMatDense:
        """From a flat matrix (outputs * examples, outputs * examples')."""
        if matrix.ndim != 2 or any(size % outputs for size in matrix.shape):
            raise InputError(f"A matrix of shape {tuple(matrix.shape)} does not hold {outputs} outputs per example.")
        rows, columns = (size // outputs for size in matrix.shape)
        return cls(matrix.reshape(outputs, rows, outputs, columns))

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Shape of the data."""
        outputs, examples, outputs2, examples2 = self.data.shape
        return outputs, examples, outputs2, examples2

    def tensor(self) -> Tensor:
        """`data`."""
        return self.data

    def _dense(self) -> FMatDense:
        return self

    def matrix(self) -> Tensor:
        """(outputs * examples, outputs' * examples')."""
        return self.data.flatten(2).flatten(0, 1)

    def numel(self) -> int:
        """Numbers stored."""
        return self.data.numel()

    def _example(self) -> Tensor:
        return self.data

    def _product(self, flat: Tensor) -> Tensor:
        return flat @ self.matrix().t()

    def trace_over_outputs(self) -> Tensor:
        """sum_c K[c, :, c, :], (examples, examples')."""
        return torch.einsum("cncm->nm", self.data)

    def _square(self, what: str) -> Tensor:
        if self.is_cross:
            raise InputError(f"{what} needs a square kernel, this one is {tuple(self.data.shape)}.")
        return self.matrix()

    def _decomposition(self) -> tuple[Tensor, Tensor]:
        if "_cached_pairs" not in vars(self):
            self._cached_pairs = safe_eigh(self._square("An eigendecomposition"))
        return self._cached_pairs

    def _solve(self, flat: Tensor, damping: float) -> Tensor:
        """By the spectrum; the pseudo-inverse without damping."""
        return self._spectrum().solve(flat, damping)

    def trace(self) -> Tensor:
        """Sum of the diagonal."""
        return self._square("A trace").diagonal().sum()

    def diag(self) -> FVector:
        """The diagonal as an FVector."""
        return FVector(self._square("A diagonal").diagonal().reshape(self.data.shape[:2]))

    def _largest(self) -> Tensor:
        return self.eigvalsh().abs().max()

    def center(self, how: str = "per_output") -> FMatDense:
        """Subtract the mean feature: "per_output" over the examples of each output, "global" over outputs and examples."""
        return FMatDense(center_kernel(self.data, how))

    def to(self, *args: Any, **kwargs: Any) -> FMatDense:
        """Another dtype or device."""
        return FMatDense(self.data.to(*args, **kwargs))

    def _adds_to(self, other: Any) -> bool:
        if isinstance(other, FMatDense) and other.data.shape != self.data.shape:
            raise InputError(f"Kernels of different shapes: {tuple(self.data.shape)}, {tuple(other.data.shape)}.")
        return isinstance(other, FMatDense)

    def plus(self, other: FMatDense) -> FMatDense:
        """K + K'."""
        return FMatDense(self.data + other.data)

    def scaled(self, factor: Any) -> FMatDense:
        """factor K."""
        return FMatDense(self.data * factor)

    def __truediv__(self, factor: Scalar) -> FMatDense:
        return FMatDense(self.data / one_number(factor)) if is_scalar(factor) else NotImplemented

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __repr__(self) -> str:
        outputs, examples, _, columns = self.data.shape
        return f"FMatDense(outputs = {outputs}, examples = {examples} x {columns}, {self.data.dtype})"


def center_kernel(data: Tensor, how: str) -> Tensor:
    """Centre a kernel (c, n, c', m) in feature space, using the means over its own rows and columns."""
    return center_kernel_(data.clone(), how)


def center_kernel_(data: Tensor, how: str) -> Tensor:
    """The same in place."""
    left, right = ((1,), (3,)) if check_centring(how) == "per_output" else ((0, 1), (2, 3))
    data -= data.mean(left, keepdim=True)
    data -= data.mean(right, keepdim=True)
    return data


def label_kernel(labels: Tensor, n_classes: int, dtype: torch.dtype | None = None) -> FMatDense:
    """K_Y[c, n, c', m] = Y[n, c] Y[m, c'] with one-hot Y: the kernel whose features are the labels.

    labels: (examples) of class indices, or (examples, classes) of real targets.
    """
    if labels.ndim == 1:
        if labels.is_floating_point():
            raise InputError("Real targets need the shape (examples, outputs); class labels are integers.")
        if int(labels.max()) >= n_classes or int(labels.min()) < 0:
            raise InputError(f"Labels must lie in 0..{n_classes - 1}, found {int(labels.min())}..{int(labels.max())}.")
        labels = torch.nn.functional.one_hot(labels.long(), n_classes)
    if labels.ndim != 2 or labels.shape[1] != n_classes:
        raise InputError(f"Targets of shape {tuple(labels.shape)} do not have {n_classes} classes.")
    targets = labels.to(dtype or torch.get_default_dtype()).t()
    return FMatDense(torch.einsum("cn,dm->cndm", targets, targets))

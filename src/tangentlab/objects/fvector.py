"""FVector: a vector in function space, one number per output and example."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.objects.algebra import VectorAlgebra


class FVector(VectorAlgebra):
    """Values (outputs, examples) on a fixed set of examples; leading axes make a batch of such vectors."""

    def __init__(self, data: Tensor) -> None:
        if data.ndim < 2:
            raise InputError(f"An FVector needs (outputs, examples), got shape {tuple(data.shape)}.")
        self.data = data

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> FVector:
        """From model outputs (examples, ...)."""
        return cls(outputs.reshape(outputs.shape[0], -1).t())

    @classmethod
    def zeros(cls, outputs: int, examples: int, dtype: torch.dtype | None = None, device: str | None = None) -> FVector:
        """All zeros."""
        return cls(torch.zeros(outputs, examples, dtype=dtype, device=device))

    @classmethod
    def ones(cls, outputs: int, examples: int, dtype: torch.dtype | None = None, device: str | None = None) -> FVector:
        """All ones."""
        return cls(torch.ones(outputs, examples, dtype=dtype, device=device))

    @classmethod
    def random_unit(
        cls, outputs: int, examples: int, dtype: torch.dtype | None = None, generator: torch.Generator | None = None
    ) -> FVector:
        """Uniform on the unit sphere."""
        data = torch.randn(outputs, examples, dtype=dtype, generator=generator)
        return cls(data / torch.linalg.vector_norm(data))

    @property
    def flat(self) -> Tensor:
        """(*batch, outputs * examples), output-major as in FMat.matrix()."""
        return self.data.flatten(-2)

    def tensor(self) -> Tensor:
        """(*batch, outputs, examples): `data`, as every object calls its numbers."""
        return self.data

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, examples)."""
        return self.data.shape[-2], self.data.shape[-1]

    def to_outputs(self) -> Tensor:
        """(*batch, examples, outputs)."""
        return self.data.transpose(-1, -2)

    def center(self, how: str = "per_output") -> FVector:
        """Minus the mean: "per_output" over the examples of each output, "global" over outputs and examples."""
        return FVector(centred(self.data, how))

    def _like(self, flat: Tensor) -> FVector:
        return FVector(flat.unflatten(-1, self.shape))

    def _require_same_space(self, other: FVector) -> None:
        if self.shape != other.shape:
            raise InputError(f"These vectors have different (outputs, examples): {self.shape} and {other.shape}.")

    def __repr__(self) -> str:
        return f"FVector(outputs = {self.shape[0]}, examples = {self.shape[1]}, {self.dtype})"


def centred(data: Tensor, how: str, axis: int = -1) -> Tensor:
    """Data with examples on an axis and outputs on the one before, less the mean over examples, or over both."""
    return data - data.mean((axis,) if check_centring(how) == "per_output" else (axis - 1, axis), keepdim=True)


def check_centring(how: str) -> str:
    """One of the two ways to center what has outputs and examples."""
    if how not in ("per_output", "global"):
        raise InputError(f"The argument center must be None, 'per_output' or 'global', not {how!r}.")
    return how

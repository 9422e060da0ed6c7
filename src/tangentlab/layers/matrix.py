"""How a parameter is seen as matrices, known before any pass: from the layer's configuration, or from its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum


@dataclass(frozen=True)
class Matrix:
    """A weight as `groups` matrices (rows, columns), row-major, without the column of a bias.

    Attributes
    ----------
    shape: (groups, rows, columns).
    gradients: the side that output-gradients are on, "left" (rows) or "right" (columns).
    taps: kernel positions of a convolution, whose columns are (channel, tap).
    one_hot: the inputs are one-hot vectors, whose second moment is diagonal.
    structured: whether a Kronecker product of the two sides' second moments approximates that of the gradients.
    """

    shape: tuple[int, int, int]
    gradients: str = "left"
    taps: int | None = None
    one_hot: bool = False
    structured: bool = True

    @classmethod
    def vector(cls, size: int) -> Matrix:
        """No structure: one column."""
        return cls((1, size, 1), structured=False)

    @classmethod
    def of(cls, outer: OuterSum) -> Matrix:
        """That of gradients which have been computed."""
        if not outer.kronecker or outer.is_explicit:
            return cls.vector(outer.numel)
        return cls(outer.matrix_shape, outer.gradients)

    def describes(self, outer: OuterSum) -> bool:
        """Whether gradients have this form."""
        if not self.structured:
            return outer.matrix_shape == self.shape or self == Matrix.of(outer)
        return outer.kronecker and (outer.matrix_shape, outer.gradients) == (self.shape, self.gradients)


def by_rows(module: nn.Module, weight: Tensor) -> Matrix:
    """One matrix, output-gradients along the first axis of the weight and inputs along all others."""
    return Matrix((1, weight.shape[0], weight.shape[1:].numel()))


def as_vector(module: nn.Module, weight: Tensor) -> Matrix:
    """Nothing but its entries (norms)."""
    return Matrix.vector(weight.numel())

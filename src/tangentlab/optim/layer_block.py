"""One layer's preconditioner: into a Kronecker eigenbasis, divide by a scale, back (George et al. 2018, section 4.3.1).

method      basis U_B, U_A      scale s
diagonal    identity            E[g^2]
KFAC        eigenvectors        S_B S_A^T
EKFAC       eigenvectors        s* = E[(U_B^T g U_A)^2], per example
EKFAC-ra    eigenvectors        running average of N (U_B^T gbar U_A)^2, gbar the mean gradient of N examples
block       eigenvectors of the layer's own second moment (one side is everything, the other a single 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group
from tangentlab.errors import InputError
from tangentlab.layers import Matrix, OuterSum
from tangentlab.objects.pmat.basis import Basis
from tangentlab.objects.pmat.kronecker import EigenBlock, KronBlock, MatrixForm, squares_in_bases
from tangentlab.objects.pmat.pi import Pi, pi_of
from tangentlab.objects.pmat.side import Side, both
from tangentlab.optim.damping import balance, damped
from tangentlab.optim.hyperparameters import check_choice
from tangentlab.optim.sides import RunningChannels, RunningSide
from tangentlab.optim.sums import Sample

SCALES = ("kronecker", "per_example", "batch")


@dataclass(frozen=True)
class BlockOptions:
    """How a block works; the preconditioner checks and documents the values.

    Attributes:
        scale: "kronecker" (KFAC), "per_example" (EKFAC) or "batch" (EKFAC-ra).
        factors: whether second moments of the two sides are kept; a fixed identity basis needs none.
        rowwise: the layer is one vector and its block a full matrix.
        form, pi: of the damping. cutoff: modes kept. inverse: "eigh" or "cholesky". sharing: "expand" or "reduce".
        rebase: what happens to the scale in a new basis: "kfac", "transport" or "keep".
        thin: whether the input side may keep fewer eigenvectors than it has columns (`RestBasis`).
    """

    scale: str
    factors: bool = True
    rowwise: bool = False
    form: str = "factored"
    pi: Pi = False
    cutoff: int | float | None = None
    inverse: str = "eigh"
    sharing: str = "expand"
    rebase: str = "kfac"
    thin: bool = False

    def check(self) -> None:
        """Refuse values that there are not, and those that do not go together."""
        check_choice("damping_form", self.form, ("factored", "plain"))
        check_choice("inverse", self.inverse, ("eigh", "cholesky"))
        check_choice("sharing", self.sharing, ("expand", "reduce"))
        check_choice("rebase", self.rebase, ("kfac", "transport", "keep"))
        cutoff = self.cutoff
        if cutoff is not None and not (0 < cutoff and (isinstance(cutoff, int) or cutoff <= 1)):
            raise InputError(
                f"The argument cutoff must be a positive number of modes, or a fraction of them up to 1.0, got {cutoff!r}."
            )
        if self.inverse == "cholesky" and ((self.form == "plain" and not self.rowwise) or cutoff is not None):
            raise InputError(
                "The option inverse='cholesky' inverts A and B one by one: damping_form='plain' and cutoff= need the "
                "eigenvalues, so use inverse='eigh'."
            )


class LayerBlock:
    """Second moments, basis and scale of one parameter group; gradients are matrices (groups, rows, columns).

    Args:
        group: the parameters' names and the modules that use them.
        parameters: the weight, or weight and bias.
        matrix: the form of the weight alone.
        left, right: the sides, right with the homogeneous 1 of a bias.
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[nn.Parameter],
        matrix: Matrix,
        left: RunningSide,
        right: RunningSide,
        options: BlockOptions,
    ) -> None:
        self.group, self.parameters, self.options = group, list(parameters), options
        self.form = MatrixForm(matrix.shape, len(parameters) == 2 and not options.rowwise)
        self.announced, self.left, self.right, self.gradients = matrix, left, right, matrix.gradients
        self.dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        self.pi = pi_of(options.pi, group.names, default=False)
        self.scale: Tensor | None = None
        self.confirmed = False  # whether gradients of this form have been seen
        self.flattened = False  # whether positions had to count as examples
        self.kept: list[Sample] = []
        self.clear()

    def clear(self) -> None:
        """Forget what was collected since the last step."""
        self.kept, self.rows, self.seen = [], 0, False
        self._sums: dict[str, Tensor] = {}

    def _sum(self, key: str) -> Tensor:
        """The running sum of this step, zero at first."""
        if key not in self._sums:
            groups, rows, columns = self.form.shape
            own = {"left": self.left.shape(groups), "right": self.right.shape(groups)}
            shape = own.get(key, (groups, rows, columns + self.form.bias))
            self._sums[key] = torch.zeros(shape, dtype=self.dtype, device=self.parameters[0].device)
        return self._sums[key]

    def collect(self, samples: Sequence[Sample], *, factors: bool, squares: bool, keep: bool) -> None:
        """Add a minibatch to the sums: second moments of the sides, squares in the basis, or keep it for later."""
        self.seen = True
        if factors and self.options.factors:
            for sample in samples:
                self._add_factors(sample)
        if keep:
            self.kept += samples
        elif squares:
            self.add_squares(samples)

    def _chunks(self, sample: Sample, cells: int = 0) -> Iterator[OuterSum]:
        """Gradients of the block's form: written out where the layer has another one."""
        for outer in sample.chunks(max(self.form.dim if self.options.rowwise else cells, sample.cells_per_example())):
            fits = outer.matrix_shape == self.form.shape and not self.options.rowwise
            yield outer if fits else OuterSum.explicit(outer.rows())

    def _add_factors(self, sample: Sample) -> None:
        sharing = self.options.sharing
        channels = isinstance(self.right, RunningChannels)
        for outer in self._chunks(sample):
            self.rows += outer.examples * (outer.positions if sharing == "expand" else 1)
            self._sum("left").add_(self.left.measure(outer, "left", sharing))
            if not channels:
                self._sum("right").add_(self.right.measure(outer, "right", sharing))
        if isinstance(self.right, RunningChannels):
            self._sum("right").add_(self.right.measure_inputs(sample, self.form.shape[0]))

    def add_squares(self, samples: Sequence[Sample]) -> None:
        """sum over examples of the squared entries of U_B^T g U_A, into the sums."""
        size = self.form.dim
        for sample in samples:
            for outer in self._chunks(sample, size):
                self._sum("squares").add_(squares_in_bases(outer, *self._bases))

    def factor_sums(self, gain: float) -> list[Tensor]:
        """This step's sums of a a^T and g g^T, the gradients made per-example ones by the gain."""
        left, right = self._sum("left"), self._sum("right")
        (left if self.gradients == "left" else right).mul_(gain**2)
        return [left, right]

    def update_factors(self, examples: float, rows: float, decay: float) -> None:
        """Running averages of A = 1/N sum a a^T and B = 1/(N T) sum g g^T.

        Args:
            examples: N over all processes.
            rows: N T, likewise; 1/(N T) is 1/N for the mean over positions of "reduce".
            decay: weight of the old ones.

        A full block is B alone, 1/N sum g g^T, beside a 1.
        """
        left_first = self.gradients == "left" and not self.options.rowwise
        by = (rows, examples) if left_first else (examples, rows)
        for key, side, count in (("left", self.left, by[0]), ("right", self.right, by[1])):
            side.absorb(side.side(self._sum(key) / count, rows / examples), decay, rows)

    def square_sums(self, gain: float) -> Tensor:
        """This step's sum of squares, with what was kept for the new basis."""
        self.add_squares(self.kept)
        self.kept = []
        return self._sum("squares").mul_(gain**2)

    def update_scale(self, examples: float, decay: float) -> None:
        """s* <- decay s* + (1 - decay) 1/N sum of squares."""
        squares = self._sums.pop("squares") / examples
        self.scale = squares if self.scale is None or decay == 0 else self.scale.lerp_(squares, 1 - decay)

    def collected_is_finite(self) -> bool:
        """Whether all sums of this step are."""
        return all(bool(torch.isfinite(total.sum())) for total in self._sums.values())

    @property
    def based(self) -> bool:
        """Whether there is a basis (or an inverse)."""
        if self.options.inverse == "cholesky":
            return self.left.inverse is not None
        return self.left.values is not None or not self.options.factors

    @property
    def ready(self) -> bool:
        """Whether a gradient can be preconditioned."""
        return self.based and (self.scale is not None or self.options.inverse == "cholesky" or self._scales_itself)

    @property
    def _scales_itself(self) -> bool:
        return self.options.scale == "batch" and not self.options.factors

    @property
    def _bases(self) -> tuple[Basis, Basis]:
        assert self.left.basis is not None and self.right.basis is not None
        return self.left.basis, self.right.basis

    def rebase(self, old: tuple[Basis | None, Basis | None]) -> None:
        """The scale in the new basis: KFAC's eigenvalues, the old scale carried over, or the old numbers."""
        known = self.scale is not None and self.options.scale != "kronecker"
        if known and self.options.rebase == "keep":
            return
        if known and self.options.rebase == "transport":
            assert self.scale is not None
            (left, right), (before_left, before_right) = self._bases, old
            if before_left is not None and before_right is not None:
                of_left, of_right = partial(left.transport, old=before_left), partial(right.transport, old=before_right)
                self.scale = both(self.scale, of_left, of_right)
            return
        assert self.left.values is not None and self.right.values is not None
        self.scale = self.left.values[:, :, None] * self.right.values[:, None, :]

    def invert(self, epsilon: float) -> None:
        """(A + pi sqrt(eps))^-1 and (B + sqrt(eps) / pi)^-1; for a full block (B + eps)^-1."""
        if self.options.rowwise:
            ones = torch.ones_like(self.left.mean_value())
            self.left.invert(ones * epsilon)
            self.right.invert(ones * 0)
            return
        pi = balance(self.left.mean_value(), self.right.mean_value(), self.pi, self.gradients == "right")
        self.left.invert(epsilon**0.5 / pi)
        self.right.invert(epsilon**0.5 * pi)

    def turned(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """U_B^T M and its coordinates on the right, U_B^T M U_A."""
        left, right = self._bases
        half = left.into(matrix.mT).mT
        return half, right.into(half)

    def rotate(self, matrix: Tensor) -> Tensor:
        """U_B^T M U_A."""
        return self.turned(matrix)[1]

    def natural(self, matrix: Tensor, epsilon: float) -> Tensor:
        """The preconditioned gradient, of the shape of the gradient (groups, rows, columns)."""
        if self.options.inverse == "cholesky":
            assert self.left.inverse is not None and self.right.inverse is not None
            return both(matrix, self.left.inverse.product, self.right.inverse.product)
        return self.natural_from(*self.turned(matrix), epsilon)

    def natural_from(self, half: Tensor, rotated: Tensor, epsilon: float) -> Tensor:
        """The same from the gradient as `turned` gives it: divide by s + eps', keep the top modes, turn back."""
        assert self.scale is not None
        left, right = self._bases
        pi = torch.ones((len(self.scale), 1), dtype=self.dtype, device=self.scale.device)
        if self.pi is not False and self.left.values is not None and self.right.values is not None:
            of_left, of_right = left.spread(self.left.values), right.spread(self.right.values)
            means = of_left.mean(-1, keepdim=True), of_right.mean(-1, keepdim=True)
            pi = balance(*means, self.pi, self.gradients == "right")
        divisor = damped(self.scale, self.left.values, self.right.values, epsilon, self.options.form, pi)
        if self.options.cutoff is not None:
            divisor = divisor.masked_fill_(~self._top_modes(), torch.inf)
        return right.divided(half, rotated, divisor, lambda x: left.out_of(x.mT).mT)

    def _top_modes(self) -> Tensor:
        """True for the modes of the largest scales."""
        assert self.scale is not None and self.options.cutoff is not None
        cutoff, size = self.options.cutoff, self.scale.numel()
        count = min(size, cutoff if isinstance(cutoff, int) else max(1, round(cutoff * size)))
        mask = torch.zeros(size, dtype=torch.bool, device=self.scale.device)
        mask[self.scale.flatten().topk(count).indices] = True
        return mask.reshape(self.scale.shape)

    def track(self, rotated: Tensor, weight: float, decay: float) -> None:
        """EKFAC-ra: s <- decay s + (1 - decay) weight rotated^2, weight = N for a mean gradient."""
        if self.scale is None:
            self.scale = rotated.square().mul_(weight)
        else:
            self.scale.mul_(decay).addcmul_(rotated, rotated, value=(1 - decay) * weight)

    def quadratic(self, matrix: Tensor) -> Tensor:
        """d^T F d in the block's own approximation of F, for a step d (groups, rows, columns)."""
        if self.options.inverse == "cholesky":
            left, right = self._statistics
            return (matrix * both(matrix, left.product, right.product)).sum()
        assert self.scale is not None
        return self._bases[1].spread(self.scale * self.rotate(matrix).square()).sum()

    @property
    def _statistics(self) -> tuple[Side, Side]:
        assert self.left.statistic is not None and self.right.statistic is not None
        return self.left.statistic, self.right.statistic

    def matrix(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the parameters' shapes as (groups, rows, columns)."""
        if self.options.rowwise:
            return torch.cat([tensor.to(self.dtype).flatten() for tensor in tensors]).reshape(self.form.shape)
        weight = tensors[0].to(self.dtype).reshape(self.form.shape)
        if not self.form.bias:
            return weight
        return torch.cat([weight, tensors[1].to(self.dtype).reshape(*self.form.shape[:2], 1)], -1)

    def tensors(self, matrix: Tensor) -> list[Tensor]:
        """The inverse: views of the parameters' shapes."""
        if self.options.rowwise:
            parts = list(matrix.flatten().split([p.numel() for p in self.parameters]))
        else:
            parts = [matrix[..., :-1], matrix[..., -1]] if self.form.bias else [matrix]
        return [part.reshape(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def as_pmat_block(self) -> EigenBlock | KronBlock:
        """The block's approximation of F, as the blocks of a `PMat` hold it."""
        if self.options.inverse == "cholesky":
            left, right = (side.map(torch.clone) for side in self._statistics)
            return KronBlock(left, right, self.form)
        assert self.scale is not None
        first, second = self._bases
        return EigenBlock(first.completed(), second.completed(), second.spread(self.scale).clone(), self.form)

    def state(self) -> dict[str, Any]:
        """Everything that a later step depends on."""
        return {"left": self.left.state(), "right": self.right.state(), "scale": self.scale}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        self.left.load(state["left"])
        self.right.load(state["right"])
        self.scale = state["scale"]
        self.clear()

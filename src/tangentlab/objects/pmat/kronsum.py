"""PMatKronSum: layer blocks as means of one Kronecker product per example, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.memory import require_memory
from tangentlab.errors import StructureError
from tangentlab.layers import OuterSum
from tangentlab.linalg import safe_eigh
from tangentlab.objects.pmat.basis import Basis
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names
from tangentlab.objects.pmat.kronecker import MatrixForm
from tangentlab.objects.pmat.side import both

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


class KronSumBlock(Block):
    """sum_m (matrices_m) (x) inputs_m inputs_m^T on [W | b], row-major: inputs (m, columns), matrices (m, rows, rows)."""

    stored = ("inputs", "matrices")
    linear = ("matrices",)

    def __init__(self, inputs: Tensor, matrices: Tensor, form: MatrixForm) -> None:
        self.inputs, self.matrices, self.form, self.dim = inputs, matrices, form, form.dim

    def product(self, rows: Tensor) -> Tensor:
        """sum_m H_m V a_m a_m^T: m (rows columns + rows^2) operations, twice."""
        images = self.form.to_matrix(rows)[:, 0] @ self.inputs.t()
        weighted = torch.einsum("mrs,bsm->brm", self.matrices, images)
        return self.form.to_flat((weighted @ self.inputs)[:, None])

    def dense(self) -> Tensor:
        """(dim, dim) in flat order."""
        require_memory(
            self.dim**2 * self.inputs.element_size(),
            f"A dense block over {self.dim:,} parameters",
            "Products, traces and norms need none.",
        )
        rows, columns = self.matrices.shape[1], self.inputs.shape[1]
        matrix = torch.einsum("mrs,mc,md->rcsd", self.matrices, self.inputs, self.inputs)
        matrix = matrix.reshape(rows * columns, rows * columns)
        order = self.form.to_flat(torch.arange(rows * columns).reshape(1, 1, rows, columns))[0]
        return matrix[order][:, order]

    def _spectrum(self) -> Spectrum:
        return Spectrum.of_basis(*safe_eigh(self.dense()))

    def diag(self) -> Tensor:
        """sum_m diag(H_m) a_m^2."""
        diagonals = self.matrices.diagonal(dim1=1, dim2=2)
        return self.form.to_flat((diagonals.t() @ self.inputs.square())[None])

    def trace(self) -> Tensor:
        """sum_m tr H_m |a_m|^2."""
        return (self.matrices.diagonal(dim1=1, dim2=2).sum(1) * self.inputs.square().sum(1)).sum()

    def squared_norm(self) -> Tensor:
        """sum_mn <H_m, H_n> <a_m, a_n>^2."""
        flat = self.matrices.flatten(1)
        return ((flat @ flat.t()) * (self.inputs @ self.inputs.t()).square()).sum()

    def diagonal_in(self, left: Basis, right: Basis) -> Tensor:
        """sum_m diag(U_L^T H_m U_L) ((U_R^T a_m)^2)^T, (k_L, k_R): the diagonal in a Kronecker basis of one group."""
        turned = both(self.matrices[:, None], left.into, left.into)[:, 0]
        return turned.diagonal(dim1=1, dim2=2).t() @ right.into(self.inputs[:, None, None])[:, 0, 0].square()

    def parts(self) -> tuple[KronSumBlock, KronSumBlock]:
        """The diagonal blocks of the weight and of the bias."""
        forms = (MatrixForm((1, self.form.shape[1], columns), bias=False) for columns in (self.form.shape[2], 1))
        inputs = self.inputs[:, :-1], self.inputs[:, -1:]
        weight, bias = (KronSumBlock(x, self.matrices, form) for x, form in zip(inputs, forms, strict=True))
        return weight, bias

    def plus(self, other: Block) -> Block | None:
        """The terms of both."""
        if not isinstance(other, KronSumBlock):
            return None
        inputs, matrices = torch.cat([self.inputs, other.inputs]), torch.cat([self.matrices, other.matrices])
        return KronSumBlock(inputs, matrices, self.form)


class KronSumBuilder:
    """Collects inputs, and sums of output-gradient products over cotangents, example by example."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.inputs: list[Tensor] = []
        self.matrices: list[Tensor] = []
        self.form: MatrixForm | None = None

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """New examples with the first chunk of a batch, more cotangents of the same examples with the others."""
        (factor,) = factors
        if not factor.is_single_product:
            raise StructureError(no_single_product([self.group]))
        self.form = self.form or MatrixForm(factor.matrix_shape, factor.bias)
        grads = factor.left[:, :, 0, 0]
        matrices = torch.einsum("kno,knp->nop", grads, grads)
        if first:
            self.inputs.append(factor.homogeneous()[0, :, 0, 0])
            self.matrices.append(matrices)
        else:
            self.matrices[-1] = self.matrices[-1] + matrices

    def finish(self, examples: int) -> KronSumBlock:
        """Divide by n."""
        assert self.form is not None
        return KronSumBlock(torch.cat(self.inputs), torch.cat(self.matrices) / examples, self.form)


def no_single_product(groups: list[Group]) -> str:
    """The message for parameters whose gradient is not a single outer product per example."""
    names = ", ".join(name for group in groups for name in group.names)
    return (
        f"PMatKronSum needs layers that are applied once per example (linear layers on flat inputs), which these are not: "
        f"{names}. Use PMatBlockDiag or PMatKFAC, or layers= to leave them out."
    )


class PMatKronSum(BlockwisePMat):
    """F_l = 1/n sum_n B_n (x) a_n a_n^T exactly, for layers s = W a that are applied once per example.

    B_n is the second moment of the gradient in s over labels for a Fisher or Gauss-Newton matrix, and the Hessian of the
    loss in s for a Hessian: the blocks of PMatBlockDiag in n (d_in + d_out^2) numbers instead of (d_in d_out)^2. Products,
    traces and norms never write a block out; solves and spectra do.
    """

    @staticmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """One block per group; refuses by name what is applied more than once per example."""
        bad = [group for group, factor in factors.items() if not factor.is_single_product]
        if bad:
            raise StructureError(no_single_product(bad))
        return {group.names: ((group,), KronSumBuilder(group)) for group in factors}

    @classmethod
    def from_hessian(cls, hessian: LossHessian, separate_weight_and_bias: bool = False, **options: Any) -> PMatKronSum:
        """From inputs and Hessians in pre-activations; a block per layer, or one each for weight and bias."""
        inputs: dict[Group, list[Tensor]] = {}
        matrices: dict[Group, list[Tensor]] = {}
        for layers in hessian.preactivations():
            for group, layer in layers.items():
                inputs.setdefault(group, []).append(layer.inputs)
                matrices.setdefault(group, []).append(layer.hessians)
        blocks: dict[Names, Block] = {}
        for group, parts in inputs.items():
            matrix = torch.cat(matrices[group]) / hessian.examples
            columns, bias = parts[0].shape[1], len(group.names) == 2
            form = MatrixForm((1, matrix.shape[1], columns - bias), bias)
            joint = KronSumBlock(torch.cat(parts), matrix, form)
            apart = separate_weight_and_bias and bias
            blocks |= (
                {(n,): part for n, part in zip(group.names, joint.parts(), strict=True)}
                if apart
                else {group.names: joint}
            )
        return cls(hessian.layout, blocks, **hessian.facts)

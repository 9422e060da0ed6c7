"""The nearest Kronecker product to a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.objects.pmat.base import require_square
from tangentlab.objects.pmat.kronecker import MatrixForm


def flat_block(layout: LayerCollection, matrix: Tensor, names: tuple[str, ...]) -> Tensor:
    """The block of a matrix (d, d) on the named parameters, in their order."""
    require_square(layout, matrix)
    index = torch.cat([torch.arange(layout.slices[n].start, layout.slices[n].stop) for n in names]).to(matrix.device)
    return matrix[index][:, index]


def nearest_kronecker(block: Tensor, form: MatrixForm) -> tuple[Tensor, Tensor]:
    """left (rows, rows) and right (columns, columns) with |block - left (x) right|_F least, row-major [W | b].

    The entries of block, rearranged to (row pairs, column pairs), are a matrix whose best approximation of rank one is the
    answer (Van Loan & Pitsianis 1993); for a positive semi-definite block both factors are. Cost: a singular value
    decomposition of rows^2 x columns^2.
    """
    groups, rows, columns = form.shape
    if groups != 1:
        raise InputError("A nearest Kronecker product is defined for one group.")
    columns += form.bias
    order = form.to_flat(torch.arange(rows * columns, device=block.device).reshape(1, 1, rows, columns))[0].argsort()
    entries = block[order][:, order].reshape(rows, columns, rows, columns)
    pairs = entries.permute(0, 2, 1, 3).reshape(rows**2, columns**2)
    left, values, right = torch.linalg.svd(pairs, full_matrices=False)
    scale = values[0].sqrt()
    first, second = scale * left[:, 0].reshape(rows, rows), scale * right[0].reshape(columns, columns)
    sign = -1.0 if float(first.diagonal().sum()) < 0 else 1.0
    first, second = sign * first, sign * second
    return (first + first.t()) / 2, (second + second.t()) / 2

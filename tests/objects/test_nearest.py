"""The nearest Kronecker product to a matrix."""

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.testing.small_models import mlp


def positive(size: int, seed: int) -> Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T


@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_product_of_a_positive_matrix_has_positive_factors_and_a_residual_without_any_product(seed):
    """|F - A (x) B| is least where <F - A (x) B, X (x) B> = <F - A (x) B, A (x) Y> = 0 for all X and Y."""
    model = mlp().double()
    layout = LayerCollection.from_model(model)
    matrix = positive(layout.numel, seed)
    K = tl.PMatKFAC.from_dense(layout, matrix)
    rest = matrix - K.to_dense()
    for names, block in K.blocks.items():
        left, right = block.left[0], block.right[0]
        for factor in (left, right):
            assert float(torch.linalg.eigvalsh(factor).min()) > -1e-12 * float(factor.norm())
        index = torch.cat([torch.arange(layout.slices[n].start, layout.slices[n].stop) for n in names])
        rows, columns = len(left), len(right)
        weight = torch.arange(rows * (columns - 1)).reshape(rows, columns - 1)
        order = torch.cat([weight, rows * (columns - 1) + torch.arange(rows)[:, None]], 1).flatten()
        cells = rest[index][:, index][order][:, order].reshape(rows, columns, rows, columns)
        size = float(left.norm() * right.norm())
        assert float(torch.einsum("aibj,ij->ab", cells, right).abs().max()) < 1e-10 * size * float(right.norm())
        assert float(torch.einsum("aibj,ab->ij", cells, left).abs().max()) < 1e-10 * size * float(left.norm())

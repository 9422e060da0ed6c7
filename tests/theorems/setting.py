"""What the theorems speak of: blocks of the exact matrix, the basis of KFAC, Kronecker factors."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.testing import truth
from tangentlab.testing.small_models import Case, case_of


def blocks_of(exact: Tensor, F: tl.PMat) -> Tensor:
    """The exact matrix inside the blocks of a representation, zero between them."""
    group = torch.empty(len(exact), dtype=torch.long)
    for number, names in enumerate(F.blocks):
        for name in names:
            group[F.layout.slices[name]] = number
    return torch.where(group[:, None] == group[None, :], exact, 0.0)


def _factors(case: Case) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(A, B, places (rows, columns) in the flat vector) of every layer and group."""
    for layer in case.recipe.kron:
        a, b = truth.kronecker_factors(truth.layer_data(case, layer), "expand")
        embedding = isinstance(case.model.get_submodule(layer.modules[0]), nn.Embedding)
        yield from zip(a, b, truth.flat_index(case, layer, b.shape[-1], a.shape[-1], a.shape[0], embedding))


def kronecker_basis(case: Case) -> Tensor:
    """Q of KFAC: the columns of U_B x U_A, in flat order."""
    basis = torch.zeros_like(truth.exact(case.name))
    for a, b, places in _factors(case):
        block = torch.kron(torch.linalg.eigh(b)[1].contiguous(), torch.linalg.eigh(a)[1].contiguous())
        truth.place(basis, places, block)
    return basis


def kronecker_eigenvalues(case: Case) -> tuple[Tensor, Tensor]:
    """S_A x S_B and S_A x 1 + 1 x S_B, in the order of the columns of `kronecker_basis`."""
    products, sums = torch.zeros(2, len(truth.exact(case.name)), dtype=torch.float64)
    for a, b, places in _factors(case):
        one, two = torch.linalg.eigvalsh(a)[None, :], torch.linalg.eigvalsh(b)[:, None]
        products[places.flatten()], sums[places.flatten()] = (one * two).flatten(), (one + two).flatten()
    return products, sums


def rows_of(name: str) -> Tensor:
    """All gradients sqrt(p_c) dlog p_c of a small model, so that F = 1/n sum r r^T, (rows, d)."""
    case = case_of(name)
    return truth.weighted_rows(case.model, case.inputs).flatten(0, 1)


def squared(matrix: Tensor) -> Tensor:
    """Squared Frobenius norm."""
    return matrix.square().sum()

"""Kronecker factors from few rows stay thin, and nothing about the matrix changes by that."""

import pickle

import pytest
import torch
from torch import Tensor, nn

from tangentlab import FIM, FIM_MonteCarlo, PMatDiag, PMatEKFAC, PMatKFAC, PMatMixed, PVector
from tangentlab.objects.pmat.basis import DenseBasis
from tangentlab.objects.pmat.kronecker import EigenBlock, KronBlock
from tangentlab.objects.pmat.side import ThinSide


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 5)
    ).double()


def images(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def thin_blocks(matrix: PMatKFAC) -> int:
    return sum(isinstance(s, ThinSide) for b in matrix.blocks.values() if isinstance(b, KronBlock) for s in b.sides)


def test_few_examples_give_thin_factors_and_many_give_dense_ones(net: nn.Module) -> None:
    assert thin_blocks(FIM(net, images(6), PMatKFAC)) == 2
    assert thin_blocks(FIM(net, images(70), PMatKFAC)) == 0


def test_a_thin_factor_is_the_second_moment_of_its_inputs(net: nn.Module) -> None:
    x = images(6)
    kfac = FIM(net, x, PMatKFAC)
    features = net[:3](x)
    inputs = torch.cat([features, torch.ones(6, 1)], 1).detach()
    block = kfac.blocks["3.weight", "3.bias"]
    assert isinstance(block, KronBlock) and isinstance(block.sides[1], ThinSide)
    torch.testing.assert_close(block.right[0], inputs.t() @ inputs / 6)


def test_batches_that_cross_from_thin_to_dense_give_the_same_matrix(net: nn.Module) -> None:
    x = images(70)
    whole = FIM(net, x, PMatKFAC).to_dense()
    for size in (3, 30, 69):
        parts = FIM(net, [(part,) for part in x.split(size)], PMatKFAC)
        assert thin_blocks(parts) == 0
        torch.testing.assert_close(parts.to_dense(), whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("factored", [False, True])
def test_thin_and_dense_storage_solve_alike(net: nn.Module, factored: bool) -> None:
    thin = FIM(net, images(6), PMatKFAC)
    blocks = {n: KronBlock(b.left, b.right, b.form) for n, b in thin.blocks.items() if isinstance(b, KronBlock)}
    dense = PMatKFAC(thin.layout, blocks)
    v = PVector.random_unit(net, batch=3, generator=torch.Generator().manual_seed(2))
    for damping in (1e-6, 1e-2, 10.0):
        one, two = (m.solve(v, damping, factored=factored).flat for m in (thin, dense))
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-7 * float(two.abs().max()))
    for one, two in ((thin.trace(), dense.trace()), (thin.norm(), dense.norm()), (thin.logdet(0.1), dense.logdet(0.1))):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(thin.mv(v).flat, dense.mv(v).flat)
    torch.testing.assert_close(thin.diag().flat, dense.diag().flat)
    torch.testing.assert_close(thin.eigvalsh(), dense.eigvalsh(), rtol=1e-8, atol=1e-12)
    for power in (2, 0.5):
        torch.testing.assert_close(thin.pow(power).to_dense(), dense.pow(power).to_dense(), rtol=1e-7, atol=1e-10)


def test_a_thin_ekfac_inverts_the_directions_that_it_never_saw(net: nn.Module) -> None:
    ekfac = FIM(net, images(6), PMatEKFAC)
    assert any(block.is_thin for block in ekfac.blocks.values() if isinstance(block, EigenBlock))
    dense = ekfac.to_dense()
    identity = torch.eye(len(dense), dtype=dense.dtype)
    truth = torch.linalg.inv(dense + 0.01 * identity)
    torch.testing.assert_close(ekfac.inverse(0.01).to_dense(), truth, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ekfac.solve(identity, 0.01), truth, rtol=1e-8, atol=1e-8)


def test_the_trace_stays_exact_after_update_diag_on_new_data(net: nn.Module) -> None:
    ekfac = FIM(net, images(6), PMatEKFAC)
    torch.testing.assert_close(ekfac.trace(), FIM(net, images(6), PMatDiag).trace())
    other = images(9, seed=5)
    ekfac.update_diag(other)
    torch.testing.assert_close(ekfac.trace(), FIM(net, other, PMatDiag).trace())
    ekfac.update_diag(images(6))
    torch.testing.assert_close(ekfac.trace(), FIM(net, images(6), PMatDiag).trace())


def test_the_mixed_default_with_ekfac_has_the_exact_trace(net: nn.Module) -> None:
    mixed = FIM(net, images(6), PMatMixed.default(kronecker=PMatEKFAC))
    torch.testing.assert_close(mixed.trace(), FIM(net, images(6), PMatDiag).trace())


def test_thin_matrices_survive_pickling_and_change_of_precision(net: nn.Module) -> None:
    for kind in (PMatKFAC, PMatEKFAC):
        matrix = FIM_MonteCarlo(net, images(6), kind, generator=torch.Generator().manual_seed(3))
        copy = pickle.loads(pickle.dumps(matrix))
        assert type(copy) is kind
        torch.testing.assert_close(copy.to_dense(), matrix.to_dense())
        single = matrix.to(torch.float32)
        torch.testing.assert_close(single.to_dense().double(), matrix.to_dense(), rtol=1e-4, atol=1e-5)


def test_a_completed_basis_keeps_its_columns_and_is_orthogonal() -> None:
    columns = torch.linalg.qr(torch.randn(2, 7, 3, dtype=torch.float64))[0]
    full = DenseBasis(columns).completed().vectors
    torch.testing.assert_close(full[..., :3], columns)
    torch.testing.assert_close(full.transpose(-1, -2) @ full, torch.eye(7, dtype=torch.float64).expand(2, 7, 7))


@pytest.mark.parametrize("kept", [3, 40])
def test_along_the_first_eigenvector_a_small_weight_is_not_lost_beside_a_large_rest(kept: int) -> None:
    vectors = torch.linalg.qr(torch.randn(1, 60, kept, generator=torch.Generator().manual_seed(1)))[0]
    weights, rest = torch.linspace(1.0, 2.0, kept), torch.tensor(1e5)
    first = vectors[..., 0]
    found = DenseBasis(vectors).weighted(first, weights, rest)
    torch.testing.assert_close((found * first).sum(), weights[0], rtol=1e-5, atol=0)

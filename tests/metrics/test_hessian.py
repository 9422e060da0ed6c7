"""Hessians in every representation that can hold them, against rows of second derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import NumericsError, StructureError
from tangentlab.testing.dense_truth import assert_close, vectors
from tangentlab.testing.small_models import ALL, EXAMPLES, case_of
from tangentlab.testing.truth import slices_of
from tests.metrics.curvature_truth import cross_entropy, hessian, huberized


@pytest.mark.parametrize("name", ALL)
def test_hessian_in_every_exact_representation(name):
    case = case_of(name, split="uneven batches")
    expected = hessian(case, cross_entropy)
    implicit = tl.Hessian(case.model, case.batches)
    v = vectors(case, 2)
    assert_close((implicit @ v).flat, v.flat @ expected, factor=10)
    assert_close(tl.Hessian(case.model, case.batches, tl.PMatDense).to_dense(), expected, factor=10)
    assert_close(tl.Hessian(case.model, case.batches, tl.PMatDiag).diag().flat, expected.diagonal(), factor=10)
    assert_close(implicit.diag().flat, expected.diagonal(), factor=10)
    assert_close(implicit.trace(), expected.trace(), factor=10)


@pytest.mark.parametrize("name", ["mlp", "norms", "tied weights", "grouped convolution"])
def test_block_diagonal_hessian_keeps_the_entries_within_a_module(name):
    case = case_of(name)
    owners = [key.rpartition(".")[0] for key, s in slices_of(case.model).items() for _ in range(s.stop - s.start)]
    same = torch.tensor([[a == b for b in owners] for a in owners])
    H = tl.Hessian(case.model, case.batches, tl.PMatBlockDiag, loss=huberized)
    assert_close(H.to_dense(), torch.where(same, hessian(case, huberized), 0.0))


@pytest.mark.parametrize("name", ["mlp", "frozen bias", "bias first"])
def test_kronecker_sum_over_examples_is_the_exact_block_of_the_hessian(name):
    """H_l = 1/n sum a a^T (x) Hess_s, exactly."""
    case = case_of(name, split="uneven batches")
    H, blocks = (
        tl.Hessian(case.model, case.batches, kind, loss=huberized) for kind in (tl.PMatKronSum, tl.PMatBlockDiag)
    )
    assert_close(H.to_dense(), blocks.to_dense())
    v = vectors(case, 2)
    assert_close((H @ v).flat, v.flat @ blocks.to_dense())
    assert_close(H.trace(), blocks.trace())
    assert_close(H.norm(), blocks.norm())
    assert_close(H.diag().flat, blocks.diag().flat)


def test_kfac_of_a_hessian_is_the_product_of_the_means_and_exact_for_one_example():
    case = case_of("mlp")
    H = tl.Hessian(case.model, case.batches, tl.PMatKFAC, loss=huberized)
    terms = tl.Hessian(case.model, case.batches, tl.PMatKronSum, loss=huberized)
    for names, block in H.blocks.items():
        term = terms.blocks[names]
        assert_close(block.left[0], term.matrices.sum(0))
        assert_close(block.right[0], term.inputs.t() @ term.inputs / EXAMPLES)
    one = (case.inputs[:1], case.targets[:1])
    exact = tl.Hessian(case.model, one, tl.PMatBlockDiag, loss=huberized)
    assert_close(tl.Hessian(case.model, one, tl.PMatKFAC, loss=huberized).to_dense(), exact.to_dense())


def test_low_rank_hessian_keeps_the_eigenpairs_of_largest_magnitude():
    case = case_of("mlp")
    expected = hessian(case, cross_entropy)
    values, basis = torch.linalg.eigh(expected)
    keep = values.abs().argsort(descending=True)[:4]
    best = (basis[:, keep] * values[keep]) @ basis[:, keep].t()
    H = tl.Hessian(case.model, case.batches, tl.PMatLowRank.with_options(rank=4))
    assert_close(H.to_dense(), best, factor=100)


def test_hessian_is_indefinite_and_says_what_damping_makes_it_solvable():
    case = case_of("mlp")
    H = tl.Hessian(case.model, case.batches, tl.PMatDense)
    bottom = H.top_eigenpairs(1, which="bottom").values[0]
    assert bottom < 0
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        H.logdet()
    enough = -2 * float(bottom)
    implicit = tl.Hessian(case.model, case.batches)
    v = vectors(case)
    expected = torch.linalg.solve(H.to_dense() + enough * torch.eye(H.dim, dtype=torch.float64), v.flat)
    assert_close(implicit.solve(v, enough).flat, expected, factor=1e3)


def test_gauss_newton_and_hessian_agree_where_the_model_is_linear():
    model = nn.Linear(3, 3).double()
    case = case_of("mlp")
    G, H = (make(model, case.batches, tl.PMatDense, loss=huberized) for make in (tl.GGN, tl.Hessian))
    assert_close(G.to_dense(), H.to_dense())


def test_representations_of_second_moments_refuse_a_hessian():
    case = case_of("mlp")
    with pytest.raises(StructureError, match="second moments"):
        tl.Hessian(case.model, case.batches, tl.PMatMixed)
    for kind in (tl.PMatKronSum, tl.PMatKFAC, tl.PMatEKFAC):
        with pytest.raises(StructureError, match="0.weight"):
            tl.Hessian(case_of("grouped convolution").model, case_of("grouped convolution").batches, kind)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", ["mlp", "frozen bias", "bias first"])
def test_ekfac_of_a_hessian_has_the_diagonal_of_the_exact_blocks_in_the_basis_of_kfac(name, separate):
    case = case_of(name, split="uneven batches")
    exact = hessian(case, huberized)
    kfac, ekfac = (
        tl.Hessian(case.model, case.batches, kind.with_options(separate_weight_and_bias=separate), loss=huberized)
        for kind in (tl.PMatKFAC, tl.PMatEKFAC)
    )
    assert list(ekfac.blocks) == list(kfac.blocks)
    for names, block in ekfac.blocks.items():
        assert len(names) == 1 or not separate
        where = torch.cat([torch.arange(ekfac.dim)[ekfac.layout.slices[n]] for n in names])
        own = exact[where][:, where]
        vectors_of_kfac = kfac.blocks[names].spectrum.back(torch.eye(block.dim, dtype=torch.float64))
        assert_close(block.scale.flatten(), ((vectors_of_kfac @ own) * vectors_of_kfac).sum(1))
        error, of_kfac = ((own - b.dense()).norm() for b in (block, kfac.blocks[names]))
        assert error <= of_kfac + 1e-12
    assert_close(ekfac.trace(), exact.trace())


@pytest.mark.parametrize("form", ["ollivier", "arrow"])
@pytest.mark.parametrize("name", ["mlp", "norms", "grouped convolution", "embedding", "tied weights", "bias first"])
def test_quasi_diagonal_hessian_has_the_entries_of_the_hessian(name, form):
    case = case_of(name, split="uneven batches")
    exact = hessian(case, cross_entropy)
    H = tl.Hessian(case.model, case.batches, tl.PMatQuasiDiag.with_options(form=form))
    moments = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag.with_options(form=form))
    assert list(H.blocks) == list(moments.blocks)
    found = H.tensor()
    assert_close(found.diagonal(), exact.diagonal(), factor=10)
    for names in H.blocks:
        if len(names) == 2:
            weight, bias = (H.layout.slices[n] for n in names)
            units = bias.stop - bias.start
            cross = [m[weight, bias].unflatten(0, (units, -1)).diagonal(dim1=0, dim2=2) for m in (found, exact)]
            assert_close(cross[0], cross[1], factor=10)
    v, enough = vectors(case), 2 * float(found.norm())
    expected = torch.linalg.solve(found + enough * torch.eye(H.dim, dtype=torch.float64), v.flat)
    assert_close(H.solve(v, enough).flat, expected, factor=100)


def test_ollivier_form_of_a_hessian_without_second_derivative_in_a_bias_is_refused():
    model = nn.Linear(1, 1).double()
    batch = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([1.0, -1.0]).double()
    saddle = lambda outputs, signs: signs * outputs[:, 0].square() / 2  # noqa: E731
    dense = tl.Hessian(model, batch, tl.PMatDense, loss=saddle).tensor()
    assert_close(dense, torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double())
    with pytest.raises(StructureError, match="form='arrow'"):
        tl.Hessian(model, batch, tl.PMatQuasiDiag, loss=saddle)
    assert_close(tl.Hessian(model, batch, tl.PMatQuasiDiag.with_options(form="arrow"), loss=saddle).tensor(), dense)


def test_second_derivatives_through_fused_attention_take_the_ladder():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 12)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.inner(x).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v).mean((1, 2))[:, :3]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Attention().double()
        x = torch.randn(3, 5, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2])
    H = tl.Hessian(model, (x, y))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        dense = tl.Hessian(model, (x, y), tl.PMatDense).to_dense()
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    assert_close((H @ v).flat, dense @ v.flat)

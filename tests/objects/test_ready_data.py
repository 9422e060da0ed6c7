"""Matrices from ready data: dense forms, factors, rows."""

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, StructureError
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import case_of
from tests.objects.test_operations import KINDS


def random_matrix(layout: LayerCollection) -> Tensor:
    rows = torch.randn(layout.numel, layout.numel, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return rows @ rows.t() / layout.numel


ROUND_TRIPS = ["dense", "block-diagonal", "diagonal", "quasi-diagonal", "KFAC", "EKFAC", "low rank"]


@pytest.mark.parametrize("kind", ROUND_TRIPS)
@pytest.mark.parametrize("name", ["mlp", "bias first", "norms"])
def test_building_from_the_dense_form_of_a_matrix_of_the_same_kind_gives_it_back(kind, name):
    case = case_of(name)
    layout = LayerCollection.from_model(case.model)
    cls = KINDS[kind]
    stored = cls.from_dense(layout, random_matrix(layout), examples=5)
    again = cls.from_dense(layout, stored.to_dense(), examples=5)
    assert type(again) is cls and again.examples == 5
    assert_close(again.to_dense(), stored.to_dense(), factor=10)


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_building_from_a_matrix_of_another_size_is_refused(kind):
    layout = LayerCollection.from_model(case_of("mlp").model)
    with pytest.raises(InputError, match="expected"):
        KINDS[kind].from_dense(layout, torch.eye(3))


def test_what_holds_a_model_cannot_be_built_from_a_matrix():
    layout = LayerCollection.from_model(case_of("mlp").model)
    for kind in (tl.PMatImplicit, tl.PMatSum, tl.PMatKronSum):
        with pytest.raises(StructureError, match="cannot be made from a matrix"):
            kind.from_dense(layout, torch.eye(layout.numel))


def test_kfac_from_factors_is_their_kronecker_product():
    case = case_of("mlp")
    layout = LayerCollection.from_model(case.model)
    generator = torch.Generator().manual_seed(2)
    factors = {}
    for layer, (a, b) in {"0": (4, 4), "2": (5, 3)}.items():
        factors[layer] = tuple(torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (a, b))
        factors[layer] = tuple(m @ m.t() for m in factors[layer])
    F = tl.PMatKFAC.from_factors(layout, factors)
    V = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    v = tl.PVector(layout, torch.cat([V[:, :-1].flatten(), V[:, -1], torch.zeros(15, dtype=torch.float64)]))
    image = factors["0"][1] @ V @ factors["0"][0]
    assert_close((F @ v)["0.weight"], image[:, :-1])
    assert_close((F @ v)["0.bias"], image[:, -1])
    with pytest.raises(InputError, match="No factors for '2'"):
        tl.PMatKFAC.from_factors(layout, {"0": factors["0"]})
    with pytest.raises(InputError, match="sizes"):
        tl.PMatKFAC.from_factors(layout, factors | {"2": factors["0"]})


def test_ekfac_from_factors_scales_the_given_basis():
    case = case_of("mlp")
    kfac = tl.FIM(case.model, case.batches, tl.PMatKFAC)
    factors = {}
    for names, block in kfac.blocks.items():
        u_b, u_a = (basis.vectors[0] for _, basis in block.bases)
        factors[names[0].rpartition(".")[0]] = u_a, u_b, torch.ones(len(u_b), len(u_a), dtype=u_a.dtype)
    F = tl.PMatEKFAC.from_factors(kfac.layout, factors)
    assert_close(F.to_dense(), torch.eye(F.dim, dtype=torch.float64))


def test_quasi_diagonal_from_factors_has_the_given_entries():
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag.with_options(form="arrow"))
    cross = {names[0]: block.cross for names, block in F.blocks.items()}
    again = tl.PMatQuasiDiag.from_factors(F.layout, F.diag(), cross, form="arrow")
    assert_close(again.to_dense(), F.to_dense())
    with pytest.raises(InputError, match="no bias"):
        tl.PMatQuasiDiag.from_factors(F.layout, F.diag(), {"0.bias": cross["0.weight"]})


def test_low_rank_from_factors_is_the_weighted_sum_of_outer_products():
    layout = LayerCollection.from_model(case_of("mlp").model)
    rows = torch.randn(3, layout.numel, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    F = tl.PMatLowRank.from_factors(layout, rows, weights=[1.0, -2.0, 0.5])
    expected = torch.outer(rows[0], rows[0]) - 2 * torch.outer(rows[1], rows[1]) + 0.5 * torch.outer(rows[2], rows[2])
    assert_close(F.to_dense(), expected)
    assert_close(F.eigvalsh(), torch.linalg.eigvalsh(expected))
    assert F.rank == 3
    with pytest.raises(InputError, match="Rows"):
        tl.PMatLowRank.from_factors(layout, rows[:, 1:])


def test_truncated_low_rank_is_the_best_of_its_rank():
    case = case_of("mlp")
    full = tl.FIM(case.model, case.batches)
    values, vectors_ = torch.linalg.eigh(full.to_dense())
    best = (vectors_[:, -2:] * values[-2:]) @ vectors_[:, -2:].t()
    assert_close(tl.FIM(case.model, case.batches, tl.PMatLowRank.with_options(rank=2)).to_dense(), best)
    assert_close(tl.PMatLowRank.from_dense(full.layout, full.to_dense(), rank=2).to_dense(), best)

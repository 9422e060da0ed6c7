"""Parameters without entries and experts without tokens: every matrix is there, with zeros where nothing was."""

from typing import Any

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tests.engine.truth import dense_jacobian
from tests.zoo import by_name

ANIMALS = ["EmptyParameters", "Experts-one-example", "Experts-one-without-tokens"]
EXACT = [tl.PMatDense, tl.PMatLowRank, tl.PMatImplicit]
each_animal = pytest.mark.parametrize("name", ANIMALS)


def fisher(name: str) -> Tensor:
    """Of a regression."""
    model, x = by_name(name).catch()
    rows = dense_jacobian(model, x).flatten(0, 1)
    return rows.t() @ rows / len(x)


@each_animal
@pytest.mark.parametrize("kind", EXACT)
def test_fisher_matrices_are_exact(name: str, kind: Any) -> None:
    torch.testing.assert_close(tl.FIM(*by_name(name).catch(), kind, "regression").to_dense(), fisher(name))


@each_animal
@pytest.mark.parametrize("kind", [tl.PMatDiag, tl.PMatQuasiDiag, tl.PMatBlockDiag])
def test_diagonals_are_exact(name: str, kind: Any) -> None:
    found = tl.FIM(*by_name(name).catch(), kind, "regression")
    torch.testing.assert_close(found.diag().flat, fisher(name).diagonal())


@each_animal
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_kronecker_factors_are_finite_and_ekfac_has_the_exact_trace(name: str, sharing: str) -> None:
    for kind in (tl.PMatKFAC, tl.PMatEKFAC):
        found = tl.FIM(*by_name(name).catch(), tl.PMatMixed.default(kronecker=kind, sharing=sharing), "regression")
        assert torch.isfinite(found.to_dense()).all()
    torch.testing.assert_close(found.trace(), fisher(name).trace())


@each_animal
@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_kernels_are_exact(name: str, outputs: str) -> None:
    model, x = by_name(name).catch()
    rows = dense_jacobian(model, x)
    kernel = torch.einsum("knd,lmd->knlm", rows, rows)
    truth = kernel if outputs == "all" else torch.einsum("knkm->nm", kernel)[None, :, None]
    torch.testing.assert_close(tl.NTK(model, x, outputs=outputs).data, truth)


@each_animal
@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatBlockDiag, tl.PMatDiag])
def test_hessians_agree_with_products(name: str, kind: Any) -> None:
    model, x = by_name(name).catch()
    data = (x, torch.zeros(len(x), 2, dtype=x.dtype))
    truth = tl.Hessian(model, data, tl.PMatImplicit, "regression").to_dense().diagonal()
    torch.testing.assert_close(tl.Hessian(model, data, kind, "regression").diag().flat, truth)

"""Parameters without entries and experts without tokens: every matrix is there, with zeros where nothing was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


class EmptyPositions(nn.Module):
    """Layers of every kind that are called with no positions, or no examples, at all beside some that are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.idle = nn.Linear(3, 4), nn.Linear(3, 4)
        self.convolution, self.still = nn.Conv1d(3, 4, 1), nn.Conv1d(3, 4, 1)
        self.embedding, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        channels = x.transpose(1, 2)
        nothing = self.norm(self.embedding(torch.zeros(len(x), 0, dtype=torch.long)))
        images = torch.cat([self.convolution(channels), self.still(channels[:0])]).transpose(1, 2)
        return self.head(torch.cat([self.linear(x), self.idle(x[:, :0]), images, nothing], 1).tanh().mean(1))


@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("batches", [1, 2])
def test_layers_of_every_kind_without_positions_have_rows_of_zero(examples: int, batches: int) -> None:
    torch.manual_seed(0)
    model, x = EmptyPositions().double(), torch.randn(examples, 2, 3, dtype=torch.float64)
    data = [(x,)] * batches
    rows = torch.cat([dense_jacobian(model, x)] * batches, 1)
    truth = torch.einsum("knd,kne->de", rows, rows) / rows.shape[1]
    torch.testing.assert_close(tl.NTK(model, data).data, torch.einsum("knd,lmd->knlm", rows, rows))
    torch.testing.assert_close(tl.Jacobian(model, data).data, rows)
    for kind in EXACT:
        torch.testing.assert_close(tl.FIM(model, data, kind, "regression").to_dense(), truth)
    for kind in (tl.PMatDiag, tl.PMatQuasiDiag, tl.PMatBlockDiag):
        torch.testing.assert_close(tl.FIM(model, data, kind, "regression").diag().flat, truth.diagonal())
    for sharing in ("expand", "reduce"):
        mixed = tl.FIM(model, data, tl.PMatMixed.default(kronecker=tl.PMatEKFAC, sharing=sharing), "regression")
        torch.testing.assert_close(mixed.trace(), truth.trace())


@pytest.mark.parametrize("kind", [tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag, tl.PMatBlockDiag])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_that_sees_nothing_but_zeros_has_a_block_of_zeros(kind: Any, bias: bool) -> None:
    """As behind a norm whose scale starts at zero: the basis of its inputs is empty."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 1), Zeros(), nn.Conv2d(8, 4, 3, bias=bias), nn.Flatten(), nn.Linear(16, 2)
    ).double()
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    found = tl.FIM(model, x, kind, "regression", layers="2")
    rows = dense_jacobian(model, x).flatten(0, 1)
    numel = sum(p.numel() for p in model[2].parameters())
    own = rows[:, 16 : 16 + numel]
    if kind is not tl.PMatKFAC:
        torch.testing.assert_close(found.trace(), own.square().sum() / len(x))
    assert torch.isfinite(found.to_dense()).all() and not found.to_dense()[:288, :288].any()


class Zeros(nn.Module):
    """Everything times zero."""

    def forward(self, x: Tensor) -> Tensor:
        return 0 * x

"""Cotangents backpropagated one after the other, and summed up as they come, against all at once."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.engine import capture
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import Exact


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 4))
    return net.double(), torch.randn(5, 2, 6, 6, dtype=torch.float64)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "VMAP_CELLS", 0)


def test_every_cotangent_is_a_chunk_and_only_the_first_is_marked(problem, monkeypatch) -> None:
    rows = Rows(Network.of(problem[0]), problem[1], Exact(tl.Classification()))
    assert [chunk.first for chunk in rows.apart()] == [True]
    one_by_one(monkeypatch)
    with rows.frozen():
        chunks = list(rows.apart())
        assert rows.kept.get("chunks") is None
    assert [chunk.first for chunk in chunks] == [True, False, False]
    assert all(factor.outputs == 1 for chunk in chunks for factor in chunk.factors.values())


@pytest.mark.parametrize("kind", [tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag], ids=lambda kind: kind.__name__)
def test_the_matrix_does_not_depend_on_it(problem, kind, monkeypatch) -> None:
    together = tl.FIM(*problem, kind).to_dense()
    one_by_one(monkeypatch)
    apart = tl.FIM(*problem, kind).to_dense()
    assert torch.allclose(apart, together, rtol=1e-9, atol=1e-12 * float(together.abs().max()))

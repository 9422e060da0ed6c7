"""The symmetric half of a product, against the plain product."""

import pytest
import torch

from tangentlab.linalg import symmetric
from tangentlab.linalg.symmetric import symmetric_product


@pytest.mark.parametrize("shape", [(5, 3), (64, 1000), (100, 700), (161, 400), (2, 70, 900), (3, 1, 40, 50), (300, 64)])
@pytest.mark.parametrize("cut", [0.0, float("inf")], ids=["in blocks", "whole"])
def test_it_is_the_plain_product(shape: tuple[int, ...], cut: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_WORTH_CUTTING", cut)
    rows = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = rows @ rows.transpose(-1, -2)
    assert torch.allclose(symmetric_product(rows), truth, rtol=1e-12, atol=1e-10)


def test_it_adds_to_what_is_there_and_takes_rows_that_are_columns_in_memory() -> None:
    rows = torch.randn(900, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).t()
    start = torch.eye(200, dtype=torch.float64)
    total = start.clone()
    assert symmetric_product(rows, out=total) is total
    assert torch.allclose(total, rows @ rows.t() + start, rtol=1e-12, atol=1e-10)

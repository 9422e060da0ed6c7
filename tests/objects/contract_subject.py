"""Settings and fixtures of the contract: which representation, on which models, built once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tests.objects.dense import Dense
from tests.objects.models import ALL, Case, cases

_built: dict[tuple[type, Case], tuple[tl.PMat, Dense]] = {}


def stored_only(test: Callable[..., None]) -> Callable[..., None]:
    """The test depends on the matrix, not on how the data came."""
    test.stored_only = True
    return test


class Subject:
    """The representation under test, its settings, and its matrix on every case."""

    representation: Any
    models: tuple[str, ...] = ALL
    sums: type | tuple[type, ...] = tl.PMatSum
    powers: type | tuple[type, ...] = tl.PMatDense
    inverses: type | tuple[type, ...] = tl.PMatDense
    pseudo_inverse = True
    iterative = False
    pickles = True

    # ------------------------------------------------------------- to be given

    def truth(self, name: str) -> Tensor:
        """The dense matrix, from its definition."""
        raise NotImplementedError

    def stored(self, case: Case) -> int:
        """Numbers stored."""
        raise NotImplementedError

    def build(self, case: Case) -> tl.PMat:
        """The matrix of a case."""
        return tl.FIM(case.model, case.batches, representation=self.representation)

    # ------------------------------------------------------------- set-up

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            every = cases(type(self).models)
            some = [c for c in every if (c.dtype == torch.float64) == (c.split == "uneven batches")]
            metafunc.parametrize("case", some if hasattr(metafunc.function, "stored_only") else every, ids=str)

    def _build_once(self, case: Case) -> tuple[tl.PMat, Dense]:
        key = type(self), case
        if key not in _built:
            matrix = self.build(case)
            _built[key] = matrix, Dense(matrix.to_dense().double(), case.dtype)
        return _built[key]

    @pytest.fixture
    def F(self, case: Case) -> tl.PMat:
        """The matrix, shared between tests."""
        return self._build_once(case)[0]

    @pytest.fixture
    def D(self, case: Case) -> Dense:
        """Its dense form."""
        return self._build_once(case)[1]

    def slack(self) -> float:
        """How much further than rounding a solve may be."""
        return 1e3 if self.iterative else 1.0

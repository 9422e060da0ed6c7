"""Settings and fixtures of the contract: which representation, on which models, built once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tangentlab.metrics import FIM
from tangentlab.objects.pmat import PMat, PMatDense, PMatSum
from tangentlab.testing.dense_truth import Dense
from tangentlab.testing.small_models import ALL, Case, cases

_built: dict[tuple[type, Case], tuple[PMat, Dense]] = {}


def stored_only(test: Callable[..., None]) -> Callable[..., None]:
    """The test depends on the matrix, not on how the data came."""
    test.stored_only = True  # type: ignore[attr-defined]
    return test


class Subject:
    """The representation under test, its settings, and its matrix on every case."""

    representation: Any
    models: tuple[str, ...] = ALL
    sums: type | tuple[type, ...] = PMatSum
    powers: type | tuple[type, ...] = PMatDense
    inverses: type | tuple[type, ...] = PMatDense
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

    def build(self, case: Case) -> PMat:
        """The matrix of a case."""
        return FIM(case.model, case.batches, representation=self.representation)

    # ------------------------------------------------------------- set-up

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            every = cases(type(self).models)
            some = [c for c in every if (c.dtype == torch.float64) == (c.split == "uneven batches")]
            metafunc.parametrize("case", some if hasattr(metafunc.function, "stored_only") else every, ids=str)

    def _build_once(self, case: Case) -> tuple[PMat, Dense]:
        key = type(self), case
        if key not in _built:
            matrix = self.build(case)
            _built[key] = matrix, Dense(matrix.tensor().double(), case.dtype)
        return _built[key]

    @pytest.fixture
    def F(self, case: Case) -> PMat:
        """The matrix, shared between tests."""
        return self._build_once(case)[0]

    @pytest.fixture
    def D(self, case: Case) -> Dense:
        """Its dense form."""
        return self._build_once(case)[1]

    def slack(self) -> float:
        """How much further than rounding a solve may be."""
        return 1e3 if self.iterative else 1.0

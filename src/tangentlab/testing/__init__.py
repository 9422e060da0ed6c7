"""Contracts to inherit: what every representation and every layer rule must do, as pytest suites against slow truths.

The only part of tangentlab that needs pytest: `pip install "tangentlab[testing]"`.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('tangentlab.testing needs pytest: pip install "tangentlab[testing]".') from error

pytest.register_assert_rewrite("tangentlab.testing")  # failures show the values that were compared

from tangentlab.testing.pmat_contract import PMatContract, stored_only  # noqa: E402

__all__ = ["PMatContract", "stored_only"]

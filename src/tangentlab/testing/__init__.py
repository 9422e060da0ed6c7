"""Contracts to inherit: what every representation and every layer rule must do, as pytest suites against slow truths.

The only part of tangentlab that needs pytest: `pip install "tangentlab[testing]"`.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'The module tangentlab.testing needs pytest: pip install "tangentlab[testing]".'
    ) from error

for module in ("dense_truth", "layer_contract", "pmat_algebra", "pmat_contract", "pmat_spectral"):
    pytest.register_assert_rewrite(f"tangentlab.testing.{module}")  # failures show the values that were compared

from tangentlab.testing.layer_contract import LayerCase, LayerContract, layer_case  # noqa: E402
from tangentlab.testing.pmat_contract import PMatContract, stored_only  # noqa: E402

__all__ = ["LayerCase", "LayerContract", "PMatContract", "layer_case", "stored_only"]

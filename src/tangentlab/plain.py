"""Values as JSON can hold them: numbers, texts and lists, with names for the numbers that JSON has none for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: tensors and arrays become numbers and lists, non-finite numbers become names."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (str, bool)) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"A metric must be made of numbers, texts and lists of these, not {type(value).__name__}.")


def restored(value: Any) -> Any:
    """The inverse of `plain` for numbers: the names of non-finite numbers become numbers again."""
    if isinstance(value, list):
        return [restored(item) for item in value]
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    return _SPECIAL.get(value, value) if isinstance(value, str) else value

"""Numbers that a training reports to the recorder: checked at every step, read only at a snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from tangentlab.errors import InputError


def require_number(name: str, value: Any) -> None:
    """A number, or a tensor or array of one; its value is not read, so that no device has to be waited for."""
    if isinstance(value, Tensor):
        fits = value.numel() == 1 and not value.is_complex()
    elif isinstance(value, np.ndarray | np.generic):
        fits = value.size == 1 and value.dtype.kind in "biuf"
    else:
        fits = hasattr(type(value), "__float__")
    if not fits:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
        found = "None" if value is None else f"a {type(value).__name__}{shape}"
        raise InputError(
            f"The call step({name}=...) takes one number, not {found}: pass its mean or one entry of it, or leave it out."
        )


def plain_number(value: Any) -> float:
    """A number, or a tensor or array of one, as a float."""
    return float(value.item()) if isinstance(value, Tensor | np.ndarray) else float(value)

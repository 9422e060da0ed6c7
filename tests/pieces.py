"""How much is done at a time, made as little as possible: no result may depend on it."""

import re
import sys
from importlib import import_module

import pytest

from tangentlab.engine import rows

AT_A_TIME = re.compile(r"(BYTES|CELLS|AT_ONCE|UNITS|LONG|STACK|WORTH_CUTTING)$")
"""Names of the constants that say so."""


def in_small_pieces(monkeypatch: pytest.MonkeyPatch, size: int = 1) -> None:
    """Bytes, numbers or matrices that are worked on at a time, in every module, and cotangents one by one."""
    for name in ("tangentlab.metrics", "tangentlab.optim"):  # load them all
        import_module(name)
    found = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("tangentlab.")
        for name in vars(module)
        if name.isupper() and AT_A_TIME.search(name)
    ]
    assert {name for _, name in found} >= {"CACHE_BYTES", "ROWS_BYTES", "TILE_BYTES", "_CELLS"}
    for module, name in found:
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(rows, "chunk_size", lambda sweep, count: 1)

"""Names that are imported when they are first used, written down once, as the imports that type checkers read.

    if TYPE_CHECKING:
        from tangentlab.kernels.ridge import predict as predict

    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

The block under `TYPE_CHECKING` is all that a package says; here it is read from the syntax tree.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tangentlab.moved import moved_name


def imported_on_first_use(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose imports stand under `if TYPE_CHECKING`.

    Args:
        package: its `__name__`. `from package import module` makes a module of it available and stays out of `__all__`.

    Cost: one parse of the file, about a millisecond.
    """
    homes = dict(_declared(package))
    modules = {name for name, home in homes.items() if home == package}
    if hidden := [name for name, home in homes.items() if home == f"{package}.{name}"]:
        raise ImportError(
            f"{hidden} of {package} have the names of modules, which would hide them: import them at once."
        )

    def getter(name: str) -> Any:
        if name not in homes:
            return moved_name(package, name)
        if name in modules:
            return _imported(f"{package}.{name}")
        value = getattr(_imported(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter, lambda: sorted(homes), sorted(homes.keys() - modules)


def _imported(module: str) -> ModuleType:
    """A module. What an import makes stays; looking through all of it, and of torch, for garbage takes 50 ms in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collects:
            gc.enable()


def _declared(package: str) -> Iterator[tuple[str, str]]:
    """Name and module of every import under `if TYPE_CHECKING`."""
    spec = find_spec(package)
    source = spec.loader.get_source(package) if spec is not None else ""  # type: ignore[union-attr]
    for node in ast.parse(source or "").body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    yield from ((alias.asname or alias.name, line.module) for alias in line.names)

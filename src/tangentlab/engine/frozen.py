"""What may be kept between products with a matrix that is never stored: only while model and data stay as they are.

A model can change in ways that nothing shows: an attribute, `.data`, the array behind a tensor, a hook, a global. So what a
product has computed is kept for the next one inside an operation (a solve, a Lanczos run) or where the user promises that
nothing changes (`with F.frozen():`), and is forgotten at the end of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from tangentlab.engine.memory import memory_budget, resident_bytes
from tangentlab.errors import ModelError
from tangentlab.temporary import temporarily

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Keepsakes(threading.local):
    """Values by name that live as long as the outermost open `scope` of their thread; outside of one nothing is kept.

    Parameters that were changed in place in the meantime are noticed, which a promise does not need and a slip does.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values: dict[str, Any] | None = None

    def scope(self) -> AbstractContextManager[None]:
        """The block in which values are kept; a block within a block is part of it."""
        before = self._values

        def start() -> None:
            self._values = {"versions": self._versions()} if before is None else before

        def end() -> None:
            self._values = before

        return temporarily(start, end)

    @property
    def open(self) -> bool:
        """Whether values are kept now."""
        return self._values is not None

    def get(self, name: str) -> Any:
        """The value of this name, None if there is none."""
        if self._values is None:
            return None
        if self._values["versions"] != self._versions():
            raise ModelError(
                "Parameters of the model were changed inside of frozen(), which promises that they stay as they are: leave "
                "the block before a step of an optimizer, and enter it again."
            )
        return self._values.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a value where values are kept."""
        if self._values is not None:
            self._values[name] = value

    def made(self, name: str, make: Callable[[], Result]) -> Result:
        """The value of this name, made the first time, or every time where nothing is kept."""
        value = self.get(name)
        if value is None:
            value = make()
            self.put(name, value)
        return value

    def made_with_graph(self, name: str, make: Callable[[], Result], alone: bool) -> Result:
        """The same for a value with a graph: kept if it is alone, or as long as the process has grown by little enough."""
        value = self.get(name)
        if value is None:
            value = make()
            if alone or self._has_room():
                self.put(name, value)
        return value

    def _has_room(self) -> bool:
        """Whether what the process has taken since the first value with a graph is within half of the memory budget.

        What a graph takes is seen in the process and nowhere else; on other devices it is not, and there one is kept alone.
        """
        resident = resident_bytes()
        elsewhere = any(parameter.device.type != "cpu" for parameter in self._model.parameters())
        if self._values is None or resident is None or elsewhere:
            return False
        least, room = self.made("room", lambda: (resident, memory_budget() // 2))
        return resident - least <= room

    def _versions(self) -> tuple[tuple[int, int], ...]:
        return tuple((id(parameter), parameter._version) for parameter in self._model.parameters())


@contextmanager
def all_frozen(matrices: Iterable[Any]) -> Iterator[None]:
    """All of them at once; whatever has no `frozen()`, such as a tensor, is as it is."""
    with ExitStack() as stack:
        for matrix in matrices:
            if hasattr(matrix, "frozen"):
                stack.enter_context(matrix.frozen())
        yield


def frozen_inside(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """A method that multiplies with its matrix many times: the matrix is frozen meanwhile."""

    @wraps(method)
    def frozen(matrix: Any, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        with matrix.frozen():
            return method(matrix, *args, **options)

    return frozen

"""A module with other tensors in the place of its parameters, as functional transforms (jvp, vmap) need it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from tangentlab.engine.snapshot import TURN
from tangentlab.temporary import changed


def call_with(
    module: nn.Module, places: Mapping[str, Tensor], inputs: tuple[Any, ...], options: dict[str, Any] | None = None
) -> Any:
    """`module(*inputs, **options)` with the given tensors in the given places; every place is named, tied or not.

    A forward that converts modules (`self.head = self.head.to(torch.float32)`) fails with a RuntimeError: on the tensors of
    a transform the conversion ends the process in torch itself.
    """
    with TURN, _no_conversion():
        return functional_call(module, dict(places), inputs, options, tie_weights=False)


@contextmanager
def _no_conversion() -> Iterator[None]:
    """`Module.to` and its kin raise in this thread inside the block."""
    convert, here = nn.Module._apply, threading.get_ident()

    def refuse(self: nn.Module, *args: Any, **options: Any) -> nn.Module:
        if threading.get_ident() != here:
            return convert(self, *args, **options)
        raise RuntimeError(
            f"The forward converts a {type(self).__name__} (Module.to), which a transform cannot follow."
        )

    yield from changed(lambda: setattr(nn.Module, "_apply", refuse), lambda: setattr(nn.Module, "_apply", convert))

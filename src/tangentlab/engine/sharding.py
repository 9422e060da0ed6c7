"""Refusing models of which every process holds a part: derivatives in that part are no derivatives of the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn

from tangentlab.errors import ModelError

_WAY_OUT = (
    "Load the whole weights into an ordinary copy of the model and measure that one: "
    "plain.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))), both from "
    "torch.distributed.checkpoint.state_dict and called on every process."
)


def refuse_sharded(model: nn.Module, way_out: str = _WAY_OUT) -> None:
    """Refuse, by name, distributed tensors (DTensor: FSDP2, tensor parallelism) and modules that FSDP manages.

    A process that has such tensors has imported the modules that define them, so they are looked up and never imported,
    which would take seconds.

    Args:
        way_out: what to do instead; by default, how to measure a whole copy.
    """
    managed = tuple(_known("torch.distributed.fsdp", "FSDPModule", "FullyShardedDataParallel"))
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_distributed(tensor):
            kind = "Parameter" if isinstance(tensor, nn.Parameter) else "Buffer"
            raise ModelError(
                f"{kind} {name!r} is a DTensor, spread over processes as {tensor.placements}, each of which would "  # type: ignore[attr-defined]
                f"differentiate its part alone. {way_out}"
            )
    for name, module in model.named_modules():
        if isinstance(module, managed):
            raise ModelError(
                f"The parameters of {type(module).__name__} {name or '(the model)'} are sharded over processes by FSDP, "
                f"which gathers and frees them in every forward. {way_out}"
            )


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return isinstance(tensor, tuple(_known("torch.distributed.tensor", "DTensor")))


def _known(module: str, *names: str) -> Iterator[Any]:
    """Classes of a module, if it has been imported."""
    if module in sys.modules:
        yield from (getattr(sys.modules[module], name) for name in names if hasattr(sys.modules[module], name))

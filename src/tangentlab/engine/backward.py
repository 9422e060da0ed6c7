"""Backward passes for one cotangent or for several at once, by the shortest way into the engine of torch.

`torch.autograd.grad` compares the shapes of outputs and cotangents by functions for symbolic shapes, whose import takes a
seventh of a second. For one output and cotangents whose shapes are known to fit, that is not needed; what the engine does is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, _vmap_internals

_run: Any = getattr(getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None)
_vmap: Any = getattr(_vmap_internals, "_vmap", None)
_SHORT = _run is not None and _vmap is not None and hasattr(torch._C, "_len_torch_function_stack")
"""Whether this version of torch has what the short way needs."""


def backward(
    outputs: Tensor, inputs: Sequence[Any], cotangents: Tensor, batched: bool = False, keep: bool = True
) -> list[Tensor | None]:
    """Gradients of sum(outputs * cotangents) in the inputs, for all of `cotangents` (K, ...) at once if batched.

    keep: the graph is for another pass; else what it holds is freed on the way. An input that plays no part has None. A
    function mode of the user's is off inside of `torch.autograd.grad`, where checkpoints run the forward again, so that under
    one this way is taken. Cotangents are put in order in memory: torch's own gradients of an instance norm are wrong for
    others.
    """
    cotangents = cotangents.contiguous()
    if not _SHORT or torch._C._len_torch_function_stack() or not _fit(outputs, cotangents, batched):
        options = {"is_grads_batched": batched, "retain_graph": keep, "allow_unused": True}
        return list(torch.autograd.grad(outputs, inputs, cotangents, **options))
    if not batched:
        return list(_pass(outputs, inputs, cotangents, keep))
    several = _vmap(lambda cotangent: _pass(outputs, inputs, cotangent, keep), allow_none_pass_through=True)
    return list(several(cotangents))


def _fit(outputs: Tensor, cotangents: Tensor, batched: bool) -> bool:
    """Whether there is nothing to compare, to convert or to override."""
    if type(outputs) is not Tensor or type(cotangents) is not Tensor or outputs.dtype != cotangents.dtype:
        return False
    return cotangents.shape[batched:] == outputs.shape


def _pass(outputs: Tensor, inputs: Sequence[Any], cotangent: Tensor, keep: bool) -> tuple[Tensor | None, ...]:
    """outputs, cotangents, keep the graph, make none of the gradients, inputs, allow unused ones, accumulate nothing."""
    return _run((outputs,), (cotangent,), keep, False, tuple(inputs), True, accumulate_grad=False)

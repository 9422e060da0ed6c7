"""Where the graph of a model's outputs uses each parameter."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def consumers(output: Any) -> dict[int, list[tuple[Any, int]]] | None:
    """Operations that take each leaf, by its `id`, with its place among their inputs.

    Cost: one visit per node of the graph, a microsecond each.

    Returns:
        None where reentrant checkpointing hides them.
    """
    found: dict[int, list[tuple[Any, int]]] = {}
    tensors = [tensor for tensor in tree_leaves(output) if isinstance(tensor, Tensor)]
    stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().startswith("CheckpointFunctionBackward"):
            return None
        for place, (child, _) in enumerate(node.next_functions):
            if child is None:
                continue
            if child.name().endswith("AccumulateGrad"):
                found.setdefault(id(child.variable), []).append((node, place))  # type: ignore[attr-defined]
            else:
                stack.append(child)
    return found

"""Reading the autograd graph: who consumes a parameter, and what is reachable from the outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

from tangentlab.errors import ModelError


@dataclass(frozen=True)
class GraphFacts:
    """Nodes reachable from the outputs, the leaves, the number of consumers of each by `id`, and the operations in order.

    Two graphs with one signature ran through the same operations, whatever the data decided.
    """

    nodes: frozenset[Node]
    leaves: tuple[Tensor, ...]
    consumers: dict[int, int]
    signature: int


def read_graph(outputs: Tensor) -> GraphFacts:
    """Walk the graph once. Cost: one visit per node, microseconds each.

    Reentrant checkpointing hides parameters from the graph, so it is refused.
    """
    consumers: dict[int, int] = {}
    leaves: list[Tensor] = []
    seen: set[Node] = set()
    names: list[str] = []
    stack: list[Node] = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        if names[-1].startswith("CheckpointFunctionBackward"):
            raise ModelError(
                "The model uses reentrant activation checkpointing, which hides its parameters from the graph: "
                "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
            )
        for child, _ in _edges(node):
            if child.name().endswith("AccumulateGrad"):
                leaf: Tensor = child.variable  # type: ignore[attr-defined]
                if id(leaf) not in consumers:
                    leaves.append(leaf)
                consumers[id(leaf)] = consumers.get(id(leaf), 0) + 1
            else:
                stack.append(child)
    return GraphFacts(frozenset(seen), tuple(leaves), consumers, hash(tuple(names)))


def _edges(node: Node) -> Iterable[tuple[Node, int]]:
    return [(child, index) for child, index in node.next_functions if child is not None]


def leaves_of_call(node: Node, origin: Node | None, limit: int = 64) -> set[int]:
    """Leaves by `id` that one operation uses, its input (made by the node `origin`) left out.

    A registered layer is a handful of nodes; a walk that goes on for longer has missed its input and says nothing.
    """
    leaves: set[int] = set()
    seen: set[Node] = set()
    stack = [node]
    while stack and len(seen) < limit:
        current = stack.pop()
        if current in seen or current is origin:
            continue
        seen.add(current)
        for child, _ in _edges(current):
            if child.name().endswith("AccumulateGrad"):
                leaves.add(id(child.variable))  # type: ignore[attr-defined]
            else:
                stack.append(child)
    return leaves

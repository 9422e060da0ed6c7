"""Reading the autograd graph: who consumes a parameter, what is reachable from the outputs, and whether anything is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from tangentlab.errors import ModelError


@dataclass(frozen=True)
class GraphFacts:
    """Nodes reachable from the outputs, the leaves, the number of consumers of each by `id`, and the operations in order.

    Two graphs with one signature ran through the same operations, and through the same indices where an operation moves
    entries to places that the data may decide (sorting, gathering, indexing).
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
    signature: list[Any] = []
    stack: list[Node] = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        name = node.name()
        signature.append(name)
        if name.startswith(_MOVING):
            signature.append(_places(node))
        if name.startswith("NativeGroupNormBackward"):
            _note_input(node, outputs)
        if name.startswith("CheckpointFunctionBackward"):
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
    return GraphFacts(frozenset(seen), tuple(leaves), consumers, hash(tuple(signature)))


def _note_input(node: Node, outputs: Tensor) -> None:
    """Keep the edge to the input of a group norm with the outputs: see `companions`."""
    child, index = node.next_functions[0]
    if child is not None:
        root: Any = outputs.grad_fn
        root.metadata.setdefault(_COMPANIONS, []).append(GradientEdge(child, index))


def companions(outputs: Tensor) -> list[GradientEdge]:
    """What must be asked for with every gradient of these outputs, or of one of them, once their graph was read.

    Torch ends the process where the gradient of a group norm's weight is asked for and that of its input is not, if the
    channels are last in memory.
    """
    node: Any = outputs.grad_fn
    while node is not None and _COMPANIONS not in node.metadata and node.name() == "SelectBackward0":
        node = node.next_functions[0][0]
    return [] if node is None else node.metadata.get(_COMPANIONS, [])


_COMPANIONS = "tangentlab: inputs of group norms"
_MOVING = ("Index", "Gather", "Scatter", "Sort", "Topk", "Roll", "Where", "MaskedSelect", "Embedding", "Take")


def _places(node: Node) -> tuple[bytes, ...]:
    """The indices by which an operation moves entries, as far as autograd keeps them.

    Those of a table of parameters are none, and a condition counts where it is one for all entries.
    """
    tables = all(child.name().endswith("AccumulateGrad") for child, _ in _edges(node))
    if tables and node.name().startswith("Embedding"):
        return ()
    try:
        saved = [getattr(node, f"_saved_{name}", None) for name in ("index", "indices", "mask", "condition", "shifts")]
    except RuntimeError:  # freed or written since: autograd itself will complain where it matters
        return ()
    if node.name().startswith("Where"):
        saved = [one for one in saved if isinstance(one, Tensor) and one.numel() == 1]
    flat = [one for entry in saved for one in (entry if isinstance(entry, tuple | list) else [entry])]
    return tuple(one.cpu().numpy().tobytes() if isinstance(one, Tensor) else repr(one).encode() for one in flat)


def coarsest_type(outputs: Tensor) -> torch.dtype:
    """The floating type with the fewest digits through which the outputs were computed, as under autocast."""
    coarsest, seen = outputs.dtype, set[Node]()
    stack = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for metadata in node._input_metadata:
            if metadata.dtype.is_floating_point and torch.finfo(metadata.dtype).eps > torch.finfo(coarsest).eps:
                coarsest = metadata.dtype
        stack += [child for child, _ in _edges(node)]
    return coarsest


def all_since(outputs: Tensor, number: int) -> bool:
    """Whether no operation of the graph is older than this number: a graph that nobody but its last forward has a part in."""
    seen: set[Node] = set()
    stack = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node: Any = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node._sequence_nr() < number:
            return False
        stack += [child for child, _ in _edges(node)]
    return True


def reaches(outputs: Tensor, leaves: Iterable[Tensor], beyond: Node | None = None) -> bool:
    """Whether one of the leaves can be reached from the outputs without passing `beyond`; the walk ends at the first."""
    wanted = {id(leaf) for leaf in leaves}
    seen: set[Node] = set() if beyond is None else {beyond}
    stack: list[Node] = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        children = [child for child, _ in _edges(node)]
        if any(child.name().endswith("AccumulateGrad") and id(child.variable) in wanted for child in children):  # type: ignore[attr-defined]
            return True
        stack += children
    return id(outputs) in wanted


def _edges(node: Node) -> Iterable[tuple[Node, int]]:
    return [(child, index) for child, index in node.next_functions if child is not None]


def leaves_of_call(node: Node, origins: Collection[Node], limit: int = 64) -> set[int]:
    """Leaves by `id` that one operation uses, its inputs (made by the nodes `origins`) left out.

    A registered layer is a handful of nodes; a walk that goes on for longer has missed its input and says nothing.
    """
    leaves: set[int] = set()
    seen: set[Node] = set()
    stack = [node]
    while stack and len(seen) < limit:
        current = stack.pop()
        if current in seen or current in origins:
            continue
        seen.add(current)
        for child, _ in _edges(current):
            if child.name().endswith("AccumulateGrad"):
                leaves.add(id(child.variable))  # type: ignore[attr-defined]
            else:
                stack.append(child)
    return leaves


def operation(node: Node) -> str:
    """The name of an operation of torch ("Relu"); empty for functions of the user's, whatever their names, and derivatives."""
    name, _, number = node.name().partition("Backward")
    return name if number.isdigit() else ""


_VIEWS = {"View", "UnsafeView", "ReshapeAlias"}
_PARTS = {
    *_VIEWS,
    "T",
    "Transpose",
    "Permute",
    "Slice",
    "Split",
    "SplitWithSizes",
    "Select",
    "Unbind",
    "Unsqueeze",
    "Squeeze",
}


def is_one_operation(node: Node, module: nn.Module, inputs: Sequence[Tensor], origins: Collection[Node]) -> bool:
    """Whether a layer is one operation, seen through views of its result, on the very memory of an input and on parameters
    as they are, parts of them included, with the attributes of its module.

    Then nothing stands between a layer's input and its one operation, nor between that and its output. origins: the nodes
    that made the inputs.
    """
    while operation(node) in _VIEWS:
        child, _ = node.next_functions[0]
        if child is None:
            return False
        node = child
    if not operation(node) or not all(_is_given(child, origins) for child, _ in _edges(node)):
        return False
    try:
        kept = [getattr(node, f"_saved_{name}", None) for name in ("mat1", "self", "input", "indices")]
        if not _is_told_by(module, node):
            return False
    except RuntimeError:  # freed, written since, or kept elsewhere
        return False
    memory = {(one.data_ptr(), one.numel()) for one in inputs}
    return any(isinstance(one, Tensor) and (one.data_ptr(), one.numel()) in memory for one in kept)


def _is_given(node: Node, origins: Collection[Node]) -> bool:
    """Whether this is an input or a leaf, or a part of one."""
    while node not in origins and operation(node) in _PARTS:
        child, _ = node.next_functions[0]
        if child is None:
            return False
        node = child
    return node in origins or node.name().endswith("AccumulateGrad")


def _is_told_by(module: nn.Module, node: Node) -> bool:
    """Whether what an operation was told beside its tensors is what its module says: strides, an index of padding, no factor.

    One that says nothing of the kind has factors of 1.
    """
    told = {name: getattr(node, name) for name in dir(node) if name.startswith("_saved_") and "_sym_" not in name}
    for name, value in told.items():
        own = getattr(module, name.removeprefix("_saved_"), 1)
        if isinstance(value, bool | int | float | tuple) and value != (_NO_INDEX if own is None else own):
            return False
    return True


_NO_INDEX = 2**64 - 1
"""-1, as autograd keeps it."""


class Dependence:
    """What was seen of one network so far: a batch may leave all selected parameters out (an expert without tokens), the
    data as a whole may not."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, outputs: Tensor, parameters: Iterable[Tensor]) -> None:
        """Look at outputs with a graph. Cost: a walk from the outputs to the first selected parameter."""
        self.seen = self.seen or reaches(outputs, parameters)

    def require(self) -> None:
        """Refuse if no outputs looked at so far depended on a selected parameter."""
        if not self.seen:
            raise ModelError(NO_DEPENDENCE)


NO_DEPENDENCE = (
    "The outputs do not depend on any selected parameter through the autograd graph, so every derivative would be zero: the "
    "forward may run under torch.no_grad() or detach its result, forward= or function= may call another model than the one "
    "given, or layers= may select parameters that these outputs do not use."
)

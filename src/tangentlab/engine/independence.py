"""Which gradients of a graph belong to one example each, read from its operations without computing anything.

Going back from outputs whose examples are on axis 0, every operation of torch says along which axis of its inputs the gradient
of an example stays in that example's slice: a product keeps the rows of its left factor apart and sums over them for its right
factor, a softmax keeps apart what lies on other axes, a view keeps the order of the entries. A gradient that is a sum over
examples, on one way from the outputs at least, is shared. Operations that are not listed here say nothing, and neither does a
graph in which a hook may change a gradient: then only a comparison of numbers can tell (see `certificate`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from tangentlab.engine.graph import operation

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """Entries of example n have the indices n * block ... (n + 1) * block - 1 along `dim`."""

    dim: int
    block: int = 1

    def run(self, shape: Shape) -> int:
        """Entries of one example in a row."""
        return self.block * prod(shape[self.dim + 1 :])


class Unknown(Exception):
    """An operation about which nothing is known, or that mixes examples in its own way."""


Place = Axis | None
"""Where the examples are; None for a gradient that is shared by all of them."""
Rule = Callable[[Node, Shape, Axis, list[Shape]], list[Place]]
"""(operation, shape of its output, where the examples are in it, shapes of its inputs) -> where they are in these."""


def example_runs(outputs: Tensor, edges: Iterable[GradientEdge]) -> list[int | None]:
    """How many entries of one example are in a row at every edge, None where it is shared, for outputs (N, ...).

    This says where the examples are whatever the shape: an axis has the entries of the axes after it in a row. Cost: a visit
    per operation.

    Raises:
        Unknown: the graph has an operation without a rule.
    """
    root = outputs.grad_fn
    if root is None:
        raise Unknown("no graph")
    places: dict[tuple[Node, int], Place] = {(root, outputs.output_nr): Axis(0)}
    waiting = [(-root._sequence_nr(), id(root), root)]  # type: ignore[attr-defined]
    seen, done = {root}, set[Node]()
    while waiting:
        node = heapq.heappop(waiting)[2]  # after all that was computed from it in this thread
        done.add(node)
        for child, index, place in _inputs(node, places):
            if child.name().endswith("AccumulateGrad"):
                continue
            if child in done:
                raise Unknown("an order that other threads made")
            key = child, index
            places[key] = place if key not in places or places[key] == place else None
            if child not in seen:
                seen.add(child)
                heapq.heappush(waiting, (-child._sequence_nr(), id(child), child))  # type: ignore[attr-defined]
    found = [(_shape(edge.node, edge.output_nr), places.get((edge.node, edge.output_nr))) for edge in edges]
    return [None if place is None else place.run(shape) for shape, place in found]


def _inputs(node: Node, places: dict[tuple[Node, int], Place]) -> list[tuple[Node, int, Place]]:
    """The inputs of an operation that have a gradient, with the place of the examples in each."""
    edges = [(number, child, index) for number, (child, index) in enumerate(node.next_functions) if child is not None]
    found: dict[int, Place] = {}
    for output, metadata in enumerate(node._input_metadata):
        if (node, output) not in places:
            continue
        place = places[node, output]
        if place is None:
            own: list[Place] = [None] * len(node.next_functions)
        else:
            shapes = [_shape(child, index) for child, index in node.next_functions]
            own = _rule(node)(node, tuple(metadata.shape), place, shapes)
        for number, _, _ in edges:
            found[number] = own[number] if number not in found or found[number] == own[number] else None
    return [(child, index, found[number]) for number, child, index in edges]


def _shape(child: Node | None, index: int) -> Shape:
    if child is None:
        return ()
    if child.name().endswith("AccumulateGrad"):
        return tuple(child.variable.shape)  # type: ignore[attr-defined]
    return tuple(child._input_metadata[index].shape)


def has_hooks(nodes: Iterable[Node]) -> bool:
    """Whether somebody hung hooks on operations of a graph; those on tensors are for `capture` to see."""
    return any(_hooked(register) for node in nodes for register in (node.register_hook, node.register_prehook))


def _hooked(register: Callable[[Callable[..., None]], Any]) -> bool:
    """A new hook shares its table with those that are there."""
    handle = register(lambda *_: None)
    others = len(handle.hooks_dict_ref() or ()) > 1
    handle.remove()
    return others


def _rule(node: Node) -> Rule:
    name = operation(node)
    if name not in _RULES:
        raise Unknown(node.name())
    return _RULES[name]


def _axes(dims: Any, ndim: int) -> set[int]:
    """Saved axes, which torch keeps as unsigned numbers, counted from the front."""
    given = [dims] if isinstance(dims, int) else dims
    return {(dim - 2**64 if dim >= 2**63 else dim) % ndim for dim in given}


def _broadcast(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Entry by entry; an input that is repeated along the examples collects the gradients of all."""
    own = [place.dim - len(shape) + len(one) for one in inputs]
    alike = [dim >= 0 and one[dim] == shape[place.dim] for dim, one in zip(own, inputs, strict=True)]
    return [Axis(dim, place.block) if like else None for dim, like in zip(own, alike, strict=True)]


def _view(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """The same entries in the same order: an axis on which each example has as many of them, one after the other."""
    (before,) = inputs
    entries = place.run(shape)
    for dim, size in enumerate(before):
        block, rest = divmod(entries, max(prod(before[dim + 1 :]), 1))
        if block and not rest and size * place.block == shape[place.dim] * block:
            return [Axis(dim, block)]
    raise Unknown(node.name())


def _permuted(order: list[int], place: Axis) -> list[Place]:
    return [Axis(order[place.dim], place.block)]


def _permute(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    return _permuted([next(iter(_axes(dim, len(shape)))) for dim in node._saved_dims], place)


def _transpose(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    order = list(range(len(shape)))
    saved = (0, 1) if node.name().startswith("TBackward") else (node._saved_dim0, node._saved_dim1)
    one, two = (next(iter(_axes(dim, len(shape)))) for dim in saved)
    order[one], order[two] = order[two], order[one]
    return _permuted(order, place)


def _product(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """A @ B, also stacked: stacks have one product each, rows belong to A and columns to B, which is summed over otherwise."""
    stacks = len(shape) - 2
    if place.dim < stacks:
        return [place, place]
    return [place, None] if place.dim == stacks else [None, place]


def _sum_with_product(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    return [*_broadcast(node, shape, place, inputs[:1]), *_product(node, shape, place, inputs[1:])]


def _along(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Something along other axes than that of the examples; without axes, it is along all of them."""
    dims = node._saved_dims if hasattr(node, "_saved_dims") else node._saved_dim
    if dims == () or place.dim in _axes(dims, len(shape)):
        raise Unknown(node.name())
    return [place] * len(inputs)


def _stacked(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Inputs side by side on a new axis."""
    (dim,) = _axes(node._saved_dim, len(shape))
    if dim == place.dim:
        raise Unknown(node.name())
    return [Axis(place.dim - (place.dim > dim), place.block)] * len(inputs)


def _indexed(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Chosen entries of axes behind that of the examples, next to each other (else the new axis comes first)."""
    chosen = [dim for dim, index in enumerate(node._saved_indices) if index is not None]
    if not chosen or place.dim >= chosen[0] or chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise Unknown(node.name())
    return [place]


def _padded(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Constants at the ends of other axes; two numbers per axis, from the last one on."""
    if len(node._saved_pad) > 2 * (len(shape) - 1 - place.dim):
        raise Unknown(node.name())
    return [place]


def _reduced(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """A sum over some axes, which are none of those that are left."""
    ndim = len(inputs[0])
    gone = _axes(getattr(node, "_saved_dim", None) or range(ndim), ndim)
    kept = (
        list(range(ndim)) if getattr(node, "_saved_keepdim", False) else [dim for dim in range(ndim) if dim not in gone]
    )
    if len(kept) != len(shape) or kept[place.dim] in gone:
        raise Unknown(node.name())
    return _permuted(kept, place)


def _one_of(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """One entry of an axis of the input."""
    (dim,) = _axes(node._saved_dim, len(shape) + 1)
    return [Axis(place.dim + (place.dim >= dim), place.block)]


def _layer_norm(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    if place.dim >= len(shape) - len(node._saved_normalized_shape):
        raise Unknown(node.name())
    return [place, *[None] * (len(inputs) - 1)]


def _batch_norm(node: Any, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Entry by entry with statistics that are given, channel by channel with those of the batch."""
    if node._saved_training and place.dim != 1:
        raise Unknown(node.name())
    return [place, *[None] * (len(inputs) - 1)]


def _first(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Examples on the first axis of the first input; weights are shared."""
    if place.dim != 0 or inputs[0][:1] not in ((), shape[:1]):  # () where the input has no gradient
        raise Unknown(node.name())
    return [place, *[None] * (len(inputs) - 1)]


def _attention(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    """Queries, keys and values (examples, heads, positions, features); no gradient of a mask."""
    if place.dim > 1 or len(shape) != 4 or any(inputs[3:]):
        raise Unknown(node.name())
    return [place] * 3 + [None] * (len(inputs) - 3)


def _shared(node: Node, shape: Shape, place: Axis, inputs: list[Shape]) -> list[Place]:
    return [None] * len(inputs)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "Add Sub Rsub Mul Div Neg Reciprocal Pow Abs Sign Exp Expm1 Log Log1P Sqrt Rsqrt Sin Cos Atan Erf Expand Clone "
        "Gelu Relu Tanh Sigmoid Silu Softplus Elu Celu LeakyRelu LogSigmoid Hardtanh Hardswish Hardsigmoid Mish Threshold "
        "PreluKernel Clamp ClampMin ClampMax Maximum Minimum Lerp Addcmul Where MaskedFill Tril Triu ToCopy".split(),
        _broadcast,
    ),
    **dict.fromkeys("View UnsafeView ReshapeAlias Unsqueeze Squeeze Alias".split(), _view),
    **dict.fromkeys(
        "Softmax LogSoftmax Slice Split SplitWithSizes UnsafeSplit Cat Glu Cumsum Flip Roll Sort Topk Gather IndexSelect "
        "ScatterAdd".split(),
        _along,
    ),
    **dict.fromkeys("Sum Mean Var Std Logsumexp Amax Amin Max Min LinalgVectorNorm".split(), _reduced),
    **dict.fromkeys("Select Unbind".split(), _one_of),
    **dict.fromkeys("Mm Bmm".split(), _product),
    **dict.fromkeys("Addmm Baddbmm".split(), _sum_with_product),
    **dict.fromkeys(
        "Convolution NativeGroupNorm MaxPool2DWithIndices MaxPool3DWithIndices AvgPool2D AvgPool3D AdaptiveAvgPool2D "
        "AdaptiveMaxPool2D UpsampleNearest2D UpsampleBilinear2D ReflectionPad2D ReplicationPad2D PixelShuffle Im2Col".split(),
        _first,
    ),
    "NativeLayerNorm": _layer_norm,
    "Stack": _stacked,
    "Index": _indexed,
    "ConstantPadNd": _padded,
    "T": _transpose,
    "Transpose": _transpose,
    "Permute": _permute,
    "NativeBatchNorm": _batch_norm,
    "Embedding": _shared,
    "ScaledDotProductFlashAttentionForCpu": _attention,
}

"""One forward pass that remembers, for every call of a layer with a closed form, its input and its gradient edge.

The edge, not the output tensor, is stored: an in-place operation on the output (ReLU(inplace=True)) gives the tensor a new
history, and its gradient would silently be that of the later value. Hooks come off before any backward, because activation
checkpointing runs the forward again inside the backward.

A `Route` says how the gradients of a parameter group are computed: from the captured calls that use it, whose factors follow
from one backward pass to the calls, or by the exact fallback for the stated reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from tangentlab.engine.backward import backward
from tangentlab.engine.graph import NO_DEPENDENCE, companions
from tangentlab.engine.groups import Group, Site
from tangentlab.engine.network import Network, grad_mode, require_finite
from tangentlab.engine.snapshot import TURN, same_attributes
from tangentlab.errors import ModelError
from tangentlab.layers import OuterSum, concatenate
from tangentlab.layers.registry import Inputs, Part, Report
from tangentlab.temporary import changed


@dataclass
class Call:
    """One call of one module: its inputs (with versions and graph nodes), and where its output-gradient can be read."""

    module: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    versions: tuple[int, ...]
    origins: frozenset[Node] = field(repr=False)
    edge: GradientEdge = field(repr=False)
    output_shape: tuple[int, ...]
    part: Part | None = None

    @property
    def input_unchanged(self) -> bool:
        """False when an input was modified in place after the call."""
        return versions_of(self.inputs) == self.versions

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the inputs and the output."""
        return (*(tuple(one.shape) for one in self.inputs), self.output_shape)


def versions_of(inputs: Inputs) -> tuple[int, ...]:
    """How often each has been written to."""
    return tuple(one._version for one in inputs)


@dataclass
class Captured:
    """Outputs (N, ...) with their graph, and the calls in the order in which they happened.

    `hooked`: the forward hung a hook on a tensor, which may change the gradients behind it. `since`: the number of the first
    operation of this forward in autograd's count.
    """

    outputs: Tensor
    calls: list[Call]
    hooked: bool = False
    since: int = 0

    @property
    def examples(self) -> int:
        """N."""
        return self.outputs.shape[0]


def capture(network: Network, batch: Any, groups: Iterable[Group], stands: bool = False) -> Captured:
    """Run the network on a batch with hooks on the sites of the groups; the hooks are gone when this returns.

    Attributes and buffers are put back, so that every run of the forward starts from the same ones.

    stands: no code but that of torch's own layers runs, which changes none.
    """
    calls: list[Call] = []
    hung: list[Tensor] = []
    sites = {id(site.module): site for group in groups for site in group.sites}
    hooks = _hooks(sites.values(), _recorder(calls))
    since = torch.autograd._get_sequence_nr()
    with grad_mode(), TURN if stands else same_attributes(network.model), hooks, _noted_tensor_hooks(hung):
        outputs = network(batch, stands)
    require_finite(outputs, "The outputs of the model")
    if not outputs.requires_grad:
        raise ModelError(NO_DEPENDENCE)
    network.dependence.note(outputs, network.parameters().values())
    return Captured(outputs, calls, bool(hung), since)


@contextmanager
def _noted_tensor_hooks(hung: list[Tensor]) -> Iterator[None]:
    """Note the tensors with a history that get a hook; the graph shows hooks on its operations and none of these.

    Whoever hangs one, by `Tensor.register_hook` or a reference to it, gives the tensor a table of hooks first.
    """
    table, before = vars(torch._C.TensorBase)["_backward_hooks"], vars(Tensor).get("_backward_hooks")

    def noted(tensor: Tensor, hooks: Any) -> None:
        if hooks is not None and not tensor.is_leaf:
            hung.append(tensor)
        table.__set__(tensor, hooks)

    def watch() -> None:
        Tensor._backward_hooks = property(table.__get__, noted)  # type: ignore[assignment]

    def back() -> None:
        if before is not None:
            Tensor._backward_hooks = before
        elif "_backward_hooks" in vars(Tensor):
            del Tensor._backward_hooks

    yield from changed(watch, back)


@contextmanager
def _hooks(sites: Iterable[Site], report: Report) -> Iterator[None]:
    handles = []

    def attach() -> None:
        for site in sites:
            handles.extend(site.rule.watch(site.rule, site.module, report))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    yield from changed(attach, remove)


def _recorder(calls: list[Call]) -> Report:
    def record(module: nn.Module, part: Part | None, inputs: Inputs, output: Tensor) -> None:
        if output.requires_grad:
            origins = frozenset(one.grad_fn for one in inputs if one.grad_fn is not None)
            kept = tuple(one.detach() if one.layout == torch.strided else one.detach().to_dense() for one in inputs)
            edge = get_gradient_edge(history_keeper(output))
            calls.append(Call(module, kept, versions_of(kept), origins, edge, tuple(output.shape), part))

    return record


def history_keeper(output: Tensor) -> Tensor:
    """The tensor whose history an in-place operation on the output keeps: its base where the output only reshapes it."""
    base = output._base
    whole = base is not None and base.numel() == output.numel() and base.is_contiguous() and output.is_contiguous()
    return base if base is not None and whole and base.grad_fn is not None else output


VMAP_CELLS = 2_000_000
"""Above this many output entries per cotangent, a vmapped backward leaves the cache and a loop is faster (measured)."""


def one_at_a_time(calls: Iterable[Call]) -> bool:
    """Whether several cotangents are backpropagated one after the other."""
    return sum(torch.Size(call.output_shape).numel() for call in calls) > VMAP_CELLS


def output_gradients(outputs: Tensor, calls: Sequence[Call], cotangents: Tensor, keep: bool = True) -> list[Tensor]:
    """Gradients (K, *output shape) of sum(outputs * cotangents[k]) at the calls, for cotangents (K, *outputs.shape).

    Small batches take one vmapped backward, large ones a loop that fills the result in place. The graph is kept, or may be
    used up.
    """
    if not calls:
        return []
    edges, count = [call.edge for call in calls], cotangents.shape[0]
    if count == 1 or not one_at_a_time(calls):
        grads = batched_grad(outputs, edges, cotangents, keep)
        return [_or_zeros(g, c, count, outputs) for g, c in zip(grads, calls, strict=True)]
    result: list[Tensor] = []
    for k, cotangent in enumerate(cotangents):
        grads = gradients(outputs, edges, cotangent, keep=keep or k + 1 < count)
        if not result:
            result = [
                (outputs if g is None else g).new_empty((count, *c.output_shape))
                for g, c in zip(grads, calls, strict=True)
            ]
        for total, grad in zip(result, grads, strict=True):
            if grad is None:
                total[k] = 0
            else:
                total[k] = grad.reshape(total[k].shape)
    return result


def _or_zeros(grad: Tensor | None, call: Call, count: int, like: Tensor) -> Tensor:
    shape = (count, *call.output_shape)
    return like.new_zeros(shape) if grad is None else grad.reshape(shape)


def batched_grad(outputs: Tensor, inputs: Sequence[Any], cotangents: Tensor, keep: bool = True) -> list[Tensor | None]:
    """`torch.autograd.grad` for K cotangents at once: vmapped if K > 1 and possible, else one after the other.

    keep: not to use up the graph, which is kept anyway where there are several cotangents.
    """
    if cotangents.shape[0] > 1:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                return gradients(outputs, inputs, cotangents, batched=True)
        except (RuntimeError, TypeError, ValueError):  # an operation that vmap does not know; the loop decides
            pass
    keep = keep or len(cotangents) > 1
    columns = zip(*(gradients(outputs, inputs, one, keep=keep) for one in cotangents), strict=True)
    return [_stacked(column) for column in columns]


def _stacked(column: Sequence[Tensor | None]) -> Tensor | None:
    """(K, ...), without a copy where there is one."""
    if len(column) == 1:
        return None if column[0] is None else column[0][None]
    like = next((grad for grad in column if grad is not None), None)
    return None if like is None else torch.stack([torch.zeros_like(like) if grad is None else grad for grad in column])


def gradients(
    outputs: Tensor, inputs: Sequence[Any], cotangents: Tensor, batched: bool = False, keep: bool = True
) -> list[Tensor | None]:
    """`torch.autograd.grad` that keeps the graph, ignores gradient hooks on parameters and never gives sparse tensors."""
    with TURN, without_hooks([leaf for leaf in inputs if isinstance(leaf, Tensor)]):
        grads = backward(outputs, [*inputs, *companions(outputs)], cotangents, batched, keep)[: len(inputs)]
    return [grad.to_dense() if grad is not None and grad.is_sparse else grad for grad in grads]


@contextmanager
def without_hooks(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Hooks on a parameter change what an optimizer sees, not the function; they are taken out for a moment."""
    tables = [leaf._backward_hooks for leaf in leaves if leaf._backward_hooks]
    hooks = [dict(table) for table in tables]

    def clear() -> None:
        for table in tables:
            table.clear()

    def back() -> None:
        for table, own in zip(tables, hooks, strict=True):
            table.update(own)

    yield from changed(clear, back)


@dataclass(frozen=True)
class RouteUse:
    """A captured call that uses a group: the call, its site, and its example axis."""

    call: Call = field(repr=False)
    site: Site
    axis: int

    def outer(self, grads: Tensor, dtype: torch.dtype) -> OuterSum:
        """Gradients of the group by the layer's closed form, from output-gradients (K, *output shape)."""
        site = self.site
        inputs, grads = site.rule.by_example(site.module, self.call.inputs, grads, self.axis)
        return site.outer(as_type(inputs, dtype), grads.to(dtype), self.call.part)


@dataclass(frozen=True)
class Route:
    """How the gradients of a group are computed: from its uses, or by the exact fallback for the stated reason."""

    group: Group
    uses: tuple[RouteUse, ...] = ()
    reason: str = ""

    @property
    def structured(self) -> bool:
        """True when the closed form applies."""
        return not self.reason


def structured_factors(
    outputs: Tensor, routes: Sequence[Route], cotangents: Tensor, dtype: torch.dtype, keep: bool = True
) -> dict[Group, OuterSum]:
    """Gradients of sum(outputs[n] * cotangents[k, n]) for every k, n and every group that has uses.

    Args:
        cotangents: (K, N, ...).
        dtype: one type for all layers, so that what is made of them can be put together.
        keep: the graph is for another pass.
    """
    return factors_of(routes, call_gradients(outputs, routes, cotangents, keep), dtype)


def call_gradients(
    outputs: Tensor, routes: Sequence[Route], cotangents: Tensor, keep: bool = True
) -> dict[int, Tensor]:
    """Output-gradients (K, ...) at the calls that the routes use, by the `id` of the call."""
    calls = {id(use.call): use.call for route in routes for use in route.uses}
    return dict(zip(calls, output_gradients(outputs, list(calls.values()), cotangents, keep), strict=True))


def factors_of(routes: Sequence[Route], grads: Mapping[int, Tensor], dtype: torch.dtype) -> dict[Group, OuterSum]:
    """What `structured_factors` gives, from the output-gradients at the calls."""
    return {
        route.group: concatenate([use.outer(grads[id(use.call)], dtype) for use in route.uses])
        for route in routes
        if route.uses
    }


def as_type(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Floating-point inputs in one type; indices as they are."""
    return tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)

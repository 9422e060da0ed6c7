"""What the user's own forward and backward passes do at every layer, seen through hooks that change nothing.

A forward hook notes the input of a call and sets a hook on the output tensor, there and then: an in-place ReLU that
follows gives the tensor a new history and leaves this hook with the old one, which is the output of the layer. A call
counts when its gradient arrives in a backward pass that also reaches the parameter (`loss.backward()`); gradients that
somebody takes with `torch.autograd.grad`, or a forward that is never backpropagated, are not statistics of the training.
Nor are passes whose gradients were cleared before the step. Activation checkpointing runs a forward twice, and only the one
that is backpropagated counts. What happens inside transforms of torch.func is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tangentlab.engine.capture import history_keeper
from tangentlab.engine.groups import Group, Site, local_parameter
from tangentlab.layers.registry import Inputs, Part, Report
from tangentlab.optim.example_rows import ExampleRows, couples_examples, meet_other_examples
from tangentlab.optim.leaves import Leaves, will_accumulate
from tangentlab.optim.sums import ObservedUse, example_axis, use_of
from tangentlab.optim.watch import LoopWatch


@dataclass
class Pass:
    """One forward pass of the model.

    Attributes:
        examples: their number, 0 where the input does not show it.
        calls: of its modules, while it runs.
        number: of the pass, in the step.
        training: whether the model was in train mode.
        runs: whether the model's forward has begun and not ended.
    """

    examples: int
    calls: list[SeenCall] = field(default_factory=list)
    number: int = 0
    training: bool = True
    runs: bool = False


@dataclass
class SeenCall:
    """One call of one module, for one of its groups.

    Attributes:
        inputs: detached inputs; None when nothing but the number of examples is wanted.
        part: what it uses of the module's parameters.
        output_shape, edge: of the output, and where its gradient can be read for other cotangents.
        grads: gradient of the loss in the output, as the backward pass brought it.
        drawn: output-gradients (K, *output shape) of likelihood samples or factors, per example.
    """

    group: Group
    site: Site
    origin: Pass
    inputs: Inputs | None
    output_shape: tuple[int, ...]
    part: Part | None = None
    edge: GradientEdge | None = None
    grads: Tensor | None = None
    drawn: Tensor | None = None
    arrived: bool = False


@dataclass
class Seen:
    """What has been backpropagated since the last look: examples, the calls by group, and the modes of the passes."""

    examples: int
    calls: dict[Group, list[SeenCall]]
    modes: set[bool]


class PassObserver:
    """Hooks on a model and on the modules of its parameter groups.

    Args:
        model: the module whose calls are the passes.
        groups: parameter groups with closed forms.
        parameters: by name.
        example_axis: where the model's input has its examples.
        wants: whether inputs and gradients are needed at the current step; asked at every call.
        keeps_loss: whether gradients of the loss are among them.
        verifies: whether what comes to the parameters is noted at the current step.
        begins: called with the shapes of all calls' outputs when a forward ends, before anything is asked about it.
        before_pass: called when a new forward pass begins, after something has been backpropagated.
        after_pass: called with the pass and its output when the forward ends.
        cleared: called when the gradients of earlier passes turn out to have been cleared.
        watch: told about the first forward and the first gradient after a step.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Group],
        parameters: dict[str, nn.Parameter],
        example_axis: int,
        wants: Callable[[], bool],
        keeps_loss: Callable[[], bool],
        verifies: Callable[[], bool],
        begins: Callable[[dict[Group, list[tuple[int, ...]]]], None],
        before_pass: Callable[[], None],
        after_pass: Callable[[Pass, Any], None] | None,
        cleared: Callable[[], None],
        watch: LoopWatch,
    ) -> None:
        self.model, self.axis, self.wants, self.keeps_loss = model, example_axis, wants, keeps_loss
        self.verifies, self.before_pass, self.after_pass, self.cleared = verifies, before_pass, after_pass, cleared
        self.groups, self.parameters, self.watch, self.begins = groups, parameters, watch, begins
        self.sites: dict[int, list[tuple[Group, Site]]] = {}
        for group in groups:
            for site in group.sites:
                self.sites.setdefault(id(site.module), []).append((group, site))
        self.looks = 0
        self.runs_seen = False  # a forward since the last step
        self.interrupted = False  # by a pause, since the last step
        self.leaves = Leaves(parameters, lambda: self.attached and self.verifies(), self._enter_backward)
        self._current: Pass | None = None
        self._arrived: list[SeenCall] = []
        self._rows: dict[tuple[Group, int], bool] = {}  # whether those on an axis meet other examples
        self.reached: set[Group] = set()  # groups with gradients since the last step
        self._in_backward = False
        self._handles: list[Any] = []
        self.attach()

    def __deepcopy__(self, memo: dict[int, Any]) -> PassObserver:
        """Itself: a copy of the model carries its hooks, which look at the model alone."""
        return self

    def attach(self) -> None:
        """Set the hooks."""
        if self._handles:
            return
        self._handles.append(self.model.register_forward_pre_hook(self._start, with_kwargs=True))
        for found in self.sites.values():
            rule, module = found[0][1].rule, found[0][1].module
            self._handles += rule.watch(rule, module, self._recorder(found))
        self._handles.append(self.model.register_forward_hook(self._end))

    def detach(self) -> None:
        """Take the hooks off for good."""
        self._take_off()
        self.leaves.detach()

    def _take_off(self) -> None:
        """The hooks on modules."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def attached(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without hooks on modules inside the block."""
        attached = self.attached
        self._take_off()
        self.interrupted = True
        try:
            yield
        finally:
            if attached:
                self.attach()

    def _begin(self) -> None:
        if torch._C._current_graph_task_id() == -1:  # not a checkpoint that runs again inside a backward pass
            self._in_backward = False
            self.watch.forward_begins()

    def _start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is not self.model or not _recording():  # copies of a model carry its hooks
            return
        self._begin()
        self.runs_seen = True
        self.leaves.follow(name for group in self.groups for name in group.names)
        if self._arrived:
            self.before_pass()
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        sizes = [tensor.shape[self.axis] for tensor in tensors if tensor.ndim > self.axis]
        self._current = Pass(sizes[0] if sizes else 0, number=self.looks, training=module.training, runs=True)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if module is not self.model or self._current is None or not _recording():
            return
        shapes: dict[Group, list[tuple[int, ...]]] = {}
        for call in self._current.calls:
            shapes.setdefault(call.group, []).append(call.output_shape)
        self.begins(shapes)
        if self.verifies():
            self.leaves.trace(output)
        if self.wants():
            self._prove_rows(output)
        if self.after_pass is not None:
            self.after_pass(self._current, output)
        self._current.calls.clear()
        self._current.runs = False

    def _prove_rows(self, output: Any) -> None:
        """Ask, once for every layer, whether its rows are the examples that they seem to be."""
        assert self._current is not None
        asked = [
            (call.group, ExampleRows(call.edge, call.output_shape, place))
            for call in self._current.calls
            if call.edge is not None and (place := self._open_place(call)) is not None
        ]
        if not asked or couples_examples(self.model):
            return
        mixed = meet_other_examples(output, [rows for _, rows in asked], self._current.examples, self.axis)
        for (group, rows), meets in zip(asked, mixed, strict=True):
            self._rows[group, rows.place] = meets or self._rows.get((group, rows.place), False)

    def _open_place(self, call: SeenCall) -> int | None:
        """The axis of the examples in a call's input, if nobody has asked for it yet."""
        examples = call.origin.examples
        if call.inputs is None or examples < 2:
            return None
        place = example_axis(call.site, call.inputs, examples, self.axis)
        return None if place is None or (call.group, place) in self._rows else place

    def _place(self, call: SeenCall, examples: int) -> int | None:
        assert call.inputs is not None
        place = example_axis(call.site, call.inputs, examples, self.axis)
        return None if place is None or self._rows.get((call.group, place), False) else place

    def _recorder(self, found: list[tuple[Group, Site]]) -> Report:
        """What is done with a call of one module, which may own several groups (weight and bias apart)."""

        def record(module: nn.Module, part: Part | None, inputs: Inputs, output: Tensor) -> None:
            used = [(g, site, self.parameters[g.names[0]]) for g, site in found if site.uses(part)]
            if not used or not output.requires_grad or not _recording():
                return
            if any(local_parameter(module, site.local[0]) is not p for _, site, p in used):
                return  # torch.func has put other tensors in the parameters' place
            self._begin()
            wanted = self.wants()
            if self._current is None:
                self._current = Pass(inputs[0].shape[self.axis] if inputs[0].ndim > self.axis else 0)
            written = history_keeper(output)  # where an in-place operation on the output leaves its gradient
            for group, site, parameter in used:
                keep = tuple(one.detach() for one in inputs) if wanted else None
                call = SeenCall(group, site, self._current, keep, tuple(output.shape), part)
                if (
                    wanted
                    and self._current.runs
                    and (self.after_pass is not None or self._open_place(call) is not None)
                ):
                    call.edge = get_gradient_edge(written)
                    self._current.calls.append(call)
                if parameter.requires_grad:
                    written.register_hook(self._receiver(call, parameter))
                if wanted and self.verifies():
                    self.leaves.follow(group.names)  # of a module that is called alone

        return record

    def _receiver(self, call: SeenCall, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        node = get_gradient_edge(parameter).node

        def receive(grad: Tensor) -> None:
            if not will_accumulate(node):
                return
            self._enter_backward()
            self.reached.add(call.group)
            if call.inputs is not None and self.keeps_loss():
                own = grad.detach().reshape(call.output_shape)
                call.grads = own if call.grads is None else call.grads + own
            if not call.arrived:
                call.arrived = True
                self._arrived.append(call)

        return receive

    def _enter_backward(self) -> None:
        """At the first gradient of a backward pass: passes before it count only if their gradients are still there."""
        if self._in_backward:
            return
        self._in_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(self._leave_backward)
        self.watch.gradient_arrives()
        reached = [self.parameters[name].grad for group in self.reached for name in group.names]
        if reached and not any(grad is not None and bool(grad.any()) for grad in reached):
            self.forget()
            self.cleared()

    def _leave_backward(self) -> None:
        self._in_backward = False

    def forget(self) -> None:
        """Drop what has been backpropagated since the last step."""
        self.runs_seen = False
        for call in self._arrived:
            call.arrived, call.grads = False, None
        self.leaves.forget()
        self._arrived, self.interrupted = [], False
        self.reached.clear()

    def misses(self, groups: Sequence[Group]) -> bool:
        """Whether gradients that backward brought to these groups are gone."""
        names = [name for group in groups if group in self.reached for name in group.names]
        grads = [grad for name in names if (grad := self.parameters[name].grad) is not None]
        if self.leaves.brought_to(names):
            grads = [grad for grad in grads if bool(grad.any())]
        return bool(names) and not grads

    def take(self) -> Seen:
        """What has been backpropagated, once."""
        arrived, self._arrived = self._arrived, []
        self.looks += 1
        calls: dict[Group, list[SeenCall]] = {}
        for call in arrived:
            calls.setdefault(call.group, []).append(call)
        examples = max((call.origin.examples for call in arrived), default=0)
        if not arrived and self.leaves.touched and self._current is not None:
            examples = self._current.examples  # gradients that came through no output of a module
        self.leaves.touched = False
        return Seen(examples, calls, {call.origin.training for call in arrived})

    def uses(self, calls: Sequence[SeenCall], examples: int, dtype: torch.dtype, drawn: bool) -> list[ObservedUse]:
        """Calls as (N, ...) inputs and (K, N, ...) gradients: of the loss, or those that were drawn."""
        result = []
        for call in calls:
            grads = call.drawn if drawn else None if call.grads is None else call.grads[None]
            if call.inputs is not None and grads is not None and grads.numel():  # an expert may get no tokens
                result.append(use_of(call.site, call.inputs, grads, self._place(call, examples), dtype, call.part))
        return result


def _recording() -> bool:
    """Whether a graph for backward passes is made, and no transform of torch.func is at work."""
    return torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None

"""The projections of `nn.MultiheadAttention`, which it applies inside one function and not as modules.

While an attention runs, torch's own code of that function runs with a `linear` that reports what it is given: the graph
and every number are those of the model, and nothing outside of the call is touched. Under a function mode of the user's,
which would see other calls then, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from tangentlab.layers.linear import linear
from tangentlab.layers.registry import LayerRule, Part, Report, register

_GROUPS = (
    ("in_proj_weight", "in_proj_bias"),
    ("q_proj_weight",),
    ("k_proj_weight",),
    ("v_proj_weight",),
    ("out_proj.weight", "out_proj.bias"),
)


class _Projections(TorchFunctionMode):
    """Reports the linear maps inside the attention function of one module."""

    def __init__(self, rule: LayerRule, module: nn.MultiheadAttention, report: Report) -> None:
        super().__init__()
        self.rule, self.module, self.report = rule, module, report
        self.lead = torch.Size()  # (positions, examples) of the query

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's own functions, the one of attention with another `linear`."""
        if function is F.multi_head_attention_forward:
            query = args[0] if args else kwargs["query"]
            self.lead = query.shape[:-1] if query.ndim == 3 else torch.Size((len(query), 1))
            function = _with_globals(function, linear=self._linear)
        return function(*args, **(kwargs or {}))

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output = F.linear(inputs, weight, bias)
        seen = [one.unflatten(0, self.lead) if one.ndim == 2 else one for one in (inputs, output)]
        for part in self._parts(weight, bias):
            self.report(self.module, part, (seen[0],), seen[1])
        return output

    def _parts(self, weight: Tensor, bias: Tensor | None) -> Iterator[Part]:
        """Weight and bias together where they are one group of the rule."""
        of_weight, of_bias = self._part(weight), None if bias is None else self._part(bias)
        if of_weight and of_bias and of_bias.names[0] in self.rule.group_of(of_weight.names[0]):
            yield Part(of_weight.names + of_bias.names, of_weight.start, of_weight.rows, of_weight.counts)
        else:
            yield from (part for part in (of_weight, of_bias) if part is not None)

    def _part(self, tensor: Tensor) -> Part | None:
        """The parameter that a tensor is, or a cut of."""
        for name in (name for names in _GROUPS for name in names):
            owner, _, local = name.rpartition(".")
            parameter = self.module.get_submodule(owner)._parameters.get(local)
            if tensor is parameter:
                return Part((name,))
            if parameter is not None and tensor._base is parameter:
                start = (tensor.storage_offset() - parameter.storage_offset()) // parameter.stride(0)
                return Part((name,), start, len(parameter), counts=start == 0)
        return None


def _with_globals(function: Any, **names: Any) -> Callable[..., Any]:
    """The same code that finds other functions under these names, also in the helpers that it calls."""
    around = {**function.__globals__, **names, "has_torch_function": lambda tensors: False}
    for helper in ("_in_projection", "_in_projection_packed"):
        if isinstance(known := around.get(helper), FunctionType):
            around[helper] = FunctionType(known.__code__, around, helper, known.__defaults__)
    copy = FunctionType(function.__code__, around, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class _Watch:
    """The hooks that put a `_Projections` in force while a module runs, as one handle."""

    def __init__(self, rule: LayerRule, module: nn.MultiheadAttention, report: Report) -> None:
        self.module, self.mode = module, _Projections(rule, module, report)
        self.hooks = [
            module.register_forward_pre_hook(lambda called, _: self._enter(called)),
            module.register_forward_hook(lambda called, *_: self._leave(called), prepend=True, always_call=True),
        ]  # functions, which a copy of the model shares

    def _enter(self, called: nn.Module) -> None:
        if called is not self.module or torch.compiler.is_compiling():
            return
        self._discard()  # of a call that was interrupted
        if not _get_current_function_mode_stack():  # another mode sees the attention as one function, and not its parts
            self.mode.__enter__()

    def _leave(self, called: nn.Module) -> None:
        if called is self.module:
            self._discard()

    def _discard(self) -> None:
        """Take the mode off the stack of this thread, wherever it is."""
        if self.mode not in _get_current_function_mode_stack():
            return
        above = []
        while (top := _pop_mode()) is not self.mode:
            above.append(top)
        for mode in reversed(above):
            _push_mode(mode)

    def remove(self) -> None:
        """Take all of it off."""
        for hook in self.hooks:
            hook.remove()
        self._discard()


def _watch(rule: LayerRule, module: nn.Module, report: Report) -> list[Any]:
    assert isinstance(module, nn.MultiheadAttention)
    return [_Watch(rule, module, report)]


@register(nn.MultiheadAttention, groups=_GROUPS, pointwise=True, axis=1, watch=_watch)
def projection(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> Any:
    """Each is a linear layer on (positions, examples, features)."""
    return linear(module, inputs, grads, group)

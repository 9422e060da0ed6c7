"""The registry of layers with a closed form, keyed by module type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum

FactorsFunction = Callable[[nn.Module, Tensor, Tensor, tuple[str, ...]], OuterSum]


@dataclass(frozen=True)
class LayerRule:
    """How per-example gradients of one layer family follow from its input and its output-gradients.

    Attributes
    ----------
    factors: (module, input (N, ...), output-gradients (K, N, ...), names of the group) -> OuterSum.
    joint: weight and bias form one group, with the bias as homogeneous column.
    pointwise: the layer acts on every position alone, so the example axis may be any axis before the features.
    refuse: (module) -> reason why this configuration has no closed form, or None.
    """

    module_type: type[nn.Module]
    factors: FactorsFunction
    joint: bool = False
    pointwise: bool = False
    refuse: Callable[[nn.Module], str | None] = lambda module: None

    @property
    def input_name(self) -> str:
        """Name of the input among the forward's arguments, for calls by keyword."""
        return list(inspect.signature(self.module_type.forward).parameters)[1]


_RULES: dict[type[nn.Module], LayerRule] = {}


def register(
    *module_types: type[nn.Module],
    joint: bool = False,
    pointwise: bool = False,
    refuse: Callable[[nn.Module], str | None] = lambda module: None,
) -> Callable[[FactorsFunction], FactorsFunction]:
    """Decorator that makes a function the closed form of one or several module types.

    A subclass inherits the rule as long as it keeps every method through which the registered class computes.
    """

    def add(function: FactorsFunction) -> FactorsFunction:
        for module_type in module_types:
            _RULES[module_type] = LayerRule(module_type, function, joint, pointwise, refuse)
        return function

    return add


def rule_of(module: nn.Module) -> tuple[LayerRule | None, str]:
    """The rule of a module, or None with the reason why it has none."""
    kind = type(module)
    for parent in kind.__mro__:
        rule = _RULES.get(parent)
        if rule is None:
            continue
        changed = _overridden(module, rule.module_type)
        if changed:
            return None, f"{kind.__name__} overrides {changed} of {parent.__name__}"
        reason = rule.refuse(module)
        return (None, reason) if reason else (rule, "")
    return None, f"no closed form is registered for {kind.__name__}"


_HARMLESS = {"__init__", "__setstate__", "__repr__", "extra_repr", "from_pretrained", "_check_input_dim"}


def _overridden(module: nn.Module, module_type: type[nn.Module]) -> str | None:
    """The method that a subclass or an instance has changed and that its forward may run through, if there is one.

    A convolution, say, computes in `_conv_forward`. Methods that only build, reset, load or print are free.
    """
    parents = module_type.__mro__[: module_type.__mro__.index(nn.Module)]
    names = {name for parent in parents for name, value in vars(parent).items() if inspect.isfunction(value)}
    used = sorted(n for n in names - _HARMLESS if not n.startswith(("reset_", "_load", "_save", "_fill")))
    for name in [*used, "__getattr__", "__getattribute__"]:
        if name in vars(module) or getattr(type(module), name) is not getattr(module_type, name):
            return f"the method {name}"
    return None

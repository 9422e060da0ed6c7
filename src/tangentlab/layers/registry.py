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

    A subclass inherits the rule as long as it keeps the forward of the registered class.
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
        if kind.forward is not rule.module_type.forward or "forward" in vars(module):
            return None, f"{kind.__name__} overrides the forward of {parent.__name__}"
        reason = rule.refuse(module)
        return (None, reason) if reason else (rule, "")
    return None, f"no closed form is registered for {kind.__name__}"

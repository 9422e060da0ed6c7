"""The registry of layers with a closed form, keyed by module type: all that metrics and optimizers ask of a layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum

FactorsFunction = Callable[[nn.Module, Any, Tensor, tuple[str, ...]], OuterSum]
Names = tuple[str, ...]
Inputs = tuple[Tensor, ...]
WHOLE, POSITIONS = -1, -2
"""In place of an example axis: the call belongs to one example, or every position counts as one."""


@dataclass(frozen=True)
class Matrix:
    """A weight as `groups` matrices (rows, columns), row-major, without the column of a bias.

    Attributes
    ----------
    shape: (groups, rows, columns).
    gradients: the side that output-gradients are on, "left" (rows) or "right" (columns).
    taps: kernel positions of a convolution, whose columns are (channel, tap).
    one_hot: the inputs are one-hot vectors, whose second moment is diagonal.
    structured: whether a Kronecker product of the two sides' second moments approximates that of the gradients.
    """

    shape: tuple[int, int, int]
    gradients: str = "left"
    taps: int | None = None
    one_hot: bool = False
    structured: bool = True

    @classmethod
    def vector(cls, size: int) -> Matrix:
        """No structure: one column."""
        return cls((1, size, 1), structured=False)

    @classmethod
    def of(cls, outer: OuterSum) -> Matrix:
        """That of gradients which have been computed."""
        if not outer.kronecker or outer.is_explicit:
            return cls.vector(outer.numel)
        return cls(outer.matrix_shape, outer.gradients)

    def describes(self, outer: OuterSum) -> bool:
        """Whether gradients have this form."""
        if not self.structured:
            return outer.matrix_shape == self.shape or self == Matrix.of(outer)
        return outer.kronecker and (outer.matrix_shape, outer.gradients) == (self.shape, self.gradients)


def by_rows(module: nn.Module, weight: Tensor) -> Matrix:
    """One matrix, output-gradients along the first axis of the weight and inputs along all others."""
    return Matrix((1, weight.shape[0], weight.shape[1:].numel()))


def as_vector(module: nn.Module, weight: Tensor) -> Matrix:
    """Nothing but its entries (norms)."""
    return Matrix.vector(weight.numel())


@dataclass(frozen=True)
class Part:
    """What one operation inside a module's forward uses of its parameters.

    Attributes
    ----------
    names: local names of the parameters.
    start: the first of their rows that it uses.
    rows: how many rows they have altogether; None where it uses them all.
    counts: whether it is the first of several operations that share one cut of the parameters.
    """

    names: Names
    start: int = 0
    rows: int | None = None
    counts: bool = True

    def whole(self, grads: Tensor) -> Tensor:
        """Output-gradients (..., used rows) among zeros for the other rows, (..., rows)."""
        if self.rows is None:
            return grads
        return nn.functional.pad(grads, (self.start, self.rows - self.start - grads.shape[-1]))


Report = Callable[[nn.Module, Part | None, Inputs, Tensor], None]
"""Called with a module, the part of its parameters (None: all), the inputs and the output of an operation."""


@dataclass(frozen=True)
class LayerRule:
    """How per-example gradients of one layer family follow from its inputs and its output-gradients.

    Attributes
    ----------
    factors: (module, input (N, ...), output-gradients (K, N, ...), names of the group) -> OuterSum. A layer that captures
        several arguments gets a tuple of inputs.
    groups: local names of the parameters that are treated together: a weight with its bias as homogeneous column, or one.
    `arguments`: names of those of the forward that are captured; by default the first.
    pointwise: the layer acts on every position alone, so the example axis may be any axis before the features.
    axis: where a pointwise layer always has its examples; None where its caller decides.
    features: (module) -> trailing axes of the input that are features, for pointwise layers.
    ndim: (module) -> rank of an input with an example axis, or None where it may be any.
    matrix: (module, weight) -> how the weight is seen as matrices; a parameter with a single axis is always a vector.
    watch: (rule, module, report) -> handles; how the uses of the parameters are seen, by default as calls of the module.
    couples: in train mode the examples of a batch see each other.
    refuse: (module) -> reason why this configuration has no closed form, or None.
    """

    factors: FactorsFunction
    groups: tuple[Names, ...] = (("weight",), ("bias",))
    arguments: Names = ()
    pointwise: bool = False
    axis: int | None = None
    features: Callable[[nn.Module], int] = lambda module: 1
    ndim: Callable[[nn.Module], int | None] = lambda module: None
    matrix: Callable[[nn.Module, Tensor], Matrix] = by_rows
    watch: Callable[[LayerRule, nn.Module, Report], list[Any]] = lambda rule, module, report: rule.watch_calls(
        module, report
    )
    couples: bool = False
    refuse: Callable[[nn.Module], str | None] = lambda module: None

    def group_of(self, local: str) -> Names:
        """The names that are treated together with this one; none where the rule does not know it."""
        return next((names for names in self.groups if local in names), ())

    def inputs_of(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The captured arguments of a call."""
        if args and not self.arguments:
            return args[:1]
        names = list(inspect.signature(type(module).forward).parameters)[1:]
        wanted = self.arguments or names[:1]
        return tuple(args[place] if (place := names.index(n)) < len(args) else kwargs[n] for n in wanted)

    def watch_calls(self, module: nn.Module, report: Report) -> list[Any]:
        """Report every call of a module, between its own hooks."""

        def hook(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if called is module and isinstance(output, Tensor):  # copies of a model carry its hooks
                report(module, None, self.inputs_of(module, args, kwargs), output)

        return [module.register_forward_hook(hook, with_kwargs=True, prepend=True)]

    def by_example(self, module: nn.Module, inputs: Inputs, grads: Tensor, axis: int) -> tuple[Inputs, Tensor]:
        """Inputs (N, ...) and output-gradients (K, N, ...) of a call, given grads (K, *output shape).

        axis: of the examples in the inputs and the output; `WHOLE` for a call that belongs to one example altogether, and
        `POSITIONS` where every position of a pointwise layer counts as an example.
        """
        if axis == WHOLE:
            return tuple(one[None] for one in inputs), grads[:, None]
        if axis == POSITIONS:
            free = inputs[0].ndim - self.features(module)
            rows = grads.reshape(len(grads), -1, *grads.shape[1 + free :])
            return tuple(one.reshape(-1, *one.shape[free:]) for one in inputs), rows
        return tuple(one.movedim(axis, 0) for one in inputs), grads.movedim(axis + 1, 1)

    def outer(self, module: nn.Module, inputs: Inputs, grads: Tensor, names: Names) -> OuterSum:
        """Per-example gradients of a group, from captured inputs (N, ...) and output-gradients (K, N, ...)."""
        with torch.no_grad():  # a rule may read parameters
            return self.factors(module, inputs if len(inputs) > 1 else inputs[0], grads, names)


_RULES: dict[type[nn.Module] | str, LayerRule] = {}


def register(
    *module_types: type[nn.Module] | str, joint: bool = False, **facts: Any
) -> Callable[[FactorsFunction], FactorsFunction]:
    """Decorator that makes a function the closed form of one or several module types.

    A subclass inherits the rule as long as it keeps every method through which the registered class computes.

    Args:
        module_types: classes, or their qualified names ("package.module.Class") where the package is not ours to import.
        joint: `weight` and `bias` form one group; short for groups=(("weight", "bias"),).
        facts: the other attributes of `LayerRule`.
    """
    if joint:
        facts["groups"] = (("weight", "bias"),)

    def add(function: FactorsFunction) -> FactorsFunction:
        _RULES.update(dict.fromkeys(module_types, LayerRule(function, **facts)))
        return function

    return add


def rule_of(module: nn.Module) -> tuple[LayerRule | None, str]:
    """The rule of a module, or None with the reason why it has none."""
    kind = type(module)
    for parent in kind.__mro__:
        rule = _RULES.get(parent) or _RULES.get(f"{parent.__module__}.{parent.__qualname__}")
        if rule is None:
            continue
        changed = _overridden(module, parent)
        if changed:
            return None, f"{kind.__name__} overrides {changed} of {parent.__name__}"
        reason = rule.refuse(module)
        return (None, reason) if reason else (rule, "")
    return None, f"no closed form is registered for {kind.__name__}"


def expected_ndim(module: nn.Module) -> int | None:
    """Rank of an input with an example axis, or None where it may be any."""
    rule, _ = rule_of(module)
    return rule.ndim(module) if rule else None


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

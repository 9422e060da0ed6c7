"""The linearized network: a module that is affine in its parameters."""

from __future__ import annotations

from copy import deepcopy
from math import factorial
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tangentlab.engine.forward_mode import has_padding
from tangentlab.engine.functional import call_with
from tangentlab.engine.graph import read_graph
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.network import (
    RANDOM_FORWARD,
    WRITING_FORWARD,
    eagerly,
    main_tensor,
    refuse_modes,
    require_module,
)
from tangentlab.engine.snapshot import Parameters, RandomState, untouched
from tangentlab.engine.tangent_map import REVERSE, WRITTEN_OUT, TangentMap
from tangentlab.errors import InputError, ModelError


def linearize(model: nn.Module, *, order: int = 1, offset: bool = True, layers: Any = None) -> LinearizedModel:
    """The network to first order around its present parameters: f(x, w0) + J(x, w0) v, with v the parameters to train.

    A copy of the model is frozen in eval mode, batch norms at the statistics they have now; the model itself is left alone.
    The result is a module like any other: any optimizer trains it, its `state_dict` holds w0 and v.

    Args:
        model: any module with a tensor as output (or an object with `logits`).
        order: 1, or 2 for the second-order Taylor model f + J v + 1/2 v^T H v.
        offset: False leaves f(x, w0) out.
        layers: which parameters may move, see `LayerCollection.from_model`; all trainable ones by default.

    Cost: a training step takes about 5/3 of that of the model (order 1), at about the same memory.
    """
    return LinearizedModel(model, order=order, offset=offset, layers=layers)


class LinearizedModel(nn.Module):
    """f0 + J v (+ 1/2 v^T H v), see `linearize`.

    Attributes:
        base: the frozen copy of the network, always in eval mode.
        displacement: modules with the names of the network's own that hold v, zero at first: `displacement.fc.weight`.
    """

    def __init__(self, model: nn.Module, *, order: int = 1, offset: bool = True, layers: Any = None) -> None:
        super().__init__()
        require_module(model)
        if order not in (1, 2):
            raise InputError(f"The argument order is 1 (linear) or 2 (quadratic), not {order!r}.")
        layout = LayerCollection.from_model(model, layers)
        self.base = frozen_copy(model)
        refuse_modes(self.base)
        self.order, self.offset, self.names = order, offset, layout.names
        self.displacement = nn.Module()
        own = dict(self.base.named_parameters())
        for name in self.names:
            _register(self.displacement, name, nn.Parameter(torch.zeros_like(own[name])))
        self._places = _places(self.base, {id(own[name]): name for name in self.names})
        padded = has_padding(self.base)
        self._own_map = TangentMap(order, lowest=REVERSE if padded else 0)
        self._input_map = TangentMap(order, lowest=REVERSE if padded else WRITTEN_OUT)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The outputs, in the shape of the network's own; called like the network."""
        if torch.is_inference_mode_enabled():
            raise ModelError("A linearized network differentiates in its forward: use torch.no_grad() instead of it.")
        refuse_modes(self.base)
        terms = self.terms(*inputs, **options)
        start = 0 if self.offset else 1
        return sum((term / factorial(k) for k, term in enumerate(terms[start + 1 :], start + 1)), terms[start])

    def terms(self, *inputs: Any, **options: Any) -> list[Tensor]:
        """[f0, J v] and for order 2 also v^T H v, each of the shape of the outputs."""

        def call(values: dict[str, Tensor]) -> Tensor:
            placed = {place: values[name] for place, name in self._places.items()}
            with untouched(self.base):
                return main_tensor(call_with(self.base, placed, inputs, options))

        def own() -> tuple[dict[str, Tensor], Tensor]:
            copy = deepcopy(self.base)  # in which gradients may end
            parameters = dict(copy.named_parameters())
            leaves: dict[str, Tensor] = {name: parameters[name].requires_grad_() for name in self.names}
            return leaves, main_tensor(copy(*inputs, **options))

        parameters = dict(self.base.named_parameters())
        values = {name: parameters[name].detach() for name in self.names}
        tangents = self._map(inputs, options)
        with untouched(self.base), eagerly():  # a checkpoint runs a part of the forward again
            if not tangents.proved:
                self._inspect(inputs, options)
            return tangents(call, values, self.displacements(), own)[: self.order + 1]

    def _inspect(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Refuse a forward that draws at random, writes to parameters, or uses some that are not in the copy, all frozen."""
        cut = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, (inputs, options))
        random = RandomState.now()
        before = Parameters(self.base, [name for name, _ in self.base.named_parameters()])
        with torch.enable_grad(), untouched(self.base):
            outputs = main_tensor(self.base(*cut[0], **cut[1]))
            if whose := random.drawn():
                raise ModelError(RANDOM_FORWARD.format(whose))
        if name := before.written():
            before.restore()
            raise ModelError(WRITING_FORWARD.format(name))
        with (
            torch.enable_grad()
        ):  # a reentrant checkpoint, which is refused, shows only where its inputs have gradients
            args, kwargs = tree_map(_with_gradient, cut)
            read_graph(main_tensor(deepcopy(self.base)(*args, **kwargs)))
        foreign = [leaf for leaf in read_graph(outputs).leaves if isinstance(leaf, nn.Parameter)]
        if foreign:
            raise ModelError(
                f"The forward uses {len(foreign)} parameters (the first of shape {tuple(foreign[0].shape)}) that a copy of the "
                "model does not take along, as a function does that holds a layer of its own: make them attributes that the "
                "forward reads from the module."
            )

    def _map(self, *inputs: Any) -> TangentMap:
        """A gradient in the inputs is a mixed derivative of the network, for which the first rungs are not proved."""
        leaves = tree_leaves(inputs) if torch.is_grad_enabled() else []
        needed = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
        return self._input_map if needed else self._own_map

    def displacements(self) -> dict[str, Tensor]:
        """v by the names of the network's parameters."""
        return {name: attrgetter(name)(self.displacement) for name in self.names}

    @torch.no_grad()
    def network(self) -> nn.Module:
        """The network itself at w0 + v: a trainable copy of the base, in eval mode."""
        moved = deepcopy(self.base)
        own = dict(moved.named_parameters())
        for name, step in self.displacements().items():
            own[name].add_(step)
            own[name].requires_grad_()
        return moved

    def train(self, mode: bool = True) -> Self:
        """The mode of this module; the base stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Of the displacement; the base stays frozen."""
        self.displacement.requires_grad_(requires_grad)
        return self

    def extra_repr(self) -> str:
        """Order and number of parameters."""
        count = sum(parameter.numel() for parameter in self.displacement.parameters())
        return f"order = {self.order}, offset = {self.offset}, parameters = {count:,}"


def _with_gradient(leaf: Any) -> Any:
    """A tensor of real numbers as the result of an operation, so that it may be written to; anything else as it is."""
    real = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.detach().requires_grad_().clone() if real else leaf


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode none of whose parameters is trained."""
    try:
        with torch.no_grad():  # parameters behind torch.jit are copied with their history otherwise
            copy = deepcopy(model)
    except RuntimeError as error:
        raise ModelError(
            f"This model cannot be copied ({error}): torch.nn.utils.parametrizations.weight_norm can be, the older "
            "torch.nn.utils.weight_norm cannot."
        ) from error
    return copy.eval().requires_grad_(False)


def _register(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter under its dotted name, with plain modules on the way."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(last, parameter)


def _places(model: nn.Module, names: dict[int, str]) -> dict[str, str]:
    """Every place of the model that holds one of the parameters (a tied one has several), with the parameter's name."""
    return {
        f"{prefix}.{local}".lstrip("."): names[id(parameter)]
        for prefix, module in model.named_modules()
        for local, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in names
    }

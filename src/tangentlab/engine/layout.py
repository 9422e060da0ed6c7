"""LayerCollection: which parameters, in which order. The one place that knows the flat order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.sharding import refuse_sharded
from tangentlab.engine.turns import TURN
from tangentlab.errors import InputError

Predicate = Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter: its name, shape, and its rank in the model's `named_parameters()`."""

    name: str
    shape: tuple[int, ...]
    rank: int

    @property
    def numel(self) -> int:
        """Number of entries."""
        return torch.Size(self.shape).numel()

    @property
    def layer(self) -> str:
        """Name of the module that owns it ('' for a parameter of the model itself)."""
        return self.name.rpartition(".")[0]


class LayerCollection:
    """A selection of parameters; flat vectors follow `named_parameters()`, deduplicated, row-major.

    It holds names and shapes only, so it can be pickled and used with every copy of the model. `a | b`, `a & b` and
    `a - b` combine selections of one model.
    """

    def __init__(self, specs: Iterable[ParameterSpec]) -> None:
        self.specs = tuple(sorted(specs, key=lambda spec: spec.rank))

    @classmethod
    def from_model(cls, model: nn.Module, select: Any = None, *, exclude: Any = None) -> LayerCollection:
        """The trainable parameters of a model, or some of them.

        `select` and `exclude` are a module or parameter of the model, a name or glob ("encoder.*", "*.bias"; a tied
        parameter answers to all its names), a predicate of (name, parameter), a LayerCollection, or an iterable of these.
        A module or a name stands for everything below it.
        """
        refuse_sharded(model)
        modules = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise InputError(f"Parameter {name!r} has no shape yet: run the model once on a batch first.")
        ranked = enumerate(model.named_parameters())
        specs = [(ParameterSpec(n, tuple(p.shape), rank), p) for rank, (n, p) in ranked if p.requires_grad]
        aliases: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        if not specs:
            raise InputError("The model has no trainable parameter (all have requires_grad=False or there is none).")
        if select is not None:
            chosen = _matching(specs, select, modules, aliases)
        else:
            chosen = {spec.name for spec, _ in specs}
        if exclude is not None:
            chosen = chosen - _matching(specs, exclude, modules, aliases)
        if not chosen:
            raise InputError(f"The selection {select!r} leaves no trainable parameter; trainable are: {_names(specs)}.")
        return cls(spec for spec, _ in specs if spec.name in chosen)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Parameter names in flat order."""
        return tuple(spec.name for spec in self.specs)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in a flat vector."""
        slices, start = {}, 0
        for spec in self.specs:
            slices[spec.name] = slice(start, start + spec.numel)
            start += spec.numel
        return slices

    def slice_of(self, names: Sequence[str]) -> slice | None:
        """Where some parameters lie together and in this order, or None where others are between them."""
        places = [self.slices[name] for name in names]
        together = all(one.stop == two.start for one, two in pairwise(places))
        return slice(places[0].start, places[-1].stop) if together else None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter."""
        return {spec.name: spec.shape for spec in self.specs}

    @cached_property
    def numel(self) -> int:
        """d, the number of parameters."""
        return sum(spec.numel for spec in self.specs)

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Parameter names by the module that owns them."""
        layers: dict[str, tuple[str, ...]] = {}
        for spec in self.specs:
            layers[spec.layer] = (*layers.get(spec.layer, ()), spec.name)
        return layers

    def offset(self, name: str) -> int:
        """Start of a parameter, or of the first parameter of a layer, in the flat vector."""
        if name not in self.slices and name in self.layers:
            name = self.layers[name][0]
        if name not in self.slices:
            raise InputError(f"No parameter or layer {name!r} in this collection; it has: {', '.join(self.names)}.")
        return self.slices[name].start

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of a model that this collection names; checks names and shapes."""
        with TURN:  # a transform may have put other tensors in their place
            own = dict(model.named_parameters())
        for spec in self.specs:
            if spec.name not in own or tuple(own[spec.name].shape) != spec.shape:
                found = tuple(own[spec.name].shape) if spec.name in own else "absent"
                raise InputError(
                    f"This belongs to another model: parameter {spec.name!r} of shape {spec.shape} is {found} here."
                )
        return {name: own[name] for name in self.names}

    def flatten(self, tensors: Mapping[str, Tensor], batch_ndim: int = 0) -> Tensor:
        """Tensors (*batch, *shape) by name -> one flat tensor (*batch, d)."""
        parts = [tensors[s.name].reshape(*tensors[s.name].shape[:batch_ndim], s.numel) for s in self.specs]
        return torch.cat(parts, -1)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Flat (*batch, d) -> views (*batch, *shape) by name."""
        if flat.shape[-1] != self.numel:
            raise InputError(f"A flat vector of {self.numel} entries is expected, this one has {flat.shape[-1]}.")
        return {n: flat[..., self.slices[n]].reshape((*flat.shape[:-1], *self.shapes[n])) for n in self.names}

    def __or__(self, other: LayerCollection) -> LayerCollection:
        both = {*self.specs, *other.specs}
        if len({spec.name for spec in both}) < len(both) or len({spec.rank for spec in both}) < len(both):
            raise InputError(f"These collections belong to different models: {self!r} and {other!r}.")
        return LayerCollection(both)

    def __and__(self, other: LayerCollection) -> LayerCollection:
        return LayerCollection(set(self.specs) & set(other.specs))

    def __sub__(self, other: LayerCollection) -> LayerCollection:
        return LayerCollection(set(self.specs) - set(other.specs))

    def __contains__(self, name: object) -> bool:
        return name in self.slices

    def __iter__(self) -> Iterator[ParameterSpec]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerCollection) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(self.specs)

    def __repr__(self) -> str:
        return f"LayerCollection({len(self)} parameters, {len(self.layers)} layers, d = {self.numel:,})"


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The type that holds the values of all of them; flat vectors over parameters of several types are of this one."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def _names(specs: list[tuple[ParameterSpec, nn.Parameter]]) -> str:
    return ", ".join(spec.name for spec, _ in specs[:12]) + (", ..." if len(specs) > 12 else "")


Aliases = dict[int, list[str]]
"""All names of each parameter by `id`: a tied one has several."""


def _matching(
    specs: list[tuple[ParameterSpec, nn.Parameter]], select: Any, modules: dict[int, str], aliases: Aliases
) -> set[str]:
    """Names of the parameters that a selector means; every selector must mean at least one."""
    if isinstance(select, LayerCollection):
        known = {name for names in aliases.values() for name in names}
        if not known.issuperset(select.names):
            raise InputError(
                f"{select!r} belongs to another model: {', '.join(set(select.names) - known)} is not here."
            )
        return set(select.names) & {spec.name for spec, _ in specs}
    if isinstance(select, nn.Parameter):
        return {spec.name for spec, parameter in specs if parameter is select}
    if isinstance(select, nn.Module):
        if id(select) not in modules:
            raise InputError(f"The selected module {type(select).__name__} is not part of the model.")
        owned = {id(parameter) for parameter in select.parameters()}
        return {spec.name for spec, parameter in specs if id(parameter) in owned}
    if isinstance(select, str):
        found = {s.name for s, p in specs if any(_is_meant(name, select) for name in aliases[id(p)])}
        if not found:
            raise InputError(f"No trainable parameter matches {select!r}; trainable are: {_names(specs)}.")
        return found
    if callable(select):
        return {spec.name for spec, parameter in specs if select(spec.name, parameter)}
    if isinstance(select, Iterable) and not isinstance(select, Tensor):
        return set().union(*(_matching(specs, one, modules, aliases) for one in select))
    raise InputError(f"Cannot select parameters by a {type(select).__name__}: give a module, name, glob or predicate.")


def _is_meant(name: str, select: str) -> bool:
    return fnmatchcase(name, select) or name.startswith(select + ".")

"""LayerCollection: which parameters, in which order. The one place that knows the flat order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.snapshot import TURN
from tangentlab.errors import InputError, ModelError

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

        `select` and `exclude` are a module or parameter of the model, a name or glob ("blocks.*.mlp", "*.bias"; a tied
        parameter answers to all its names), a predicate of (name, parameter), a LayerCollection, or an iterable of these.
        A module, a name or a glob stands for everything below what it means.
        """
        refuse_sharded(model)
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise InputError(f"Parameter {name!r} has no shape yet: run the model once on a batch first.")
        trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not trainable:
            raise InputError("The model has no trainable parameter (all have requires_grad=False or there is none).")
        choice = _Choice.of(model, trainable)
        chosen = set(trainable) if select is None else choice.meant(select)
        if exclude is not None:
            chosen = chosen - choice.meant(exclude)
        if not chosen:
            raise InputError(
                f"The selection {select!r} leaves no trainable parameter; trainable are: {_listed(trainable)}."
            )
        ranked = enumerate(model.named_parameters())
        return cls(ParameterSpec(name, tuple(p.shape), rank) for rank, (name, p) in ranked if name in chosen)

    @classmethod
    def of(cls, model: nn.Module, layers: Any = None) -> LayerCollection:
        """What `layers=` means: a collection is itself, also of another copy of the model; see `from_model` for others."""
        return layers if isinstance(layers, LayerCollection) else cls.from_model(model, layers)

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
            own = {spec.name: _parameter(model, spec.name) for spec in self.specs}
            if any(p is None for p in own.values()) or len({*map(id, own.values())}) < len(
                own
            ):  # absent, or tied since
                own = dict(model.named_parameters())
        for spec in self.specs:
            parameter = own.get(spec.name)
            if parameter is None or parameter.shape != spec.shape:
                found = "absent" if parameter is None else tuple(parameter.shape)
                raise InputError(
                    f"This belongs to another model: parameter {spec.name!r} of shape {spec.shape} is {found} here."
                )
        return {name: own[name] for name in self.names}  # type: ignore[misc]

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


@dataclass(frozen=True)
class _Choice:
    """What selectors of one model can mean: its trainable parameters, and all names of every parameter, tied or not."""

    model: nn.Module
    trainable: dict[str, nn.Parameter]
    aliases: dict[int, list[str]]

    @classmethod
    def of(cls, model: nn.Module, trainable: dict[str, nn.Parameter]) -> _Choice:
        aliases: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        return cls(model, trainable, aliases)

    def meant(self, select: Any) -> set[str]:
        """Names of the trainable parameters that a selector means; a name, module or parameter must mean at least one."""
        if isinstance(select, LayerCollection):
            return self._known(select) & set(self.trainable)
        if isinstance(select, nn.Parameter | nn.Module):
            return self._owned(select)
        if isinstance(select, str):
            return self._named(select)
        if callable(select):
            return {name for name, parameter in self.trainable.items() if select(name, parameter)}
        if isinstance(select, Iterable) and not isinstance(select, Tensor):
            return set().union(*(self.meant(one) for one in select))
        raise InputError(
            f"Cannot select parameters by a {type(select).__name__}: give a module, name, glob or predicate."
        )

    def _known(self, select: LayerCollection) -> set[str]:
        known = {name for names in self.aliases.values() for name in names}
        if foreign := [name for name in select.names if name not in known]:
            raise InputError(f"{select!r} belongs to another model: {', '.join(foreign)} is not here.")
        return set(select.names)

    def _owned(self, select: nn.Parameter | nn.Module) -> set[str]:
        if isinstance(select, nn.Module):
            if not any(module is select for module in self.model.modules()):
                raise InputError(f"The selected module {type(select).__name__} is not part of the model.")
            owned = {id(parameter) for parameter in select.parameters()}
        elif id(select) in self.aliases:
            owned = {id(select)}
        else:
            raise InputError(f"The selected parameter of shape {tuple(select.shape)} is not part of the model.")
        return {name for name, parameter in self.trainable.items() if id(parameter) in owned}

    def _named(self, select: str) -> set[str]:
        def matches(parameter: nn.Parameter) -> bool:
            return any(covers(select, name) for name in self.aliases[id(parameter)])

        found = {name for name, parameter in self.trainable.items() if matches(parameter)}
        if found:
            return found
        below = {name for name, _ in self.model.named_modules(remove_duplicate=False) if name}
        near = get_close_matches(select, sorted(below.union(*self.aliases.values())))
        if frozen := [name for name, parameter in self.model.named_parameters() if matches(parameter)]:
            reason = f"{_listed(frozen)} has requires_grad=False"
        elif any(fnmatchcase(name, select) for name in below):
            reason = "the modules of this name have no parameters"
        else:
            reason = f"near names are {_listed(near)}" if near else "no name is near"
        raise InputError(
            f"No trainable parameter matches {select!r} ({reason}); trainable are: {_listed(self.trainable)}."
        )


def _parameter(model: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of a name; a look into a few tables in place of a walk. None where there is none to be seen so."""
    *path, last = name.split(".")
    found: Any = model
    for table, step in [*(("_modules", step) for step in path), ("_parameters", last)]:
        own = getattr(found, table, None)
        if not isinstance(own, dict) or step not in own:
            return None
        found = own[step]
    return found


def covers(pattern: str, name: str) -> bool:
    """Whether a name or glob means a parameter or a module that it is below. A star stands for dots too."""
    if not _WILD.intersection(pattern):
        return name == pattern or name.startswith(f"{pattern}.")
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))


_WILD = frozenset("*?[")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


_WAY_OUT = (
    "Load the whole weights into an ordinary copy of the model and measure that one: "
    "plain.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))), both from "
    "torch.distributed.checkpoint.state_dict and called on every process."
)


def refuse_sharded(model: nn.Module, way_out: str = _WAY_OUT) -> None:
    """Refuse, by name, distributed tensors (DTensor: FSDP2, tensor parallelism) and modules that FSDP manages.

    A process that has such tensors has imported the modules that define them, so they are looked up and never imported,
    which would take seconds.

    Args:
        way_out: what to do instead; by default, how to measure a whole copy.
    """
    managed = tuple(_known("torch.distributed.fsdp", "FSDPModule", "FullyShardedDataParallel"))
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_distributed(tensor):
            kind = "Parameter" if isinstance(tensor, nn.Parameter) else "Buffer"
            raise ModelError(
                f"{kind} {name!r} is a DTensor, spread over processes as {tensor.placements}, each of which would "  # type: ignore[attr-defined]
                f"differentiate its part alone. {way_out}"
            )
    for name, module in model.named_modules():
        if isinstance(module, managed):
            raise ModelError(
                f"The parameters of {type(module).__name__} {name or '(the model)'} are sharded over processes by FSDP, "
                f"which gathers and frees them in every forward. {way_out}"
            )


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return isinstance(tensor, tuple(_known("torch.distributed.tensor", "DTensor")))


def _known(module: str, *names: str) -> Iterator[Any]:
    """Classes of a module, if it has been imported."""
    if module in sys.modules:
        yield from (getattr(sys.modules[module], name) for name in names if hasattr(sys.modules[module], name))

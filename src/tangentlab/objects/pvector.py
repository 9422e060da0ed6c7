"""PVector: a vector in parameter space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.layout import LayerCollection, common_dtype
from tangentlab.errors import InputError
from tangentlab.objects.algebra import VectorAlgebra


class PVector(VectorAlgebra):
    """One number per selected parameter; a batch of such vectors when the tensors carry leading axes.

    Built from a flat tensor (*batch, d) or from tensors (*batch, *shape) by name; either view is made from the other when
    asked for, and autograd flows through both. `v["fc.weight"]` is the part of one parameter.
    """

    def __init__(self, layout: LayerCollection, values: Tensor | Mapping[str, Tensor]) -> None:
        self.layout = layout
        self._flat: Tensor | None = None
        self._parts: dict[str, Tensor] | None = None
        if isinstance(values, Tensor):
            if values.shape[-1:] != (layout.numel,):
                raise InputError(
                    f"A flat vector needs {layout.numel} entries on its last axis, got {tuple(values.shape)}."
                )
            self._flat = values
        else:
            self._parts = _checked_parts(layout, values)

    @property
    def flat(self) -> Tensor:
        """Entries (*batch, d) in the order of the layout."""
        if self._flat is None:
            assert self._parts is not None
            name = self.layout.names[0]
            batch_ndim = self._parts[name].ndim - len(self.layout.shapes[name])
            self._flat = self.layout.flatten(self._parts, batch_ndim)
        return self._flat

    def tensor(self) -> Tensor:
        """Entries (*batch, d): `flat`, as every object calls its numbers."""
        return self.flat

    def _written(self, operation: Callable[[Tensor], Tensor]) -> PVector:
        """On the flat tensor; a vector made from parts by name is gathered first, and its parts are views from then on."""
        super()._written(operation)
        self._parts = None
        return self

    def to_dict(self) -> dict[str, Tensor]:
        """Entries by parameter name, (*batch, *shape): views of the flat tensor."""
        if self._parts is None:
            self._parts = self.layout.unflatten(self.flat)
        return dict(self._parts)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.layout:
            raise InputError(f"No parameter {name!r} in this vector; it has: {', '.join(self.layout.names)}.")
        return self.to_dict()[name]

    def _like(self, flat: Tensor) -> PVector:
        return PVector(self.layout, flat)

    def _require_same_space(self, other: PVector) -> None:
        if self.layout != other.layout:
            raise InputError(f"These vectors belong to different parameters: {self.layout!r} and {other.layout!r}.")

    @classmethod
    def from_model(cls, model: nn.Module, layers: Any = None) -> PVector:
        """The parameters themselves (a copy that shares their autograd history)."""
        layout = LayerCollection.of(model, layers)
        return cls(layout, layout.flatten(layout.parameters(model)))

    @classmethod
    def from_grad(cls, model: nn.Module, layers: Any = None) -> PVector:
        """The .grad of the parameters; a parameter without one counts as zero, but not all of them may lack it."""
        layout = LayerCollection.of(model, layers)
        parameters = layout.parameters(model)
        if all(parameter.grad is None for parameter in parameters.values()):
            raise InputError("No parameter has a .grad: call loss.backward() first.")
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
        return cls(layout, layout.flatten(grads).detach())

    @classmethod
    def zeros(cls, model: nn.Module, layers: Any = None) -> PVector:
        """All zeros."""
        return cls._full(model, layers, 0.0)

    @classmethod
    def ones(cls, model: nn.Module, layers: Any = None) -> PVector:
        """All ones."""
        return cls._full(model, layers, 1.0)

    @classmethod
    def _full(cls, model: nn.Module, layers: Any, value: float) -> PVector:
        layout, example = LayerCollection.of(model, layers), _example(model, layers)
        return cls(layout, example.new_full((layout.numel,), value))

    @classmethod
    def random_unit(
        cls, model: nn.Module, layers: Any = None, *, batch: int | None = None, generator: torch.Generator | None = None
    ) -> PVector:
        """Uniform on the unit sphere; `batch` of them when given."""
        layout, example = LayerCollection.of(model, layers), _example(model, layers)
        shape = (layout.numel,) if batch is None else (batch, layout.numel)
        flat = torch.randn(shape, generator=generator, dtype=example.dtype, device=example.device)
        return cls(layout, flat / torch.linalg.vector_norm(flat, dim=-1, keepdim=True))

    @torch.no_grad()
    def add_to_model(self, model: nn.Module) -> None:
        """parameter += this, in place."""
        for name, parameter in self._single_parts(model).items():
            parameter.add_(self[name].to(parameter))

    @torch.no_grad()
    def copy_to_model(self, model: nn.Module) -> None:
        """parameter = this, in place."""
        for name, parameter in self._single_parts(model).items():
            parameter.copy_(self[name])

    def _single_parts(self, model: nn.Module) -> dict[str, nn.Parameter]:
        if self.flat.ndim != 1:
            raise InputError(f"Only a single vector fits a model, this is a batch of shape {tuple(self.flat.shape)}.")
        return self.layout.parameters(model)

    def restrict(self, layout: LayerCollection) -> PVector:
        """The part of the vector that lies in a smaller collection."""
        missing = set(layout.names) - set(self.layout.names)
        if missing:
            raise InputError(f"The vector has no entries for {', '.join(sorted(missing))}.")
        return PVector(layout, {name: self[name] for name in layout.names})

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "_flat": self.flat, "_parts": None}

    def __repr__(self) -> str:
        batch = tuple(self.flat.shape[:-1])
        return f"PVector(d = {self.layout.numel:,}, {f'batch {batch}, ' if batch else ''}{self.dtype}, {self.device})"


def _example(model: nn.Module, layers: Any) -> Tensor:
    parameters = list(LayerCollection.of(model, layers).parameters(model).values())
    return parameters[0].new_empty(0, dtype=common_dtype(parameters))


def _checked_parts(layout: LayerCollection, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    missing = [name for name in layout.names if name not in values]
    if missing:
        raise InputError(f"No values for {', '.join(missing)}.")
    parts = {name: values[name] for name in layout.names}
    batches = set()
    for name, part in parts.items():
        shape = layout.shapes[name]
        if part.ndim < len(shape) or tuple(part.shape[part.ndim - len(shape) :]) != shape:
            raise InputError(f"{name} has shape {shape}, its values have shape {tuple(part.shape)}.")
        batches.add(tuple(part.shape[: part.ndim - len(shape)]))
    if len(batches) > 1:
        raise InputError(f"All parts need the same leading axes, these have {sorted(batches)}.")
    return parts

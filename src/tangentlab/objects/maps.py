"""PushForward and PullBack: the Jacobian as a map between parameter space and function space, dense or implicit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.memory import fresh_zeros, require_memory
from tangentlab.engine.network import require_finite
from tangentlab.engine.rows import Rows
from tangentlab.errors import InputError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.objects.fmat import FMatDense
from tangentlab.objects.fvector import FVector, centred
from tangentlab.objects.map_algebra import PullBack, PushForward
from tangentlab.objects.pvector import PVector


class PushForwardDense(PushForward):
    """The Jacobian as a tensor (outputs, examples, d). Memory c n d."""

    def __init__(self, layout: LayerCollection, data: Tensor) -> None:
        self.layout, self.data = layout, data

    @classmethod
    def from_rows(cls, rows: Rows) -> PushForwardDense:
        """All rows, after checking that they fit."""
        layout = rows.network.layout
        parts: list[Tensor] = []
        for number, sweep in rows.sweeps("Jacobian"):
            count = rows.weighting.count(sweep.outputs)
            require_memory(
                count * sweep.examples * layout.numel * sweep.outputs.element_size() * max(len(rows.batches), 1),
                f"A Jacobian of {count} outputs, {layout.numel:,} parameters and {sweep.examples} examples per batch",
                "representation=PushForwardImplicit stores nothing; NTK(...) gives the Gram matrix without the Jacobian.",
            )
            cotangents = rows.weighting.cotangents(sweep.outputs, sweep.batch, number, range(count))
            parts.append(written_rows(layout, sweep.factors(cotangents, last=True)))
            if len(parts[-1]) != len(parts[0]):
                raise InputError(
                    f"The number of outputs changes from batch to batch: {len(parts[0])}, then {len(parts[-1])}."
                )
        return cls(layout, parts[0] if len(parts) == 1 else torch.cat(parts, 1))

    def tensor(self) -> Tensor:
        """`data`."""
        return self.data

    def scaled(self, factor: Any) -> PushForwardDense:
        """factor J."""
        return PushForwardDense(self.layout, self.data * factor)

    def plus(self, other: PushForward) -> PushForward:
        """J + J', stored if both are."""
        if not isinstance(other, PushForwardDense):
            return super().plus(other)
        if other.data.shape != self.data.shape:
            shapes = tuple(self.data.shape), tuple(other.data.shape)
            raise InputError(f"These Jacobians have different (outputs, examples, d): {shapes[0]} and {shapes[1]}.")
        return PushForwardDense(self.layout, self.data + other.data)

    def center(self, how: str = "per_output") -> PushForwardDense:
        """J less its mean row: "per_output" over the examples of each output, "global" over outputs and examples."""
        return PushForwardDense(self.layout, centred(self.data, how, axis=1))

    def to(self, *args: Any, **kwargs: Any) -> PushForwardDense:
        """Another dtype or device."""
        return PushForwardDense(self.layout, self.data.to(*args, **kwargs))

    def mv(self, v: PVector) -> FVector:
        """Contract with the data."""
        self._check(v)
        return FVector(torch.einsum("cnd,...d->...cn", self.data, v.flat))

    @property
    def T(self) -> PullBackDense:
        """The transposed map on the same data."""
        return PullBackDense(self.layout, self.data)

    def gram(self) -> FMatDense:
        """J J^T, (outputs, examples, outputs, examples)."""
        rows = self.data.flatten(0, 1)
        shape = self.data.shape[:2]
        return FMatDense((rows @ rows.t()).reshape(*shape, *shape))

    def map_rows(self, layout: LayerCollection, function: Callable[[Tensor], Tensor]) -> PushForwardDense:
        """The map whose rows are function(rows), e.g. F.solve(J)."""
        if layout != self.layout:
            raise InputError(f"The Jacobian belongs to other parameters: {self.layout!r}, the matrix to {layout!r}.")
        return PushForwardDense(self.layout, function(self.data))

    def __repr__(self) -> str:
        return f"PushForwardDense(outputs, examples, d = {tuple(self.data.shape)})"


def written_rows(layout: LayerCollection, factors: dict[Group, OuterSum]) -> Tensor:
    """Rows of the Jacobian (outputs, examples, d) in flat order, each group written where it belongs."""
    example = next(iter(factors.values()))
    shape = max(one.outputs for one in factors.values()), example.examples, layout.numel
    result = fresh_zeros(shape, example.gradient_factors)
    for group, factor in factors.items():
        require_finite(factor.gradient_factors, f"The tangent features of {', '.join(group.names)}")
        if whole := layout.slice_of(group.names):
            factor.write_rows(result[..., whole], zeros=True)
            continue
        places = [layout.slices[name] for name in group.names]
        sizes = [place.stop - place.start for place in places]
        for place, piece in zip(places, factor.rows().split(sizes, -1), strict=True):
            result[..., place] = piece
    return result


class PullBackDense(PullBack):
    """J^T on the tensor (outputs, examples, d)."""

    def __init__(self, layout: LayerCollection, data: Tensor) -> None:
        self.layout, self.data = layout, data

    @classmethod
    def from_rows(cls, rows: Rows) -> PullBackDense:
        """As PushForwardDense."""
        return PushForwardDense.from_rows(rows).T

    @property
    def T(self) -> PushForwardDense:
        """The Jacobian."""
        return PushForwardDense(self.layout, self.data)

    def to(self, *args: Any, **kwargs: Any) -> PullBackDense:
        """Another dtype or device."""
        return self.T.to(*args, **kwargs).T

    def mv(self, u: FVector) -> PVector:
        """Contract with the data."""
        self._check(u)
        if u.shape != tuple(self.data.shape[:2]):
            raise InputError(f"(outputs, examples) = {tuple(self.data.shape[:2])} are expected, not {u.shape}.")
        return PVector(self.layout, torch.einsum("cnd,...cn->...d", self.data, u.data))

    def __repr__(self) -> str:
        return f"PullBackDense(outputs, examples, d = {tuple(self.data.shape)})"


class _ImplicitMap:
    """Products by automatic differentiation; the model and the data are held, nothing else outside of `frozen()`."""

    def __init__(self, rows: Rows) -> None:
        if getattr(rows.weighting, "chosen", None) is not None:
            raise StructureError(
                "The implicit Jacobian is of all outputs: pass function=lambda output, batch: output[:, c]."
            )
        self._rows, self.layout = rows, rows.network.layout
        rows.require_dependence()

    @classmethod
    def from_rows(cls, rows: Rows) -> Any:
        """Keep the description, after one forward that shows that there is a derivative."""
        return cls(rows)

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, the graph of a single batch is kept: you promise that model and data stay as they are."""
        return self._rows.frozen()


class PushForwardImplicit(_ImplicitMap, PushForward):
    """J v by one Jacobian-vector product per batch."""

    def tensor(self) -> Tensor:
        """J itself, (outputs, examples, d), as PushForwardDense has it."""
        return PushForwardDense.from_rows(self._rows).data

    def mv(self, v: PVector) -> FVector:
        """(outputs, examples), a batch of them for a batch of vectors."""
        self._check(v)
        vectors = v.flat.reshape(-1, self.layout.numel)
        linears = self._rows.linearizations("products")
        batches = [torch.stack([linear.jvp(x).flatten(1).t() for x in vectors]) for linear in linears]
        if len({part.shape[1] for part in batches}) > 1:
            raise InputError("The number of outputs changes from batch to batch, so the image is not an FVector.")
        images = torch.cat(batches, -1)
        return FVector(images.reshape(*v.flat.shape[:-1], *images.shape[1:]))

    @property
    def T(self) -> PullBackImplicit:
        """The transposed map."""
        return PullBackImplicit(self._rows)


class PullBackImplicit(_ImplicitMap, PullBack):
    """J^T u by one backward pass per batch."""

    @property
    def T(self) -> PushForwardImplicit:
        """The Jacobian."""
        return PushForwardImplicit(self._rows)

    def mv(self, u: FVector) -> PVector:
        """PVector, a batch of them for a batch of FVectors."""
        self._check(u)
        cotangents = u.to_outputs().reshape(-1, u.shape[1], u.shape[0])
        totals: Any = 0
        start = 0
        for linear in self._rows.linearizations("products"):
            outputs = linear.outputs
            part = cotangents[:, start : start + outputs.shape[0]]
            if part.shape[1:] != (outputs.shape[0], outputs[0].numel()):
                raise InputError(f"The FVector has (outputs, examples) = {u.shape}, which is not what the data give.")
            totals = totals + torch.stack([linear.vjp(c.reshape(outputs.shape)) for c in part])
            start += outputs.shape[0]
        if start != u.shape[1]:
            raise InputError(f"The FVector has {u.shape[1]} examples and the data {start}.")
        return PVector(self.layout, totals.reshape(*u.data.shape[:-2], self.layout.numel))

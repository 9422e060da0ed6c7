"""From the calls of a layer to its per-example gradients, in the form that the layer calculus uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Site
from tangentlab.layers import OuterSum, concatenate
from tangentlab.layers.conv import expected_ndim
from tangentlab.optim.lookup import LookupSum

CELLS = 1 << 24
"""Numbers that a chunk of examples may take while it is worked on (64 MB in float32)."""


@dataclass(frozen=True)
class Use:
    """One call of one site: inputs (N, ...) and output-gradients (K, N, ...); rows that are no examples count as such."""

    site: Site
    inputs: Tensor
    grads: Tensor
    by_example: bool

    @property
    def examples(self) -> int:
        """N."""
        return self.grads.shape[1]

    def outer(self, start: int, stop: int) -> OuterSum:
        """Per-example gradients of examples start..stop."""
        module, inputs, grads = self.site.module, self.inputs[start:stop], self.grads[:, start:stop]
        if isinstance(module, nn.Embedding):
            return LookupSum.of(module, inputs, grads)
        return self.site.rule.factors(module, inputs, grads, self.site.local)


@dataclass(frozen=True)
class Sample:
    """All uses of one group on the same examples: their gradients add up, cross terms included."""

    uses: tuple[Use, ...]

    @property
    def examples(self) -> int:
        """N."""
        return self.uses[0].examples

    @property
    def by_example(self) -> bool:
        """Whether each row is what one example of the batch contributes."""
        return self.uses[0].by_example

    def outer(self, start: int = 0, stop: int | None = None) -> OuterSum:
        """Per-example gradients of some examples, by default all."""
        terms = [use.outer(start, self.examples if stop is None else stop) for use in self.uses]
        if all(isinstance(term, LookupSum) for term in terms):
            return LookupSum.concatenate(terms)  # type: ignore[arg-type]
        return concatenate(terms)

    def chunks(self, cells_per_example: int) -> Iterator[OuterSum]:
        """Per-example gradients, as many examples at a time as `CELLS` allows."""
        step = max(1, CELLS // max(1, cells_per_example))
        for start in range(0, self.examples, step):
            yield self.outer(start, min(start + step, self.examples))

    def cells_per_example(self) -> int:
        """Numbers in the factors of one example: T (rows + columns)."""
        one = self.outer(0, 1)
        groups, rows, columns = one.matrix_shape
        return groups * one.positions * (one.outputs * rows + columns)


def samples_of(uses: Sequence[Use]) -> list[Sample]:
    """Uses with the examples of the batch are one sample; calls on something else stand alone."""
    whole = tuple(use for use in uses if use.by_example)
    rest = [Sample((use,)) for use in uses if not use.by_example]
    return [Sample(whole), *rest] if whole else rest


def example_axis(site: Site, shape: Sequence[int], examples: int, axis: int) -> int | None:
    """Where an input of this shape seems to have the examples of the batch, if anywhere.

    A layer that acts on each position alone (linear, embedding, layer norm) has them on `axis` or, if that has another
    number of entries, on the only axis that fits. In flattened sequences, in positions shared by all examples and in calls
    on single rows none does.
    """
    if not site.rule.pointwise:
        batch = 1 if expected_ndim(site.module) == len(shape) + 1 else shape[0]
        return 0 if batch == examples else None
    free = len(shape) - _feature_axes(site.module)
    fitting = [place for place in range(free) if shape[place] == examples]
    return axis if axis in fitting else fitting[0] if len(fitting) == 1 else None


def use_of(site: Site, inputs: Tensor, grads: Tensor, place: int | None, dtype: torch.dtype) -> Use:
    """Bring one call to inputs (N, ...) and output-gradients (K, N, ...), given grads (K, *output shape).

    Args:
        place: the examples' axis; without one, every position counts as an example.
    """
    grads = grads.to(dtype)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    by_example = place is not None
    if site.rule.pointwise:
        if place is not None:
            return Use(site, inputs.movedim(place, 0), grads.movedim(place + 1, 1), by_example)
        free = inputs.ndim - _feature_axes(site.module)
        rows = grads.reshape(grads.shape[0], -1, *grads.shape[1 + free :])
        return Use(site, inputs.reshape(-1, *inputs.shape[free:]), rows, by_example)
    if expected_ndim(site.module) == inputs.ndim + 1:
        return Use(site, inputs[None], grads[:, None], by_example)
    return Use(site, inputs, grads, by_example)


def _feature_axes(module: nn.Module) -> int:
    """Trailing axes of the input that are features: none for indices, one for a linear layer."""
    if isinstance(module, nn.Embedding):
        return 0
    return len(getattr(module, "normalized_shape", (0,)))

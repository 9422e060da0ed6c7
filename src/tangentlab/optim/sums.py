"""From the calls of a layer to its per-example gradients, in the form that the layer calculus uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.engine.capture import as_type
from tangentlab.engine.groups import Site
from tangentlab.layers import OuterSum, concatenate
from tangentlab.layers.registry import POSITIONS, WHOLE, Inputs, Part

CELLS = 1 << 24
"""Numbers that a chunk of examples may take while it is worked on (64 MB in float32)."""


@dataclass(frozen=True)
class ObservedUse:
    """One call of one site: inputs (N, ...) and output-gradients (K, N, ...); rows that are not examples count as such."""

    site: Site
    inputs: Inputs
    grads: Tensor
    by_example: bool
    part: Part | None = None

    @property
    def examples(self) -> int:
        """N."""
        return self.grads.shape[1]

    def outer(self, start: int, stop: int) -> OuterSum:
        """Per-example gradients of examples start..stop."""
        return self.site.outer(tuple(one[start:stop] for one in self.inputs), self.grads[:, start:stop], self.part)


@dataclass(frozen=True)
class Sample:
    """All uses of one group on the same examples: their gradients add up, cross terms included."""

    uses: tuple[ObservedUse, ...]

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
        return concatenate([use.outer(start, self.examples if stop is None else stop) for use in self.uses])

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


def samples_of(uses: Sequence[ObservedUse]) -> list[Sample]:
    """Uses with the examples of the batch are one sample; calls on something else stand alone."""
    whole = tuple(use for use in uses if use.by_example)
    rest = [Sample((use,)) for use in uses if not use.by_example]
    return [Sample(whole), *rest] if whole else rest


def example_axis(site: Site, inputs: Inputs, examples: int, axis: int) -> int | None:
    """Where inputs of a call seem to have the examples of the batch, if anywhere.

    A layer that acts on each position alone (linear, embedding, layer norm) has them on `axis` or, if that has another
    number of entries, on the only axis that fits. In flattened sequences, in positions shared by all examples and in calls
    on single rows none does.
    """
    rule, shape = site.rule, inputs[0].shape
    if not rule.pointwise:
        batch = 1 if rule.ndim(site.module) == len(shape) + 1 else shape[0]
        return 0 if batch == examples else None
    free = len(shape) - rule.features(site.module)
    fitting = [place for place in range(free) if all(one.shape[place] == examples for one in inputs)]
    if rule.axis is not None:
        return rule.axis if rule.axis in fitting else None
    return axis if axis in fitting else fitting[0] if len(fitting) == 1 else None


def use_of(
    site: Site, inputs: Inputs, grads: Tensor, place: int | None, dtype: torch.dtype, part: Part | None = None
) -> ObservedUse:
    """Bring one call to inputs (N, ...) and output-gradients (K, N, ...), given grads (K, *output shape).

    Args:
        place: the examples' axis; without one, every position counts as an example.
        part: what the call uses of the parameters.
    """
    rule = site.rule
    if rule.pointwise:
        axis = POSITIONS if place is None else place
    else:
        axis = WHOLE if rule.ndim(site.module) == inputs[0].ndim + 1 else 0
    inputs, grads = rule.by_example(site.module, as_type(inputs, dtype), grads.to(dtype), axis)
    return ObservedUse(site, inputs, grads, place is not None, part)

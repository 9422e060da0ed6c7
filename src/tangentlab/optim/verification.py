"""Whether the observed calls explain a gradient: checked once per parameter group, against autograd's own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.optim.distributed import Processes
from tangentlab.optim.sums import Sample

AGREEMENT = 0.98
"""Cosine between the rebuilt gradient and autograd's; half precision stays well above it."""
TOLERANCE = 0.1
"""Relative difference of their lengths."""

NOT_CALLED = "its module was never called although its gradient is not zero (functional use of the weight)"
OTHER_USE = "the calls of its module do not explain its gradient (another use of the weight, or a hook that changes it)"


class Verification:
    """Rebuilds `sum_n g_n` from the calls that were seen and compares it with `parameter.grad`.

    This catches weights that are used outside their module (the output projection of MultiheadAttention, functional
    calls, compiled forwards) and hooks that change a layer, on the first step, at the cost of one gradient.
    """

    def __init__(self) -> None:
        self.done: set[Group] = set()
        self._rebuilt: dict[Group, Tensor] = {}

    def add(self, group: Group, samples: Sequence[Sample]) -> None:
        """Add the gradient that these samples explain."""
        for sample in samples:
            for outer in sample.chunks(sample.cells_per_example()):
                ones = torch.ones((1, outer.examples), dtype=outer.right.dtype, device=outer.right.device)
                part = outer.pull(ones)
                self._rebuilt[group] = self._rebuilt[group] + part if group in self._rebuilt else part

    def clear(self) -> None:
        """Forget what was rebuilt."""
        self._rebuilt.clear()

    def verdicts(
        self, gradients: Mapping[Group, Sequence[Tensor]], factor: float, processes: Processes
    ) -> dict[Group, str]:
        """Reasons of the groups that fail; the others, if anything can be said of them, are done.

        Lengths must agree too, or differ by one factor below 1 for all groups (gradients clipped by their norm).

        Args:
            gradients: of the groups, as autograd and the processes' averaging left them.
            factor: from the rebuilt gradients, summed over processes, to these.
        """
        reasons, ratios = {}, {}
        flats = {
            group: torch.cat([grad.flatten() for grad in found]).to(torch.float32)
            for group, found in gradients.items()
            if group not in self.done
        }
        rebuilt = {g: self._rebuilt.get(g, torch.zeros_like(flat)).float() * factor for g, flat in flats.items()}
        processes.sum_(*rebuilt.values())
        for group, flat in flats.items():
            if not bool(flat.any()):
                continue
            if float(torch.nn.functional.cosine_similarity(flat, rebuilt[group], 0)) < AGREEMENT:
                reasons[group] = OTHER_USE if bool(rebuilt[group].any()) else NOT_CALLED
            else:
                ratios[group] = float(flat.norm() / rebuilt[group].norm())
        common = min(1.0, median_low(ratios.values())) if ratios else 1.0
        for group, ratio in ratios.items():
            if min(abs(ratio - 1), abs(ratio / common - 1)) > TOLERANCE:
                reasons[group] = OTHER_USE
            else:
                self.done.add(group)
        self.clear()
        return reasons

"""Groups of examples whose learning is compared: deciles of a score, clean and noisy labels, with and without a cue."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError


@dataclass(frozen=True)
class Groups:
    """Named groups of rows of one data set, disjoint, in an order that means something (hardest first, for example)."""

    rows: dict[str, Tensor]

    def __post_init__(self) -> None:
        every = torch.cat(list(self.rows.values())) if self.rows else torch.zeros(0)
        if not len(every) or len(every.unique()) != len(every):
            raise InputError("Groups must be disjoint sets of rows, and at least one must hold an example.")

    @property
    def names(self) -> list[str]:
        """In their order."""
        return list(self.rows)

    @property
    def sizes(self) -> dict[str, int]:
        """Examples per group."""
        return {name: len(rows) for name, rows in self.rows.items()}

    def means(self, values: Tensor) -> dict[str, float]:
        """Mean over each group of values `(n,)`, such as losses or right answers; NaN for an empty group."""
        return {name: float(values[rows].double().mean()) for name, rows in self.rows.items()}

    def balanced(self, per_group: int, generator: Generator, *, cap: bool = False) -> Groups:
        """`per_group` rows of every group, drawn without replacement.

        A group that is too small is an error that names it; with `cap` all groups shrink to the smallest one instead.
        """
        if per_group < 1:
            raise InputError(f"The argument per_group is at least 1, not {per_group}.")
        smallest = min(self.sizes.items(), key=lambda item: item[1])
        if smallest[1] < (1 if cap else per_group):
            raise InputError(
                f"Group '{smallest[0]}' has {smallest[1]} examples, {per_group} were asked for: "
                "ask for fewer, or pass cap=True to take the smallest group's size everywhere."
            )
        count = min(per_group, smallest[1])
        picks = {n: rows[torch.randperm(len(rows), generator=generator)[:count]] for n, rows in self.rows.items()}
        return Groups(picks)

    def merged(self, parts: dict[str, list[str]]) -> Groups:
        """New groups, each the union of old ones: `{"with": ["1, 1", "0, 0"], ...}`."""
        return Groups({name: torch.cat([self.rows[old] for old in members]) for name, members in parts.items()})


def score_groups(scores: Tensor, count: int = 10) -> Groups:
    """`count` groups of (nearly) equal size by increasing score, the hardest first: "1" to `str(count)`.

    Equal scores keep the order of the examples.
    """
    if scores.ndim != 1 or not 1 <= count <= len(scores) or not bool(torch.isfinite(scores).all()):
        raise InputError(f"{count} groups need at least as many finite scores (n,), got {tuple(scores.shape)}.")
    order = scores.argsort(stable=True)
    return Groups({str(place + 1): part for place, part in enumerate(order.tensor_split(count))})


def noise_groups(noisy: Tensor) -> Groups:
    """Groups "clean" and "noisy" from the mask that `tangentlab.data.label_noise` returns."""
    if noisy.dtype != torch.bool:
        raise InputError(f"The mask of noisy labels is boolean, not {noisy.dtype}.")
    return Groups({"clean": (~noisy).nonzero().squeeze(1), "noisy": noisy.nonzero().squeeze(1)})


def cue_groups(labels: Tensor, cue: Tensor) -> Groups:
    """The four groups of a binary task with a binary spurious cue: "label 0, cue 0", "label 0, cue 1", ..."""
    if labels.shape != cue.shape or not {*labels.unique().tolist(), *cue.unique().tolist()} <= {0, 1}:
        raise InputError("The labels and cue are 0 or 1 for every example.")
    return Groups(
        {
            f"label {label}, cue {value}": ((labels == label) & (cue == value)).nonzero().squeeze(1)
            for label in (0, 1)
            for value in (0, 1)
        }
    )


def with_and_without(groups: Groups) -> Groups:
    """From the four groups of `cue_groups`: "with" the cue on the label's side, "without" it."""
    return groups.merged(
        {"with": ["label 0, cue 0", "label 1, cue 1"], "without": ["label 0, cue 1", "label 1, cue 0"]}
    )

"""Pure functions from data sets to data sets: size, scale, subsets, label noise. A generator gives all randomness."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional

from tangentlab.data.dataset import Dataset
from tangentlab.errors import InputError


def downscale(dataset: Dataset, pixels: int) -> Dataset:
    """Images averaged down to `pixels` x `pixels`.

    Where the size divides (32 to 16) this is plain average pooling; elsewhere (28 to 16) the windows of adaptive
    average pooling, which overlap by one pixel.
    """
    height, width = dataset.inputs.shape[-2:]
    if pixels > min(height, width):
        raise InputError(f"Cannot scale {height} x {width} images down to {pixels} x {pixels}.")
    return replace(dataset, inputs=functional.adaptive_avg_pool2d(dataset.inputs, pixels))


def standardize(train: Dataset, *others: Dataset) -> tuple[Dataset, ...]:
    """Every channel to mean 0 and standard deviation 1 on `train`; the same shift and scale applied to the others."""
    axes = (0, 2, 3) if train.inputs.dim() == 4 else (0,)
    mean = train.inputs.mean(axes, keepdim=True)
    # a constant channel has nothing to scale
    spread = train.inputs.std(axes, keepdim=True, unbiased=False).clamp_min(1e-8)
    return tuple(replace(part, inputs=(part.inputs - mean) / spread) for part in (train, *others))


def shuffled(dataset: Dataset, generator: Generator) -> Dataset:
    """The examples in random order."""
    return dataset.take(torch.randperm(len(dataset), generator=generator))


def subset(dataset: Dataset, count: int, generator: Generator) -> Dataset:
    """`count` examples drawn without replacement."""
    return shuffled(dataset, generator).first(count)


def balanced_subset(
    dataset: Dataset, per_class: int, generator: Generator, classes: tuple[int, ...] | None = None
) -> Dataset:
    """`per_class` examples of every class (or of the given ones), drawn without replacement, in random order."""
    chosen = classes if classes is not None else tuple(dataset.targets.unique().tolist())
    picks: list[Tensor] = []
    for label in chosen:
        members = (dataset.targets == label).nonzero().squeeze(1)
        if len(members) < per_class:
            raise InputError(
                f"{dataset.name}/{dataset.split} has {len(members)} examples of class {label}, "
                f"{per_class} were asked for."
            )
        picks.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    rows = torch.cat(picks)
    return dataset.take(rows[torch.randperm(len(rows), generator=generator)])


def stratified_subset(dataset: Dataset, count: int, generator: Generator) -> Dataset:
    """`count` examples with the shares of classes that the whole set has, up to rounding.

    Drawn without replacement; generators in the same state give subsets that contain each other.
    """
    rows = torch.randperm(len(dataset), generator=generator)
    labels = dataset.targets[rows]
    place = torch.empty(len(rows), dtype=torch.float64)
    for label in labels.unique():  # the members of a class at equal distances in [0, 1), which starts anywhere
        members = labels == label
        steps = torch.arange(int(members.sum()), dtype=torch.float64)
        place[members] = (steps + torch.rand(1, dtype=torch.float64, generator=generator)) / len(steps)
    return dataset.take(rows[place.argsort()]).first(count)


def only_classes(dataset: Dataset, *classes: int) -> Dataset:
    """The examples of these classes, in their old order, relabelled 0, 1, ... in the order given."""
    keep = torch.isin(dataset.targets, torch.tensor(classes))
    kept = dataset.take(keep.nonzero().squeeze(1))
    targets = torch.stack([kept.targets == label for label in classes]).long().argmax(0)
    return replace(kept, targets=targets, classes=len(classes))


def label_noise(
    dataset: Dataset,
    fraction: float,
    generator: Generator,
    kind: Literal["wrong", "random"] = "wrong",
    groups: Tensor | None = None,
) -> tuple[Dataset, Tensor]:
    """Replace the labels of exactly `round(fraction * n)` examples; returns the data set and their mask.

    `kind="wrong"` draws uniformly among the other classes, `"random"` among all classes (so that one in `classes`
    keeps its label). With `groups` (n,), the numbers of clusters, the fraction is that of every group.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"The fraction of noisy labels must be between 0 and 1, not {fraction}.")
    if kind not in ("wrong", "random"):
        raise InputError(f"Label noise is 'wrong' or 'random', not {kind!r}.")
    classes = dataset.classes or int(dataset.targets.max()) + 1
    groups = torch.zeros(len(dataset)) if groups is None else groups
    if len(groups) != len(dataset):
        raise InputError(f"Label noise by group needs one group per example: {len(groups)} for {len(dataset)}.")
    every = [(groups == group).nonzero().squeeze(1) for group in groups.unique()]
    picks = [one[torch.randperm(len(one), generator=generator)[: round(fraction * len(one))]] for one in every]
    rows = torch.cat(picks) if picks else torch.arange(0)
    targets = dataset.targets.clone()
    if kind == "wrong":
        shift = torch.randint(1, classes, (len(rows),), generator=generator)
        targets[rows] = (targets[rows] + shift) % classes
    else:
        targets[rows] = torch.randint(classes, (len(rows),), generator=generator)
    mask = torch.zeros(len(dataset), dtype=torch.bool)
    mask[rows] = True
    note = f"{fraction:.0%} {kind} labels" if fraction else ""
    return replace(dataset, targets=targets, note="; ".join(filter(None, (dataset.note, note)))), mask

"""Images with a spurious cue: a small picture in the corner that mostly agrees with the label."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn import functional

from tangentlab.data import Dataset
from tangentlab.errors import InputError


def add_corner_patch(
    core: Dataset, patches: Dataset, agreement: float, generator: Generator, *, pixels: int = 12
) -> tuple[Dataset, Tensor]:
    """Binary `core` images with a patch of class 0 or 1 in the upper left corner, and the cue `(n,)` that it shows.

    Exactly `round(agreement n_c)` images of each class c get a patch of their own class, the others one of the other
    class; patches are drawn with replacement, averaged to `pixels` x `pixels`, and written over all channels.

    Args:
        core: labels 0 and 1, inputs `(n, channels, height, width)`.
        patches: labels 0 and 1, one channel.
        agreement: share of images whose patch agrees with the label; 0.5 makes it useless.
        generator: source of randomness.
        pixels: side of the patch.
    """
    if not {*core.targets.unique().tolist(), *patches.targets.unique().tolist()} <= {0, 1}:
        raise InputError(
            "The arguments core and patches are binary tasks with labels 0 and 1: see `tangentlab.data.only_classes`."
        )
    if not 0 <= agreement <= 1 or not 1 <= pixels <= min(core.inputs.shape[-2:]):
        raise InputError(f"Agreement in [0, 1] and a patch within the image are needed, got {agreement} and {pixels}.")
    if len(patches.targets.unique()) < 2:
        raise InputError("Patches of both classes are needed.")
    cue = core.targets.clone()
    for label in (0, 1):
        rows = (core.targets == label).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=generator)]
        cue[rows[round(agreement * len(rows)) :]] = 1 - label
    small = functional.adaptive_avg_pool2d(patches.inputs, pixels)
    inputs = core.inputs.clone()
    for value in (0, 1):
        pool = (patches.targets == value).nonzero().squeeze(1)
        rows = (cue == value).nonzero().squeeze(1)
        drawn = pool[torch.randint(len(pool), (len(rows),), generator=generator)]
        inputs[rows, :, :pixels, :pixels] = small[drawn].expand(-1, inputs.shape[1], -1, -1)
    note = f"a corner patch agrees with {agreement:.0%} of the labels"
    return replace(core, inputs=inputs, note="; ".join(filter(None, (core.note, note)))), cue

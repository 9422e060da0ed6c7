"""What the alignment experiments share: kernels of a probe as a row of numbers, and axes over training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor, nn

from tangentlab import NTK, FMatDense
from tangentlab.alignment import kernel_spectrum, label_alignment, layer_alignment
from tangentlab.experiments._images import Row

TRACE_RATIOS = (40, 80, 160)
CENTRING = "per_output"
"""The centring of the paper's spectra and of its authors' code."""


def layer_kernels(model: nn.Module, inputs: Tensor) -> dict[str, FMatDense]:
    """Tangent kernels of all layers on a probe, all outputs, not centred."""
    kernels: dict[str, FMatDense] = NTK(model, inputs, per_layer=True, progress=False)
    return kernels


def total(kernels: Mapping[str, FMatDense]) -> FMatDense:
    """The kernel of all layers, in their dtype, which tells how accurate it is."""
    return reduce(add, kernels.values())


def spectrum_row(kernel: FMatDense) -> Row:
    """Spectrum statistics of the centred kernel, and under names that end with ``_raw`` of the kernel as it is."""
    centred = kernel_spectrum(kernel, CENTRING).summary(TRACE_RATIOS)
    raw = kernel_spectrum(kernel).summary(TRACE_RATIOS)
    return centred | {f"{name}_raw": value for name, value in raw.items()}


def alignment_row(kernel: FMatDense, labels: Tensor) -> Row:
    """Alignment with the labels: centred per output (the authors'), globally (the paper's formula), and not at all."""
    return {
        "cka": label_alignment(kernel, labels, CENTRING),
        "cka_global": label_alignment(kernel, labels, "global"),
        "ka": label_alignment(kernel, labels, None),
    }


def layer_rows(kernels: Mapping[str, FMatDense], labels: Tensor) -> list[Row]:
    """One row per layer, counted from the input: its alignment with the labels, centred and not."""
    centred, raw = (layer_alignment(kernels, labels, center) for center in (CENTRING, None))
    return [{"layer": place, "cka": centred[name], "ka": raw[name]} for place, name in enumerate(kernels)]


def step_axis(axes: Axes, last: float, first: float = 5.0) -> None:
    """Steps on a logarithmic axis that also shows step 0."""
    axes.set_xscale("symlog", linthresh=first, linscale=0.4)
    ticks = [0, *(10**power for power in range(1, 7) if 10**power <= last * 1.05)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(-0.05 * first, max(last, 2 * first) * 1.1)
    axes.minorticks_off()


def together(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation of two series; 0 where one of them is constant or there are fewer than three points."""
    from scipy.stats import spearmanr

    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)

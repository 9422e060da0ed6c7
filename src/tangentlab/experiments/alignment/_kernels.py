"""The kernels of a probe as rows of numbers, by the measures of the recorder."""

from __future__ import annotations

from torch import nn

from tangentlab.data import Dataset
from tangentlab.experiments._images import Row
from tangentlab.kernels.similarity import label_alignment
from tangentlab.recorder import View
from tangentlab.recorder.measures import alignment, spectrum, uncentred

TRACE_RATIOS = (40, 80, 160)
LAYER = "layer/"


def alignments(view: View) -> Row:
    """What `alignment` finds, which centres per output as the authors do, and CKA centred globally, the paper's formula."""
    assert view.targets is not None
    return alignment(view) | {"cka_global": label_alignment(view.kernel, view.targets, "global")}


def kernel_rows(model: nn.Module, data: Dataset) -> tuple[Row, list[Row]]:
    """Spectrum and alignment of the kernel, and a row per layer, counted from the input, with its alignments.

    Statistics of the spectrum are those of the kernel centred per output, and under names that end with `_raw` of the
    kernel as it is.
    """
    view = View.of(model, tuple(data))
    found = spectrum(view, TRACE_RATIOS) | alignments(view)
    raw = {name.removeprefix("uncentred/"): value for name, value in uncentred(view, TRACE_RATIOS).items()}
    names = [name for name in raw if name.startswith(LAYER)]
    row = {name: found[name] for name in found if name not in names}
    row |= {f"{name}_raw": raw[name] for name in raw if name not in names}
    return row, [{"layer": place, "cka": found[name], "ka": raw[name]} for place, name in enumerate(names)]

"""What a snapshot measures: functions from a `View` of one probe to named numbers.

A measure of your own is any such function; its numbers are called `{probe}/{name}`.

* `performance`: loss and accuracy on the probe;
* `spectrum`: statistics of the centred kernel's eigenvalues;
* `alignment`: CKA and KA with the labels, and CKA layer by layer;
* `uncentred`: the spectrum, and KA layer by layer, of the kernels as they are (not by default);
* `linearity`: similarity with the start of training;
* `frequencies`: how much of the target has been learnt, by bands of kernel eigenvectors (not by default);
* `information`: the error, split by the leading eigenvectors of the first kernel (not by default);
* `curvature`: traces of the Fisher matrix and of the Hessian (costs a few backward passes, so on the first probe only).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.likelihood import Binary, Classification, LogSoftmax
from tangentlab.errors import InputError
from tangentlab.kernels.similarity import label_alignment
from tangentlab.kernels.spectrum import kernel_spectrum
from tangentlab.linearized.linearity import linearity as compared
from tangentlab.recorder.frequencies import frequencies
from tangentlab.recorder.information import information
from tangentlab.recorder.likelihoods import loss_for, probabilities
from tangentlab.recorder.probes import View
from tangentlab.recorder.traces import curvature

Measure = Callable[[View], dict[str, float]]
SHARES = (0.04, 0.08, 0.16)
"""Shares of the eigenvalues whose part of the trace is measured; T_40, T_80 and T_160 of 1,000 rows."""
CENTRE = "per_output"


def performance(view: View) -> dict[str, float]:
    """Mean loss (summed over positions of an example) and share of right predictions; nothing without labels.

    Half the squared distance for real targets; no loss for a likelihood of which none is known.
    """
    kind, labels, logits = view.likelihood, view.labels, view.logits
    if kind is None or labels is None:
        return {}
    found = {}
    loss = loss_for(kind)
    if loss is not None:
        losses = loss(logits, labels).double()
        found["loss"] = float((losses.flatten(1).sum(1) if losses.ndim > 1 else losses).mean())
    if isinstance(kind, Classification | LogSoftmax) and labels.shape == logits.shape[:-1]:
        found["accuracy"] = _share((logits.argmax(-1) == labels)[labels >= 0], logits)
    if isinstance(kind, Binary):
        right = (logits > 0) == (probabilities(labels).reshape(logits.shape) > 0.5)
        found["accuracy"] = _share(right, logits)
    return found


def _share(right: Tensor, logits: Tensor) -> float:
    """Of right predictions; NaN where there is none, or where outputs that are not numbers predict nothing."""
    return nan if right.numel() == 0 or bool(logits.isnan().any()) else float(right.double().mean())


def spectrum(view: View, largest: Sequence[int] | None = None) -> dict[str, float]:
    """Largest, mean and median eigenvalue, trace, ranks and trace ratios of the kernel centred per output.

    `largest`: how many eigenvalues the trace ratios are of (`T_40`); by default `SHARES` of all (`T_4%`).
    """
    return _spectrum(view, CENTRE, largest)


def uncentred(view: View, largest: Sequence[int] | None = None) -> dict[str, float]:
    """The same of the kernel as it is, and KA of every layer's kernel; not among the default measures."""
    found = {**_spectrum(view, None, largest), **_layers(view, None)}
    return {f"uncentred/{name}": value for name, value in found.items()}


def _spectrum(view: View, center: str | None, largest: Sequence[int] | None) -> dict[str, float]:
    found = kernel_spectrum(view.kernel, center)
    if largest is not None:
        return found.summary(largest)
    ratios = {f"T_{share:.0%}": found.trace_ratio(max(1, round(share * found.dim))) for share in SHARES}
    return {**found.summary(()), **ratios}


def _layers(view: View, center: str | None) -> dict[str, float]:
    if view.targets is None:
        return {}
    kernels = view.layer_kernels.items()
    return {f"layer/{name}": label_alignment(kernel, view.targets, center) for name, kernel in kernels}


def alignment(view: View) -> dict[str, float]:
    """CKA (centred per output) and KA (uncentred) of kernel and labels, and CKA of every layer's kernel."""
    if view.targets is None:
        return {}
    targets = view.targets
    found = {
        "cka": label_alignment(view.kernel, targets, CENTRE),
        "ka": label_alignment(view.kernel, targets, None),
    }
    return {**found, **_layers(view, CENTRE)}


def linearity(view: View) -> dict[str, float]:
    """Three numbers that are 1 at the first snapshot, and stay 1 in linear training (see `LinearityProbe`).

    KA of the kernel and of the representation (the input of the last linear layer, else the outputs) with those of the first
    snapshot, and the share of ReLU units whose status, 0 or positive, is that of the first. Smaller probes are compared with
    the same part of the first.
    """
    rows = view.seen.representation.flatten(1).double()
    patterns = [sign.flatten(1) for sign in view.seen.signs if len(sign) == len(rows)]
    now = {"kernel": view.kernel.data, "gram": rows @ rows.t()}
    if patterns:
        now["signs"] = torch.cat(patterns, 1)
    start = {}
    for name, tensor in now.items():
        kept = view.memory.setdefault(name, tensor.cpu().clone()).to(tensor.device)
        if name != "signs" or kept.shape[1:] == tensor.shape[1:]:
            start[name] = kept[tuple(slice(size) for size in tensor.shape)]
    found = compared(now, start)
    signs = {"sign_similarity": found.sign_similarity} if "signs" in start else {}
    kernels = {"ntk_similarity": found.ntk_alignment, "representation_similarity": found.representation_alignment}
    return {**kernels, **signs}


NAMED: dict[str, Callable[..., dict[str, float]]] = {
    "performance": performance,
    "spectrum": spectrum,
    "uncentred": uncentred,
    "alignment": alignment,
    "linearity": linearity,
    "frequencies": frequencies,
    "information": information,
    "curvature": curvature,
}
DEFAULT = ("performance", "spectrum", "alignment", "linearity", "complexity", "curvature")
FIRST_PROBE_ONLY = ("curvature",)
NEED_A_LOSS = {"performance": "loss", "frequencies": "learnt", "information": "residual", "curvature": "hessian_trace"}


def measures_of(chosen: Any) -> dict[str, Measure]:
    """Measures by name, from names and functions; "complexity" is the recorder's own and not among them.

    A function whose name is taken, by another or by what the recorder measures itself, gets a number: `<lambda> 2`.
    """
    found: dict[str, Measure] = {}
    names = {id(measure): name for name, measure in NAMED.items()}
    for given in DEFAULT if chosen is None else chosen:
        one = names.get(id(given), given)
        if callable(one):
            found[_free_name(getattr(one, "__name__", type(one).__name__), found)] = one
        elif one in NAMED:
            found[one] = NAMED[one]
        elif one != "complexity":
            raise InputError(
                f"{one!r} is not a measure: use {', '.join((*NAMED, 'complexity'))}, or a function of a View."
            )
    return found


def _free_name(name: str, found: dict[str, Measure]) -> str:
    taken = {*found, *NAMED, "complexity", "kernels"}
    number = 1
    while (free := name if number == 1 else f"{name} {number}") in taken:
        number += 1
    return free

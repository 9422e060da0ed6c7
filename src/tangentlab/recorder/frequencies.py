"""What a network learns first: how much of its error is gone, from the smoothest functions on the probe to the roughest."""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor

from tangentlab.recorder.likelihoods import loss_slopes
from tangentlab.recorder.probes import View
from tangentlab.spectral.kernel_basis import KernelBasis, band_norms

CENTRE = "per_output"


def frequencies(view: View) -> dict[str, float]:
    """The learnt share of bands of kernel eigenvectors: `1 - |P r| / |P r_0|`, 0 at the first snapshot and 1 when fitted.

    r is what drives the training, minus the derivative of every example's loss by its outputs: `y - f` for real targets, label
    minus probability for classes, less its mean over the examples. P projects on a band of eigenvectors of the tangent kernel
    at the first snapshot, centred per output: `learnt/1` is the leading one, `learnt/2-4` the next three, then `learnt/5-16`,
    `learnt/17-64`, ... . To first order gradient descent learns along them at the speed of their eigenvalues. Negative where a
    band has become worse than at the start; nothing without labels or a loss. Smaller probes are compared with the same part of
    the first.

    Cost: one eigendecomposition, `9 (c n)^3`, for every size of the probe.
    """
    drive = _drive(view)
    if drive is None:
        return {}
    outputs, examples = drive.shape
    kernel = view.memory.setdefault("kernel", view.kernel.data.cpu().clone())
    first = view.memory.setdefault("drive", drive)[:outputs, :examples]
    key = f"kernel eigenvectors, {outputs} x {examples}"
    if key not in view.memory:
        view.memory[key] = KernelBasis.of(kernel[:outputs, :examples, :outputs, :examples], CENTRE).vectors
    basis = KernelBasis(torch.empty(outputs * examples), view.memory[key], outputs)
    bands = basis.bands()
    centred = [(one - one.mean(1, keepdim=True)).flatten() for one in (drive, first)]
    after, before = (band_norms(basis.spectrum(one), bands).tolist() for one in centred)
    return {
        f"learnt/{_name(band)}": 1 - now / start if start else nan
        for band, now, start in zip(bands, after, before, strict=True)
    }


def _name(band: range) -> str:
    return str(band.stop) if len(band) == 1 else f"{band.start + 1}-{band.stop}"


def _drive(view: View) -> Tensor | None:
    """`-dl/df` of every example at the outputs looked at, `(c, n)` in float64; None where there is no loss."""
    found = None if view.labels is None else loss_slopes(view.likelihood, view.logits, view.labels)
    return None if found is None else -found[:, view.outputs].t()

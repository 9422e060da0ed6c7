"""How much of the error lies where the network learns fast: in the information space of its start, and outside of it."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.kernels.eigenpairs import gram_eigenpairs
from tangentlab.linearized.eigenfunctions import Eigenfunctions
from tangentlab.linearized.information import InformationSpace, stacked
from tangentlab.recorder.likelihoods import loss_slopes
from tangentlab.recorder.probes import View

SHARE = 0.05
"""Of all directions on the probe that are counted as information; a tenth of a probe's examples for two outputs."""


def information(view: View) -> dict[str, float]:
    """Norms of the error r and of its parts: `residual/total`, `residual/information` and `residual/nuisance`.

    r is the derivative of every example's loss by its outputs: `f - y` for real targets, probability minus label for classes.
    The information space is spanned by the leading 5 % of the eigenvectors of the tangent kernel at the first snapshot, not
    centred. Where a probe is a tuple `(inputs, labels, true labels)`, r is also the sum of the error with respect to the true
    labels, `residual/true`, and of their corruption, `residual/corruption`; `.../information` are the norms of their parts in
    the information space. Nothing without labels or a loss. Smaller probes are compared with the same part of the first.

    Cost: the leading eigenvectors, once for every size of the probe.
    """
    if view.labels is None:
        return {}
    residual = _slopes(view, view.labels)
    if residual is None:
        return {}
    space = _space(view, *reversed(residual.shape))
    found = space.split(stacked(residual))
    parts = {"total": found.total, "information": found.information, "nuisance": found.nuisance}
    true = _true_labels(view)
    clean = None if true is None else _slopes(view, true)
    if clean is not None:
        for name, part in (("true", clean), ("corruption", residual - clean)):
            split = space.split(stacked(part))
            parts |= {name: split.total, f"{name}/information": split.information}
    return {f"residual/{name}": float(value) for name, value in parts.items()}


def _slopes(view: View, labels: Tensor) -> Tensor | None:
    found = loss_slopes(view.likelihood, view.logits, labels)
    return None if found is None else found[:, view.outputs]


def _true_labels(view: View) -> Tensor | None:
    """The third entry of a batch, where it is like the labels."""
    batch, labels = view.batch, view.labels
    if not isinstance(batch, tuple | list) or len(batch) < 3 or labels is None:
        return None
    third = batch[2]
    alike = isinstance(third, Tensor) and third.shape == labels.shape and third.dtype == labels.dtype
    return third if alike else None


def _space(view: View, outputs: int, examples: int) -> InformationSpace:
    kernel = view.memory.setdefault("kernel", view.kernel.data.cpu().clone())
    key = f"information vectors, {outputs} x {examples}"
    if key not in view.memory:
        matrix = kernel[:outputs, :examples, :outputs, :examples].reshape(outputs * examples, -1).double()
        view.memory[key] = gram_eigenpairs(matrix, max(1, round(SHARE * len(matrix)))).vectors
    vectors = view.memory[key]
    return InformationSpace(Eigenfunctions(torch.ones(len(vectors)), vectors, torch.zeros(len(vectors)), outputs))

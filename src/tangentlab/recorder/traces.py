"""Traces of the Fisher matrix and of the Hessian from a few backward passes."""

from __future__ import annotations

import torch

from tangentlab.curvatures import Hessian
from tangentlab.engine.batches import take_examples
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import SignedRoots
from tangentlab.recorder.likelihoods import loss_for
from tangentlab.recorder.probes import View

EXAMPLES = 32
"""Second derivatives cost most of all, so curvature is that of the first examples of the probe."""


def curvature(view: View, products: int = 1) -> dict[str, float]:
    """Unbiased estimates of the traces of the Fisher matrix and of the Hessian of the loss; nothing without labels.

    On the first 32 examples of the probe. The Fisher matrix takes one backward (`SignedRoots`), the Hessian one product with
    a vector of random signs, about four forward passes, for each of `products`; its estimate has a standard deviation of
    `sqrt(2 / products) |H|_F`. A likelihood without a known loss has no Hessian.
    """
    if view.likelihood is None or view.labels is None:
        return {}
    batch = take_examples(view.batch, range(min(EXAMPLES, len(view.logits))))
    rows = Rows(Network.of(view.model, **view.options), batch, SignedRoots(view.likelihood, view.generator))
    norms = [factor.squared_norms().double().sum() for chunk in rows for factor in chunk.factors.values()]
    found = {"fisher_trace": float(torch.stack(norms).sum()) / min(EXAMPLES, len(view.logits))}
    loss = loss_for(view.likelihood)
    if loss is not None:
        hessian = Hessian(view.model, batch, loss=loss, **view.options)
        estimate = hessian.estimate_trace(products, method="hutchinson", generator=view.generator)
        found["hessian_trace"] = float(estimate.estimate)
    return found

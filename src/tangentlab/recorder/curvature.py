"""Traces of the Fisher matrix and of the Hessian from a few backward passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tangentlab.curvatures import Hessian
from tangentlab.engine.likelihood import Classification, Likelihood
from tangentlab.engine.parts import take_examples
from tangentlab.engine.rows import Rows, Weighting
from tangentlab.recorder.likelihoods import loss_for
from tangentlab.recorder.probes import View

EXAMPLES = 32
"""Second derivatives cost most of all, so curvature is that of the first examples of the probe."""


class SignedRoots(Weighting):
    """Cotangents ``u = R s`` with ``R R^T = F_f`` the Fisher matrix of an example's outputs and s random signs.

    ``E[u u^T] = F_f``, so that ``E |J_i^T u_i|^2 = tr J_i^T F_i J_i`` from one backward, as with labels drawn from the model
    but without the rare labels that a confident model gives once in a thousand draws. Softmax classes with probabilities p
    have ``u = sqrt(p) s - p <sqrt(p), s>``; other likelihoods sum their factors with signs.
    """

    name = "random signs of the Fisher factors"

    def __init__(self, likelihood: Likelihood, generator: torch.Generator) -> None:
        self.likelihood, self.generator = likelihood, generator

    def count(self, outputs: Tensor) -> int:
        """One row per example."""
        return 1

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """u, ``(1, N, ...)``."""
        if isinstance(self.likelihood, Classification):
            axis = self.likelihood.class_axis
            p = outputs.detach().softmax(axis)
            signed = p.sqrt() * self._signs(tuple(p.shape), p)
            return (signed - p * signed.sum(axis, keepdim=True))[None]
        count = self.likelihood.factor_count(outputs)
        signs = self._signs((count, outputs.shape[0]), outputs)
        factors = self.likelihood.factor(outputs, range(count))
        return torch.einsum("kn,kn...->n...", signs, factors)[None]

    def _signs(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.generator).to(like) * 2 - 1


def curvature(view: View, products: int = 1) -> dict[str, float]:
    """Unbiased estimates of the traces of the Fisher matrix and of the Hessian of the loss; nothing without labels.

    On the first 32 examples of the probe. The Fisher matrix takes one backward (`SignedRoots`), the Hessian one product with
    a vector of random signs, about four forward passes, for each of ``products``; its estimate has a standard deviation of
    ``sqrt(2 / products) |H|_F``. A likelihood without a known loss has no Hessian.
    """
    if view.likelihood is None or view.labels is None:
        return {}
    batch = take_examples(view.batch, range(min(EXAMPLES, len(view.logits))))
    rows = Rows(view.call.network(view.model), batch, SignedRoots(view.likelihood, view.generator), progress=False)
    norms = [factor.squared_norms().double().sum() for chunk in rows for factor in chunk.factors.values()]
    found = {"fisher_trace": float(torch.stack(norms).sum()) / min(EXAMPLES, len(view.logits))}
    loss = loss_for(view.likelihood)
    if loss is not None:
        hessian = Hessian(view.model, batch, loss=loss, progress=False, **view.call.options())
        estimate = hessian.estimate_trace(products, method="hutchinson", generator=view.generator)
        found["hessian_trace"] = float(estimate.estimate)
    return found

"""Which likelihood the labels of a probe suggest."""

from __future__ import annotations

from tangentlab.alignment.recorder.probes import View
from tangentlab.engine.likelihood import Likelihood, likelihood_of


def likelihood_for(view: View, likelihood: str | Likelihood | None) -> Likelihood | None:
    """What was given, else what the labels suggest: classes, two classes of a single output, or real targets."""
    if likelihood is not None:
        return likelihood_of(likelihood)
    if view.labels is None:
        return None
    if view.labels.is_floating_point():
        return likelihood_of("regression")
    return likelihood_of("binary" if view.logits[0].numel() == 1 else "classification")

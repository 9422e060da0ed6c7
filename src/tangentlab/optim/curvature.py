"""Which gradients make the second moments: those of the loss, of sampled labels, or of the exact Fisher's factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from tangentlab.engine.capture import output_gradients
from tangentlab.engine.likelihood import Likelihood, likelihood_of
from tangentlab.engine.weightings import Exact, MonteCarlo
from tangentlab.errors import InputError
from tangentlab.optim.passes import Pass

KINDS = ("empirical", "monte-carlo", "exact")


class Curvature:
    """Empirical second moments of the loss gradients, one-sample Monte-Carlo Fisher, or the exact Fisher.

    The first costs nothing beyond the user's own backward pass. The other two run a second backward pass at the end of
    each forward in which statistics are wanted, from the model's outputs: one cotangent for a label drawn from the model,
    or as many as the likelihood has factors (classes minus one).

    Args:
        kind: "empirical", "monte-carlo" or "exact".
        likelihood: name or instance, as in `tangentlab.FIM`; needed unless the kind is empirical.
        outputs: from what the model returns to a tensor (examples, ...); by default the tensor itself, or its `logits`.
        seed: of the label draws, which depend on it and on the number of the step only.
    """

    def __init__(
        self, kind: str, likelihood: str | Likelihood | None, outputs: Callable[[Any], Tensor] | None, seed: int
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"The argument curvature must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
        if kind != "empirical" and likelihood is None:
            raise InputError(
                f"The argument curvature={kind!r} needs likelihood= ('classification', 'binary', 'regression', ...): it says "
                "from which distribution labels come."
            )
        self.kind, self.outputs, self.seed = kind, outputs, seed
        self.likelihood = None if likelihood is None else likelihood_of(likelihood)

    @property
    def from_loss(self) -> bool:
        """Whether the loss gradients are the statistics."""
        return self.kind == "empirical"

    def draw(self, current: Pass, output: Any, step: int) -> None:
        """Second backward pass: give every call of this forward its output-gradients."""
        assert self.likelihood is not None
        calls = [call for call in current.calls if call.edge is not None]
        if not calls:
            return
        values = self._tensor(output)
        if not values.requires_grad:
            return
        flat = values.detach().float() if values.dtype in (torch.bfloat16, torch.float16) else values.detach()
        cotangents = self._cotangents(flat, step, current.number).to(values.dtype)
        for call, grads in zip(calls, output_gradients(values, cast(Any, calls), cotangents), strict=True):
            call.drawn, call.edge = grads.detach(), None

    def _cotangents(self, values: Tensor, step: int, number: int) -> Tensor:
        assert self.likelihood is not None
        seed = (self.seed * 1_000_003 + step) * 4099 + number
        weighting = Exact(self.likelihood) if self.kind == "exact" else MonteCarlo(self.likelihood, seed=seed)
        return weighting.cotangents(values, None, 0, range(weighting.count(values)))

    def _tensor(self, output: Any) -> Tensor:
        if self.outputs is not None:
            output = self.outputs(output)
        if isinstance(output, Tensor):
            return output[:, None] if output.ndim == 1 else output
        logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            return logits
        raise InputError(
            f"The model returns a {type(output).__name__}: pass outputs=lambda out: ... that picks the tensor "
            "(examples, ...) which the likelihood is about."
        )

"""The complexity of a training: `C(f) = sum_t |dw_t| sqrt(tr K_t)`, the length of its path as the tangent features see it.

`sqrt(tr K_t) = |Phi_t|_F` is the root of the sum of all outputs' squared gradients on a probe of training examples. Random
signs over the outputs give the trace from one backward per draw: for each example, `E |J_i^T s|^2 = tr J_i J_i^T`.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.alignment.flow import Flow
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import Rows
from tangentlab.engine.snapshot import evaluation_mode
from tangentlab.engine.weightings import RandomSigns, Unweighted
from tangentlab.errors import InputError
from tangentlab.linalg import Estimate


@spelled_out
def kernel_trace(
    model: nn.Module,
    data: Any,
    draws: int | None = 1,
    *,
    generator: torch.Generator | None = None,
    **options: Unpack[Options],
) -> Estimate:
    """`tr K` of the tangent kernel, summed over examples and outputs.

    Unbiased from every draw, with variance `2 sum_i (|K_ii|_F^2 - |diag K_ii|^2)` over the c x c blocks of the examples:
    signs of different examples never meet, since gradient norms are taken per example. A model with one output is exact.

    Args:
        model: in eval mode where that matters; left as it is.
        data: the probe.
        draws: random signs per output; each is one backward pass. None is exact: one backward pass per output.
        generator: source of the signs; torch's global one is then left alone.

    Returns:
        An `Estimate` with its standard error over the draws (infinite for one draw, 0 when exact).
    """
    weighting = Unweighted() if draws is None else RandomSigns(draws, generator)
    rows = Rows(Network.of(model, **options), data, weighting)
    parts = [torch.stack([factor.squared_norms() for factor in c.factors.values()]).sum((0, 2)).double() for c in rows]
    backwards = sum(len(part) for part in parts)
    if draws is None:
        return Estimate(torch.cat(parts).sum(), torch.zeros((), dtype=torch.float64), backwards)
    return _over_draws(parts, draws, backwards)


def _over_draws(parts: list[Tensor], draws: int, backwards: int) -> Estimate:
    """Mean over draws of sums over batches; the parts go through the draws of one batch, then of the next."""
    values = torch.cat(parts).reshape(-1, draws).sum(0)
    error = values.std() / draws**0.5 if draws > 1 else torch.full_like(values[0], torch.inf)
    return Estimate(values.mean(), error, backwards)


class LearningFlow:
    """Accumulates C(f) along a training, in the paper's form and in that of its authors' code.

    Call `update()` after every optimizer step. With w_t the parameters after t steps and s the last step at which the trace was
    taken:

    * `complexity`: `sum_t |w_{t+1} - w_t| sqrt(tr K_s)`, every step counted by its own length, momentum and all;
    * `complexity_between_logs`: `sum |w_s' - w_s| sqrt(tr K_s)` over consecutive s, s': the displacement between the steps
      at which the trace is taken. Never larger than the first, and equal to it with `every=1`.

    With `every=1` the trace is taken at every w_t. The root of an unbiased estimate is biased downwards, by about
    `1/8` of the squared relative error; `draws=None` takes the exact trace. Training goes on bit for bit as without it: the
    signs come from a random stream of its own.

    Args:
        model: the network in training. Batch norm and dropout are put into eval mode while the trace is taken, then back.
        probe: fixed training examples; C is proportional to the root of their number.
        every: steps between traces.
        draws: as in `kernel_trace`.
        seed: of the random signs.
    """

    @spelled_out
    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        *,
        every: int = 1,
        draws: int | None = 1,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        if every < 1:
            raise InputError(f"The argument every must be at least 1 step, not {every}.")
        self.model, self.probe, self.every, self.draws = model, probe, every, draws
        options.setdefault("progress", False)
        self._options = options
        self._generator = torch.Generator().manual_seed(seed)
        self._trained = self._flags()
        self.steps = 0
        self._flow = Flow(options.get("layers"))
        self._flow.begin(model)
        self._flow.feature_norm = self._feature_norm()

    def update(self) -> None:
        """Count the step that was just taken."""
        if self._trained != self._flags():
            raise InputError(
                "Parameters were frozen or unfrozen on the way, and C(f) is over one set of them: start a new LearningFlow, or "
                "use layers= for those that are trained all the time."
            )
        self._flow.step(self.model)
        self.steps += 1
        if self.steps % self.every == 0:
            self._flow.log(self.model)
            self._flow.feature_norm = self._feature_norm()

    @property
    def feature_norm(self) -> float:
        """sqrt(tr K) where the trace was taken last."""
        return self._flow.feature_norm

    @property
    def path_length(self) -> float:
        """The sum of the lengths of all steps."""
        return self._flow.so_far()["path_length"]

    @property
    def complexity(self) -> float:
        """C(f), every step by its own length."""
        return self._flow.so_far()["complexity"]

    @property
    def complexity_between_logs(self) -> float:
        """C(f) by displacements between traces, up to the present parameters."""
        return self._flow.so_far()["complexity_between_logs"]

    def _flags(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.model.parameters()]

    def _feature_norm(self) -> float:
        """sqrt(tr K) at the present parameters."""
        with evaluation_mode(self.model):
            trace = kernel_trace(self.model, self.probe, self.draws, generator=self._generator, **self._options)
        return float(trace.estimate.clamp_min(0)) ** 0.5

"""Objectives: lower bounds and contrasts whose maximum over critics is, or gives, the mutual information.

Each is a plain function of `Scores` and can stand in any loss: `(-DonskerVaradhan()(scores)).backward()` trains a critic,
`cost - beta * bound(scores)` a generator or an encoder. With P the joint distribution, Q the product of the marginals:

| name | maximized | value of a fitted critic |
|---|---|---|
| `mine` | DV with the gradient of a moving average | DV |
| `dv` | `E_P T - log E_Q e^T` | DV |
| `nwj` (MINE-f) | `1 + E_P T - E_Q e^T` | the same |
| `infonce` | `E_P[T - log mean(e^T over own and strangers)]` | the same, at most the logarithm of the batch |
| `smile` | Jensen-Shannon | DV with scores clipped to [-tau, tau] under Q; no bound |
| `js` | `-E_P softplus(-T) - E_Q softplus(T)` | DV |
| `fdime` | `2 - E_P e^(-T/2) - E_Q e^(T/2)`, squared Hellinger | `E_P T`; no bound |
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tangentlab.errors import InputError
from tangentlab.information.scores import Scores


def log_mean_exp(values: Tensor) -> Tensor:
    """`log mean exp` of all entries."""
    return values.logsumexp(tuple(range(values.ndim))) - math.log(values.numel())


class Objective:
    """Something to be maximized over critics. Its value estimates the mutual information in nats unless it says otherwise.

    * `reads`: how a fitted critic is turned into a value: "dv", "nwj", "infonce" or "joint" (the mean score of joint pairs)
    * `clip`: scores of strangers are clipped to [-clip, clip] when the value is taken
    * `is_bound`: whether that value is a lower bound in expectation
    """

    reads: str = "dv"
    clip: float | None = None
    is_bound: bool = True

    def __call__(self, scores: Scores) -> Tensor:
        """The quantity to be maximized on a batch, a scalar with gradients."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """What the objective remembers between batches, by name."""
        return {}


class DonskerVaradhan(Objective):
    """`E_P T - log E_Q e^T`, the bound of Donsker and Varadhan. Its gradient on a minibatch is biased (eq. 12)."""

    def __call__(self, scores: Scores) -> Tensor:
        """The bound on a batch."""
        return scores.joint.mean() - log_mean_exp(scores.marginal)


class MINE(Objective):
    """Donsker-Varadhan with the gradient of `E_P T - E_Q e^T / m`, m a moving average of `E_Q e^T` (Belghazi et al. 2018).

    The average is kept as a logarithm, `log m <- logaddexp(log(1 - alpha) + log m, log alpha + log E_B e^T)`, which neither
    overflows nor drifts away; a batch counts at most e^2 times as much as the average says (`floor`); and the constant that
    the bound does not see is held near 0 by `- penalty (log E_B e^T)^2` (ReMINE, Choi and Lee 2022). Since the average
    contains the present batch with weight alpha, a bias of order alpha stays; it goes with alpha, at learning rates below it.

    Args:
        alpha: rate of the average; 1 is the plain, biased gradient.
        penalty: weight of the penalty on the log-partition.
        floor: the average never counts as less than `e^-floor` of the batch's own mean.
    """

    def __init__(self, alpha: float = 0.05, penalty: float = 0.1, floor: float = 2.0) -> None:
        if not 0 < alpha <= 1 or penalty < 0 or floor < 0:
            raise InputError(
                f"MINE needs 0 < alpha <= 1 and a penalty and floor that are not negative, not {alpha}, {penalty}, {floor}."
            )
        self.alpha, self.penalty, self.floor = alpha, penalty, floor
        self.log_average: float | None = None

    def __call__(self, scores: Scores) -> Tensor:
        """The bound on a batch, with the corrected gradient; moves the average."""
        joint, log_partition = scores.joint.mean(), log_mean_exp(scores.marginal)
        average = torch.as_tensor(self._moved(log_partition.item()))
        surrogate = joint - (scores.marginal - average.to(scores.marginal)).exp().mean()
        held = self.penalty * log_partition.square()
        return (joint - log_partition).detach() + (surrogate - surrogate.detach()) - (held - held.detach())

    def _moved(self, log_partition: float) -> float:
        if not math.isfinite(log_partition):
            return self.log_average or 0.0
        if self.log_average is None or self.alpha == 1:
            self.log_average = log_partition
        else:
            old, new = math.log1p(-self.alpha) + self.log_average, math.log(self.alpha) + log_partition
            high = max(old, new)
            self.log_average = high + math.log(math.exp(old - high) + math.exp(new - high))
        self.log_average = max(self.log_average, log_partition - self.floor)
        return self.log_average

    def state(self) -> dict[str, float]:
        """The logarithm of the average."""
        return {} if self.log_average is None else {"log_average": self.log_average}


class NWJ(Objective):
    """`1 + E_P T - E_Q e^T`, the f-divergence bound (MINE-f): below DV for every critic, with unbiased gradients.

    This is `E_P T' - E_Q e^(T' - 1)` (eq. 8) at `T' = T + 1`, so that a critic of 0 has the value 0 and the best one is
    `log dP/dQ`.
    """

    reads = "nwj"

    def __call__(self, scores: Scores) -> Tensor:
        """The bound on a batch."""
        return 1 + scores.joint.mean() - scores.marginal.exp().mean()


class InfoNCE(Objective):
    """`E[T(x, z) - log mean e^T]` over a pair and the strangers of its x: a bound below `log(strangers + 1)`."""

    reads = "infonce"

    def __call__(self, scores: Scores) -> Tensor:
        """The bound on a batch."""
        rows = torch.cat([scores.joint[:, None], scores.marginal], 1)
        return (scores.joint - rows.logsumexp(1)).mean() + math.log(rows.shape[1])


class JensenShannon(Objective):
    """`- E_P softplus(-T) - E_Q softplus(T)`, best at `log dP/dQ`. It is no estimate by itself."""

    def __call__(self, scores: Scores) -> Tensor:
        """The contrast on a batch."""
        return -softplus(-scores.joint).mean() - softplus(scores.marginal).mean()


class SMILE(JensenShannon):
    """Trained as Jensen-Shannon, read as DV with clipped scores (Song and Ermon 2020): less variance, some bias, no bound."""

    is_bound = False

    def __init__(self, clip: float = 5.0) -> None:
        if clip <= 0:
            raise InputError(f"SMILE clips at a positive number, not {clip}.")
        self.clip = clip


class FDime(Objective):
    """The squared Hellinger member of f-DIME (Letizia et al. 2024): `2 - E_P e^(-T/2) - E_Q e^(T/2)`, best at `log dP/dQ`.

    Its gradients have finite variance whatever the information (`E_Q e^T = 1` at the optimum), and its value `E_P T` has no
    partition function.
    """

    reads = "joint"
    is_bound = False

    def __call__(self, scores: Scores) -> Tensor:
        """The contrast on a batch."""
        return 2 - (-scores.joint / 2).exp().mean() - (scores.marginal / 2).exp().mean()


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "mine": MINE,
    "dv": DonskerVaradhan,
    "nwj": NWJ,
    "mine-f": NWJ,
    "infonce": InfoNCE,
    "smile": SMILE,
    "js": JensenShannon,
    "fdime": FDime,
}
"""By the names that `mutual_information` takes."""

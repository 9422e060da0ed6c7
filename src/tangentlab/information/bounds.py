"""The bounds of chapter 5 on tables, where every expectation is a finite sum, and the sample size of theorem 5.5."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from tangentlab.errors import InputError


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """`sum p log(p / q)` in nats over all entries, 0 log 0 = 0; infinite where q is 0 and p is not."""
    return (p * (p / q).log()).where(p > 0, p.new_zeros(())).sum()


def dv_of_table(p: Tensor, q: Tensor, scores: Tensor) -> Tensor:
    """`E_P T - log E_Q e^T` (theorem 5.1): `KL(P || Q) - KL(P || G_T)` for every T."""
    return (p * scores).sum() - (q.log() + scores).flatten().logsumexp(0)


def f_bound_of_table(p: Tensor, q: Tensor, scores: Tensor) -> Tensor:
    """`E_P T - E_Q e^(T-1)` (eq. 8): below `dv_of_table`, and equal where `E_Q e^T = e`."""
    return (p * scores).sum() - (q * (scores - 1).exp()).sum()


def gibbs(q: Tensor, scores: Tensor) -> Tensor:
    """`G_T = e^T Q / E_Q e^T`: the distribution that a critic takes the joint one for."""
    return (q.log() + scores).flatten().softmax(0).view(q.shape)


def sample_size(
    parameters: int,
    radius: float,
    lipschitz: float,
    bound: float,
    accuracy: float,
    failure: float,
    form: Literal["printed", "corrected"] = "corrected",
) -> float:
    """How many examples suffice for `|I_n - I_Theta| <= accuracy` with probability `1 - failure` (theorem 5.5).

    Printed: `2 M^2 (d log(16 K L sqrt(d) / eps) + 2 d M + log(2 / delta)) / eps^2`. Its proof uses a deviation of eps / 4
    where `(eps / 4) e^-M` is needed, a Hoeffding exponent that bounded functions do not have, and one event in place of two:
    with these, the constant is larger by `max(16, 4 e^(2 M))` and the last logarithm is that of `4 / delta`.

    Args:
        parameters: d, of the statistics network.
        radius: K, of the ball in which they lie.
        lipschitz: L, of T in the parameters.
        bound: M, of |T| and e^T.
        accuracy, failure: eps and delta.
        form: as printed, or corrected.
    """
    if min(parameters, radius, lipschitz, bound, accuracy) <= 0 or not 0 < failure < 1:
        raise InputError(
            "Theorem 5.5 needs positive d, K, L, M and accuracy, and a probability of failure inside (0, 1)."
        )
    if form not in ("printed", "corrected"):
        raise InputError(f"The theorem has a 'printed' and a 'corrected' form, not {form!r}.")
    corrected = form == "corrected"
    factor = max(16.0, 4 * math.exp(2 * bound)) if corrected else 1.0
    covering = parameters * (math.log(16 * radius * lipschitz * math.sqrt(parameters) / accuracy) + 2 * bound)
    return factor * 2 * bound**2 * (covering + math.log((4 if corrected else 2) / failure)) / accuracy**2

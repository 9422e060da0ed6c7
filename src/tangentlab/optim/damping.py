"""Damping: the forms in which it enters, and values that adapt themselves to how well the quadratic model predicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import erf, inf, isfinite, sqrt
from typing import Any

from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.objects.pmat.pi import ratio
from tangentlab.optim.hyperparameters import check_period, check_schedule
from tangentlab.optim.options import NamedOptions

FORMS = ("factored", "plain")


def balance(left_mean: Tensor, right_mean: Tensor, pi: bool | float, inputs_left: bool) -> Tensor:
    """`ratio` of pi and the factors' mean eigenvalues, (groups, 1); where it comes from them, within a million of 1."""
    found = ratio(pi, left_mean, right_mean, inputs_left)
    return found.clamp(1e-6, 1e6) if pi is True else found


def damped(scale: Tensor, left: Tensor | None, right: Tensor | None, epsilon: float, form: str, pi: Tensor) -> Tensor:
    """Denominator of the rescaling, s + eps' (George et al. 2018, appendix A.4).

    plain: eps' = eps. factored: eps' = (S_A + pi sqrt(eps)) (S_B + sqrt(eps) / pi) - S_A S_B, i.e. eps is added to the
    eigenvalues of both factors: `eps + sqrt(eps) / pi S_A + pi sqrt(eps) S_B`.

    Args:
        scale: s (groups, rows, columns).
        left: S_B (groups, rows). right: S_A (groups, columns).
        pi: (groups, 1).
    """
    if form == "plain" or left is None or right is None:
        return scale + epsilon
    root = epsilon**0.5
    rows = (left * (root * pi)).add_(epsilon)
    return (scale + rows[:, :, None]).add_((right * (root / pi))[:, None, :])


@dataclass(frozen=True)
class Trial:
    """What a step did and what the quadratic model had promised, on a batch of N examples.

    Attributes:
        change: mean over examples of loss(w + d) - loss(w).
        error: standard error of that mean; 0 when the losses came as one number.
        predicted: M(d) - M(0) = <g, d> + 1/2 d^T F d, negative for a useful step.
    """

    change: float
    error: float
    predicted: float

    @property
    def ratio(self) -> float:
        """rho = change / predicted: 1 when the model is right."""
        return self.change / self.predicted if self.predicted < 0 else -inf


class AdaptiveDamping(NamedOptions, ABC):
    """A damping that a `Trial` corrects now and then.

    Args:
        start: first value of epsilon.
        period: steps between trials.
        factor: omega < 1; epsilon is multiplied by at most omega^period or divided by it.
        low, high: ratios below and above which epsilon grows and shrinks.
        bounds: smallest and largest epsilon.
    """

    def __init__(
        self,
        start: float = 1e-2,
        *,
        period: int = 5,
        factor: float = 0.95,
        low: float = 0.25,
        high: float = 0.75,
        bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        check_schedule("damping", start, low=bounds[0], high=bounds[1])
        check_period("the damping's period", period)
        if not 0 < factor < 1 or not low < high:
            raise InputError(
                f"Adaptive damping needs 0 < factor < 1 and low < high; got factor={factor}, low={low}, high={high}."
            )
        self.value, self.period, self.factor = start, period, factor
        self.low, self.high, self.bounds = low, high, bounds

    @abstractmethod
    def direction(self, trial: Trial) -> float:
        """Between -1 (the model is trustworthy: less damping) and 1 (it is not: more)."""

    def update(self, trial: Trial) -> None:
        """epsilon <- epsilon omega^(-period direction), within the bounds; a loss that is not finite is a failure."""
        direction = self.direction(trial) if isfinite(trial.change) else 1.0
        grown = self.value * float(self.factor ** (-self.period * direction))
        self.value = min(max(grown, self.bounds[0]), self.bounds[1])

    def state_dict(self) -> dict[str, Any]:
        """The value."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a value."""
        self.value = float(state["value"])


class LevenbergMarquardt(AdaptiveDamping):
    """More damping when rho < low, less when rho > high (Martens & Grosse 2015, section 6.5)."""

    def direction(self, trial: Trial) -> float:
        """1, 0 or -1."""
        return float(trial.ratio < self.low) - float(trial.ratio > self.high)


class NoiseAware(AdaptiveDamping):
    """Levenberg-Marquardt that asks how sure it can be: P(rho < low) - P(rho > high), in place of yes or no.

    The mean change of a minibatch is a noisy measurement of the change of the true loss, with the standard error that
    the per-example changes tell (the reasoning of Mahsereci & Hennig's probabilistic line search, 2015, for the damping
    in place of the learning rate). With `rho < low` equivalent to `change > low * predicted`,

        P(rho < low) = Phi((change - low predicted) / error),   P(rho > high) = Phi((high predicted - change) / error),

    epsilon moves by omega^(-period (P(rho < low) - P(rho > high))): a clear failure or success counts in full, one that
    the noise could explain hardly at all, and without noise this is the classical rule. Measured on a batch that the step
    has not seen, the change also contains what the step fitted to its own batch, so that noise in the gradient raises
    the damping.
    """

    def direction(self, trial: Trial) -> float:
        """P(rho < low) - P(rho > high)."""
        if trial.predicted >= 0:
            return 1.0
        if trial.error == 0:
            return float(trial.ratio < self.low) - float(trial.ratio > self.high)
        bad = _normal_cdf((trial.change - self.low * trial.predicted) / trial.error)
        good = _normal_cdf((self.high * trial.predicted - trial.change) / trial.error)
        return bad - good


def _normal_cdf(z: float) -> float:
    return 0.5 * (1 + erf(z / sqrt(2)))

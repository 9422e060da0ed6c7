"""What a randomized estimator returns."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """An estimate and how far it may be off.

    Attributes:
        estimate: the estimated quantity, a scalar or a vector.
        standard_error: one standard deviation of the estimate, same shape; infinite when a single probe says nothing.
        matvecs: products with the matrix that were spent.
    """

    estimate: Tensor
    standard_error: Tensor
    matvecs: int


def mean_with_error(samples: Tensor, matvecs: int) -> Estimate:
    """Mean over the first axis, with the sample standard deviation over the square root of the count."""
    count = len(samples)
    mean = samples.mean(0)
    if count == 1:
        return Estimate(mean, torch.full_like(mean, torch.inf), matvecs)
    return Estimate(mean, samples.std(0) / count**0.5, matvecs)

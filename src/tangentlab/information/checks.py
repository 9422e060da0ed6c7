"""What speaks against an estimate, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tangentlab.information.result import Diagnostics
from tangentlab.information.samples import PairedSample


def about_data(sample: PairedSample) -> Iterator[str]:
    """Constants, copies, few examples, tails."""
    n = len(sample)
    if n < 200:
        yield f"There are {n} examples only: intervals and permutations rest on a part of them."
    for name, values in (("x", sample.x), ("z", sample.z)):
        flat = values.flatten(1).double()
        constant = (flat == flat[0]).all(0)
        if constant.all():
            yield f"{name} is constant, so the mutual information is 0."
        elif constant.any() and values.ndim == 2:
            yield f"{int(constant.sum())} of {len(constant)} coordinates of {name} are constant and say nothing."
    distinct = len(torch.cat([sample.x.flatten(1).double(), sample.z.flatten(1).double()], 1).unique(dim=0))
    if distinct < 0.98 * n and not looks_discrete(sample):
        yield (
            f"Only {distinct} of {n} examples are distinct: copies on both sides of the split make a critic look better than "
            "it is, and intervals and p-values take examples to be independent. Remove the copies."
        )


def looks_discrete(sample: PairedSample) -> bool:
    """Whether every coordinate of one side takes at most sqrt(n) values, 20 at least."""
    most = max(20, math.isqrt(len(sample)))
    sides = (values.flatten(1).T for values in (sample.x, sample.z))
    return any(all(len(row.unique()) <= most for row in rows[:50]) for rows in sides)


def about_fit(value: float, diagnostics: Diagnostics, reads: str) -> Iterator[str]:
    """Averages of e^T that rest on few pairs, ceilings, critics that remember."""
    found = diagnostics
    if reads in ("dv", "nwj"):
        if found.pareto_k >= 0.7:
            yield (
                f"The tail of e^T is too heavy for an average (Pareto k = {found.pareto_k:.2f}, .7 is the limit): the value "
                "may be far off in either direction, and its interval with it."
            )
        if found.effective_size < 100:
            yield f"The average of e^T rests on {found.effective_size:.0f} pairs out of {found.pairs:,}: too few to trust."
        if value > 0.5 * math.log(max(found.pairs, 1) / 100):
            yield (
                f"At {value:.2f} nats an average of e^T needs about 100 e^(2 I) = {100 * math.exp(2 * min(value, 300)):.1e} "
                f"pairs, there are {found.pairs:.1e}: the truth may be much larger."
            )
    if value > found.log_examples - 1:
        yield f"The value is within one nat of the ceiling log n = {found.log_examples:.2f}: the truth may be much larger."
    if reads == "infonce" and value > found.log_batch - 1:
        yield f"InfoNCE was trained with a ceiling of log batch = {found.log_batch:.2f}: take a larger batch."
    if found.train_minus_test > 0.1 + 0.15 * max(value, 0.0):
        yield (
            f"The critic remembers its training data: {found.train_minus_test:.2f} nats more there than on test data. "
            "More examples, a smaller critic or weight decay would bring the value up."
        )
    if found.step_from_half > 0.05 + 0.1 * abs(value):
        yield f"Twice the training data brought {found.step_from_half:.2f} nats: more would bring more."


def pareto_k(largest: Tensor, pairs: int) -> float:
    """Shape of the generalized Pareto distribution of the largest values of e^T, min(n / 5, 3 sqrt(n)) of them.

    0 for tails that fall exponentially, 1 / k finite moments beyond; NaN with fewer than 20 values.
    """
    from scipy.stats import genpareto

    count = min(len(largest) - 1, pairs // 5, int(3 * math.sqrt(pairs)))
    if count < 20 or (largest[0] - largest[count]).item() < 1e-6:
        return math.nan if count < 20 else 0.0
    threshold = (largest[count] - largest[0]).exp()
    excess = ((largest[:count] - largest[0]).exp() - threshold).numpy()
    excess = excess[excess > 0]
    return float(genpareto.fit(excess / excess.mean(), floc=0)[0]) if len(excess) >= 20 else math.nan

"""Hutch++: the trace of the dominant part exactly, of the rest by Hutchinson."""

import torch

from tangentlab.errors import InputError
from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Matvec, dense, product, random_rows
from tangentlab.linalg.orthonormalize import orthonormal_rows


def hutchpp(
    matvec: Matvec,
    dim: int,
    matvecs: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`tr A = tr Q A Q^T + tr (I - P) A (I - P)` with Q a sketched range and the second trace by Hutchinson.

    A third of the products finds the range Q, a third its exact trace, the rest estimates the remainder. Unbiased;
    relative error O(1 / matvecs) for positive semi-definite A, where Hutchinson has O(1 / sqrt(matvecs)) (Meyer, Musco,
    Musco and Woodruff 2021). Exact when the rank of A is at most `matvecs // 3`, or `matvecs >= dim`.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        matvecs: products to spend, at least 3.
        dtype: of the probes.
        device: of the probes.
        generator: source of randomness.

    Returns:
        The estimate; its standard error is that of the remainder over its probes. Cost: O(matvecs^2 dim) besides the
        products; memory about `matvecs` vectors.
    """
    if matvecs < 3:
        raise InputError(f"Hutch++ needs at least 3 products, got {matvecs}.")
    if matvecs >= dim:
        exact = dense(matvec, dim, dtype=dtype, device=device).trace()
        return Estimate(exact, torch.zeros_like(exact), dim)
    rank = matvecs // 3
    sketch = random_rows(rank, dim, "rademacher", dtype=dtype, device=device, generator=generator)
    basis = orthonormal_rows(product(matvec, sketch))
    low_rank_part = (basis * product(matvec, basis)).sum()
    probes = matvecs - 2 * rank
    z = random_rows(probes, dim, "rademacher", dtype=dtype, device=device, generator=generator)
    z = z - (z @ basis.T) @ basis
    remainder = mean_with_error((z * product(matvec, z)).sum(1), rank + len(basis) + probes)
    return Estimate(low_rank_part + remainder.estimate, remainder.standard_error, remainder.matvecs)

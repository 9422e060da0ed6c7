"""Stochastic Lanczos quadrature: traces of functions of a matrix, and the log-determinant."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Distribution, Matvec, at_least_one, product, random_rows
from tangentlab.linalg.symmetric import rounding_rtol, safe_eigh_many


@dataclass(frozen=True)
class Quadrature:
    """Gauss quadrature of the spectral measure seen by each probe z: `z^T f(A) z ~ |z|^2 sum_j w_j f(s_j)`.

    Attributes:
        nodes: `(probes, steps)` float64, the s_j, inside the range of the spectrum.
        weights: `(probes, steps)` float64, nonnegative, summing to one per probe.
        tridiagonals: `(probes, steps, steps)` float64, the Lanczos matrices that they come from.
        matvecs: products with the matrix that were spent.
    """

    nodes: Tensor
    weights: Tensor
    tridiagonals: Tensor
    matvecs: int

    def truncated(self, steps: int) -> "Quadrature":
        """The quadrature that fewer steps would have given, at no further product."""
        return _gauss(self.tridiagonals[:, :steps, :steps], len(self.nodes) * steps)


def lanczos_quadrature(
    matvec: Matvec,
    dim: int,
    probes: int,
    steps: int,
    *,
    distribution: Distribution = "rademacher",
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Quadrature:
    """Nodes and weights of the spectrum as each random probe sees it (Golub and Meurant 1994).

    `steps` Lanczos steps with full reorthogonalization give a tridiagonal T; the nodes are its eigenvalues and the
    weights the squared first components of its eigenvectors. Exact for polynomials of degree below `2 steps`, and for
    every function once the Krylov space is exhausted.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        probes: number of random starting vectors.
        steps: Lanczos steps, cut to `dim`.
        distribution: `"rademacher"` or `"gaussian"`.
        batch_size: probes advanced together; memory `batch_size * steps` vectors.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        A `Quadrature`. Cost: `probes * steps` products and `2 probes steps^2 dim` operations.
    """
    at_least_one(probes=probes, steps=steps, batch_size=batch_size)
    steps = min(steps, dim)
    tridiagonals: list[Tensor] = []
    for begin in range(0, probes, batch_size):
        count = min(batch_size, probes - begin)
        start = random_rows(count, dim, distribution, dtype=dtype, device=device, generator=generator)
        tridiagonals.append(_tridiagonalize(matvec, start, steps))
    return _gauss(torch.cat(tridiagonals), probes * steps)


def _gauss(tridiagonals: Tensor, matvecs: int) -> Quadrature:
    pairs = safe_eigh_many(list(tridiagonals))
    nodes = torch.stack([values for values, _ in pairs])
    weights = torch.stack([vectors[0].square() for _, vectors in pairs])
    return Quadrature(nodes, weights / weights.sum(1, keepdim=True), tridiagonals, matvecs)


def slq_trace(
    matvec: Matvec,
    dim: int,
    function: Callable[[Tensor], Tensor],
    *,
    probes: int = 16,
    steps: int = 32,
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`tr f(A)` by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

    The mean over probes of `dim * sum_j w_j f(s_j)`. The standard error has two parts, added in squares: that of the
    mean over the probes, and the quadrature's, measured as the change against three quarters of the steps (for f
    analytic on the spectrum the quadrature converges exponentially, so this overestimates).

    Args:
        function: f, elementwise on float64 tensors.
        others: as in `lanczos_quadrature`.

    Returns:
        Estimate in the dtype and device of the probes.
    """
    quadrature = lanczos_quadrature(
        matvec, dim, probes, steps, batch_size=batch_size, dtype=dtype, device=device, generator=generator
    )
    fine, coarse = (_integrals(q, function) * dim for q in (quadrature, quadrature.truncated(max(1, 3 * steps // 4))))
    result = mean_with_error(fine, quadrature.matvecs)
    error = torch.hypot(result.standard_error, fine.mean() - coarse.mean())
    out = dtype or torch.get_default_dtype()
    return Estimate(result.estimate.to(device, out), error.to(device, out), result.matvecs)


def _integrals(quadrature: Quadrature, function: Callable[[Tensor], Tensor]) -> Tensor:
    values = function(quadrature.nodes)
    if not bool(torch.isfinite(values).all()):
        raise NumericsError("The function is not finite on the spectrum; shift or damp the matrix.")
    return (quadrature.weights * values).sum(1)


def slq_logdet(
    matvec: Matvec,
    dim: int,
    *,
    damping: float = 0.0,
    probes: int = 16,
    steps: int = 32,
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`log det(A + damping I)` of a positive semi-definite A: `slq_trace` of `log(s + damping)`.

    Raises:
        NumericsError: A + damping I is not positive definite to working precision; the message suggests a damping.
    """
    if damping < 0:
        raise InputError(f"The argument damping must not be negative, got {damping}.")
    precision = rounding_rtol(dtype or torch.get_default_dtype(), steps)

    def log_damped(nodes: Tensor) -> Tensor:
        largest = float(nodes.abs().max())
        smallest = float(nodes.min())
        if smallest < -100 * precision * largest:
            raise NumericsError(f"The matrix has the negative eigenvalue {smallest:.3g}: no log-determinant.")
        if smallest + damping <= precision * largest and damping <= precision * largest:
            raise NumericsError(
                f"The matrix is singular to working precision (smallest {smallest:.3g}, largest {largest:.3g}); "
                f"give a damping above {max(precision * largest, torch.finfo(torch.float64).tiny):.2g}."
            )
        return (nodes.clamp_min(0) + damping).log()

    return slq_trace(
        matvec,
        dim,
        log_damped,
        probes=probes,
        steps=steps,
        batch_size=batch_size,
        dtype=dtype,
        device=device,
        generator=generator,
    )


def _tridiagonalize(matvec: Matvec, start: Tensor, steps: int) -> Tensor:
    """Lanczos matrices `(probes, steps, steps)` in float64 on CPU, one independent Krylov space per row of `start`.

    A Krylov space that is exhausted early goes on with zero vectors and zero coupling, so that what follows gets no
    weight; the diagonal is continued with a value inside the spectrum.
    """
    count, dim = start.shape
    eps = torch.finfo(start.dtype).eps
    basis = torch.zeros(count, steps, dim, dtype=start.dtype, device=start.device)
    diagonal = torch.zeros(count, steps, dtype=start.dtype, device=start.device)
    off = torch.zeros_like(diagonal)
    current = start / start.norm(dim=1, keepdim=True)
    alive = torch.ones(count, dtype=torch.bool, device=start.device)
    scale = torch.zeros(count, dtype=start.dtype, device=start.device)
    for step in range(steps):
        basis[:, step] = current
        image = product(matvec, current)
        diagonal[:, step] = torch.where(alive, (current * image).sum(1), diagonal[:, 0])
        # The three-term recurrence takes off the large parts; one pass over the whole basis then takes off rounding.
        image = image - diagonal[:, step, None] * current
        if step:
            image = image - off[:, step - 1, None] * basis[:, step - 1]
        seen = basis[:, : step + 1]
        image = image - torch.einsum("psd,ps->pd", seen, torch.einsum("psd,pd->ps", seen, image))
        norm = image.norm(dim=1)
        scale = torch.maximum(scale, torch.maximum(diagonal[:, step].abs(), norm))
        alive = alive & (norm > 10 * eps * scale)
        off[:, step] = torch.where(alive, norm, 0.0)
        current = torch.where(alive[:, None], image / torch.where(alive, norm, 1.0)[:, None], 0.0)
    diagonal, off = diagonal.to("cpu", torch.float64), off[:, :-1].to("cpu", torch.float64)
    return torch.diag_embed(diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)

"""Stochastic Lanczos quadrature: traces of functions of a matrix, and the log-determinant."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Distribution, Matvec, at_least_one, product, random_rows
from tangentlab.linalg.eigh import safe_eigh_many


@dataclass(frozen=True)
class Quadrature:
    """Gauss quadrature of the spectral measure seen by each probe z: ``z^T f(A) z ~ |z|^2 sum_j w_j f(s_j)``.

    Attributes:
        nodes: ``(probes, steps)`` float64, the s_j, inside the range of the spectrum.
        weights: ``(probes, steps)`` float64, nonnegative, summing to one per probe.
        matvecs: products with the matrix that were spent.
    """

    nodes: Tensor
    weights: Tensor
    matvecs: int


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

    ``steps`` Lanczos steps with full reorthogonalization give a tridiagonal T; the nodes are its eigenvalues and the
    weights the squared first components of its eigenvectors. Exact for polynomials of degree below ``2 steps``, and for
    every function once the Krylov space is exhausted.

    Args:
        matvec: symmetric A, ``(vectors, dim) -> (vectors, dim)``.
        dim: its size.
        probes: number of random starting vectors.
        steps: Lanczos steps, cut to ``dim``.
        distribution: ``"rademacher"`` or ``"gaussian"``.
        batch_size: probes advanced together; memory ``batch_size * steps`` vectors.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        A `Quadrature`. Cost: ``probes * steps`` products and ``4 probes steps^2 dim`` operations.
    """
    at_least_one(probes=probes, steps=steps, batch_size=batch_size)
    steps = min(steps, dim)
    pairs: list[tuple[Tensor, Tensor]] = []
    for begin in range(0, probes, batch_size):
        count = min(batch_size, probes - begin)
        start = random_rows(count, dim, distribution, dtype=dtype, device=device, generator=generator)
        pairs += safe_eigh_many(list(_tridiagonalize(matvec, start, steps)))
    nodes = torch.stack([values for values, _ in pairs])
    weights = torch.stack([vectors[0].square() for _, vectors in pairs])
    return Quadrature(nodes, weights / weights.sum(1, keepdim=True), probes * steps)


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
    """``tr f(A)`` by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

    The mean over probes of ``dim * sum_j w_j f(s_j)``. Its standard error covers the randomness of the probes; the
    quadrature error decays exponentially in ``steps`` for f analytic on the spectrum.

    Args:
        function: f, elementwise on float64 tensors.
        others: as in `lanczos_quadrature`.

    Returns:
        Estimate in the dtype and device of the probes.
    """
    quadrature = lanczos_quadrature(
        matvec, dim, probes, steps, batch_size=batch_size, dtype=dtype, device=device, generator=generator
    )
    values = function(quadrature.nodes)
    if not bool(torch.isfinite(values).all()):
        raise NumericsError("the function is not finite on the spectrum; shift or damp the matrix")
    result = mean_with_error(dim * (quadrature.weights * values).sum(1), quadrature.matvecs)
    out = dtype or torch.get_default_dtype()
    return Estimate(result.estimate.to(device, out), result.standard_error.to(device, out), result.matvecs)


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
    """``log det(A + damping I)`` of a positive semi-definite A: `slq_trace` of ``log(s + damping)``.

    Raises:
        NumericsError: A + damping I is not positive definite to working precision; the message suggests a damping.
    """
    if damping < 0:
        raise InputError(f"damping must not be negative, got {damping}")
    precision = torch.finfo(dtype or torch.get_default_dtype()).eps * dim

    def log_damped(nodes: Tensor) -> Tensor:
        largest = float(nodes.abs().max())
        smallest = float(nodes.min())
        if smallest < -1e3 * precision * largest:
            raise NumericsError(f"the matrix has the negative eigenvalue {smallest:.3g}: no log-determinant")
        if smallest + damping <= precision * largest and damping <= precision * largest:
            raise NumericsError(
                f"the matrix is singular to working precision (smallest {smallest:.3g}, largest {largest:.3g}); "
                f"give a damping above {max(precision * largest, torch.finfo(torch.float64).tiny):.2g}"
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
    """Lanczos matrices ``(probes, steps, steps)`` in float64 on CPU, one independent Krylov space per row of ``start``.

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
        seen = basis[:, : step + 1]
        for _ in range(2):
            image = image - torch.einsum("psd,ps->pd", seen, torch.einsum("psd,pd->ps", seen, image))
        norm = image.norm(dim=1)
        scale = torch.maximum(scale, torch.maximum(diagonal[:, step].abs(), norm))
        alive = alive & (norm > 10 * eps * scale)
        off[:, step] = torch.where(alive, norm, 0.0)
        current = torch.where(alive[:, None], image / torch.where(alive, norm, 1.0)[:, None], 0.0)
    diagonal, off = diagonal.to("cpu", torch.float64), off[:, :-1].to("cpu", torch.float64)
    return torch.diag_embed(diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)

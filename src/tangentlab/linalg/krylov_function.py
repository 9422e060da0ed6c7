"""Functions of a matrix times vectors, f(A) z, from products alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._matvec import Matvec, product
from tangentlab.linalg.symmetric import safe_eigh_many

KRYLOV_STEPS = 128
"""Steps after which `krylov_function` gives up unless told otherwise."""

_CHECK_EVERY = 4


def krylov_function(
    matvec: Matvec,
    rows: Tensor,
    function: Callable[[Tensor], Tensor],
    *,
    tol: float | None = None,
    max_steps: int = KRYLOV_STEPS,
) -> Tensor:
    """`f(A) z` for every row z, by the Lanczos approximation `|z| V f(T) e_1` (Druskin and Knizhnerman 1989).

    V is the orthonormal Krylov basis of z (reorthogonalized twice), `T = V A V^T` tridiagonal. Exact for polynomials of
    degree below the number of steps, and for every f once the Krylov space is exhausted; for `(A + damping I)^-1/2` the
    error decays like that of conjugate gradients, `exp(-2 steps sqrt(damping / |A|))`.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        rows: the vectors, `(vectors, dim)`.
        function: f, elementwise on the eigenvalues of T (float64).
        tol: stop when two approximations that are four steps apart differ by less than this, relative to the norm of the
            later one; by default 1e-10 in float64 and 1e-5 in float32.
        max_steps: limit on the number of steps.

    Returns:
        The products, `(vectors, dim)`. Cost: one batched product per step and 4 steps^2 dim operations per vector; memory
        steps vectors per vector.

    Raises:
        NumericsError: not converged after `max_steps`.
    """
    if rows.ndim != 2:
        raise InputError(f"The argument rows must be (vectors, dim), got shape {tuple(rows.shape)}.")
    tolerance = max(1e-10, 100 * torch.finfo(rows.dtype).eps) if tol is None else tol
    norms = rows.norm(dim=1, keepdim=True)
    krylov = _Krylov(matvec, rows / torch.where(norms > 0, norms, 1.0))
    previous = torch.full_like(rows, torch.inf)
    for step in range(1, min(max_steps, rows.shape[1]) + 1):
        done = krylov.advance()
        if done or step % _CHECK_EVERY == 0 or step == rows.shape[1]:
            current = norms * krylov.apply(function)
            change = (current - previous).norm(dim=1)
            if done or step == rows.shape[1] or bool((change <= tolerance * current.norm(dim=1)).all()):
                return current
            previous = current
    raise NumericsError(
        f"The product f(A) z has not converged after {max_steps} Lanczos steps; a larger damping makes the function smoother, "
        "or use a representation with a closed form."
    )


class _Krylov:
    """Krylov bases of several vectors, advanced together."""

    def __init__(self, matvec: Matvec, start: Tensor) -> None:
        self.matvec, self.basis = matvec, start[:, None]
        self.diagonal: list[Tensor] = []
        self.off: list[Tensor] = []
        self.alive = start.norm(dim=1) > 0
        self.scale = torch.zeros_like(start[:, 0])

    def advance(self) -> bool:
        """One step for all; True when every Krylov space is exhausted."""
        image = product(self.matvec, self.basis[:, -1])
        self.diagonal.append((self.basis[:, -1] * image).sum(1))
        for _ in range(2):
            image = image - torch.einsum("psd,ps->pd", self.basis, torch.einsum("psd,pd->ps", self.basis, image))
        norm = image.norm(dim=1)
        self.scale = torch.maximum(self.scale, torch.maximum(self.diagonal[-1].abs(), norm))
        self.alive = self.alive & (norm > 10 * torch.finfo(image.dtype).eps * self.scale)
        self.off.append(torch.where(self.alive, norm, 0.0))
        following = torch.where(self.alive[:, None], image / torch.where(self.alive, norm, 1.0)[:, None], 0.0)
        self.basis = torch.cat([self.basis, following[:, None]], 1)
        return not bool(self.alive.any())

    def apply(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """V f(T) e_1 of every vector; what follows the end of an exhausted space is decoupled from e_1."""
        steps = len(self.diagonal)
        diagonal = torch.stack(self.diagonal, 1).to("cpu", torch.float64)
        off = torch.stack(self.off, 1)[:, :-1].to("cpu", torch.float64)
        matrices = torch.diag_embed(diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        pairs = safe_eigh_many(list(matrices))
        first = torch.stack([(vectors * function(values)) @ vectors[0] for values, vectors in pairs])
        return torch.einsum("ps,psd->pd", first.to(self.basis), self.basis[:, :steps])

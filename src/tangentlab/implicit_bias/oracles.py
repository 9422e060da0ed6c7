"""What the limits of implicit bias are compared with: interpolants of least norm and separators of largest margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog, nnls
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.implicit_bias.minimizers import as_problem


def least_l2(features: Tensor, targets: Tensor) -> Tensor:
    """`argmin |beta|_2` over `X beta = y`, by the pseudo-inverse, `(d,)`; O(m^2 d)."""
    x, y = as_problem(features, targets)
    return torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]


def least_l1(features: Tensor, targets: Tensor) -> Tensor:
    """`argmin |beta|_1` over `X beta = y`, a linear program in `beta = p - q`, solved by HiGHS, `(d,)`."""
    x, y = as_problem(features, targets)
    d = x.shape[1]
    found = _program(np.ones(2 * d), equal=(np.hstack([x.numpy(), -x.numpy()]), y.numpy()))
    return torch.from_numpy(found[:d] - found[d:])


def l1_margin(features: Tensor, signs: Tensor) -> Tensor:
    """`argmin |beta|_1` over `y_i <beta, x_i> >= 1`: the largest margin in the L1 sense, a linear program, `(d,)`."""
    x, y = as_problem(features, signs)
    d, signed = x.shape[1], (y[:, None] * x).numpy()
    found = _program(np.ones(2 * d), below=(-np.hstack([signed, -signed]), -np.ones(len(y))))
    return torch.from_numpy(found[:d] - found[d:])


def l2_margin(features: Tensor, signs: Tensor) -> Tensor:
    """`argmin |beta|_2` over `y_i <beta, x_i> >= 1`, the hard-margin support vector machine without a bias, `(d,)`.

    A least-distance problem, which Lawson and Hanson reduce to one call of non-negative least squares: with
    `E = [y_i x_i; 1]` and the last unit vector e, the residual `E u - e` at its solution is beta up to a factor.

    Raises:
        SolveError: the labels are not separable.
    """
    x, y = as_problem(features, signs)
    stacked = np.vstack([(y[:, None] * x).numpy().T, np.ones(len(y))])
    target = np.eye(len(stacked))[-1]
    weights, distance = nnls(stacked, target, maxiter=30 * max(stacked.shape))
    if distance < 1e-7:
        raise SolveError(
            "No hyperplane through the origin separates the points: add a constant feature, or use other labels."
        )
    residual = stacked @ weights - target
    return torch.from_numpy(-residual[:-1] / residual[-1])


def _program(
    costs: np.ndarray,
    equal: tuple[np.ndarray, np.ndarray] | None = None,
    below: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """The minimizer of `<costs, p>` over `p >= 0` under linear constraints."""
    matrix, bound = below if below is not None else (None, None)
    equal_matrix, equal_bound = equal if equal is not None else (None, None)
    found = linprog(
        costs, A_ub=matrix, b_ub=bound, A_eq=equal_matrix, b_eq=equal_bound, bounds=(0, None), method="highs"
    )
    if not found.success:
        raise SolveError(f"The linear program has no solution ({found.message}): no predictor fits these targets.")
    return np.asarray(found.x)


@dataclass(frozen=True)
class NuclearMinimum:
    """A matrix of least nuclear norm under linear measurements, with the proof of how far from the least it may be.

    Attributes:
        matrix: W, `(rows, columns)`; it fits the measurements to rounding.
        norm: its nuclear norm.
        lower: no matrix that fits has a smaller norm than this, by the dual: `<nu, y>` with `|A^T nu|_2 <= 1`.
    """

    matrix: Tensor
    norm: float
    lower: float


def least_nuclear(
    measurements: Tensor, targets: Tensor, shape: tuple[int, int], *, gap: float = 1e-6, steps: int = 20_000
) -> NuclearMinimum:
    """`argmin |W|_*` over `<A_i, W> = y_i`, by Douglas-Rachford splitting until the duality gap is below `gap`.

    Args:
        measurements: `(m, rows * columns)`, each A_i flattened row by row (a row of the identity observes an entry).
        targets: `(m,)`.
        shape: rows and columns of W.
        gap: `(norm - lower) / norm` at which it ends.
        steps: at most; one costs a singular value decomposition and a projection.

    Raises:
        SolveError: the gap was not reached.
    """
    a, y = as_problem(measurements, targets)
    if a.shape[1] != shape[0] * shape[1]:
        raise InputError(
            f"Measurements of a matrix of shape {shape} have {shape[0] * shape[1]} columns, not {a.shape[1]}."
        )
    inverse = torch.linalg.pinv(a)
    fitted = (inverse @ y).reshape(shape)
    threshold = max(float(torch.linalg.matrix_norm(fitted, 2)) / 2, 1e-300)
    state, best = fitted.clone(), NuclearMinimum(fitted, float(torch.linalg.matrix_norm(fitted, "nuc")), 0.0)
    for step in range(steps):
        w = state - (inverse @ (a @ state.flatten() - y)).reshape(shape)
        u, s, v = torch.linalg.svd(2 * w - state, full_matrices=False)
        state = state + (u * (s - threshold).clamp_min(0)) @ v - w
        if step % 10 == 9:
            dual = inverse.t() @ ((w - state) / threshold).flatten()
            size = float(torch.linalg.matrix_norm((a.t() @ dual).reshape(shape), 2))
            lower = abs(float(dual @ y)) / max(size, 1e-300)
            norm = float(torch.linalg.matrix_norm(w, "nuc"))
            matrix, norm = (w, norm) if norm < best.norm else (best.matrix, best.norm)
            best = NuclearMinimum(matrix, norm, max(best.lower, lower))
            if best.norm - best.lower <= gap * best.norm:
                return best
    raise SolveError(
        f"The nuclear norm lies between {best.lower:.6g} and {best.norm:.6g} after {steps} steps: raise steps= or gap=."
    )

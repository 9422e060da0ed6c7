"""What the limits of implicit bias are compared with: interpolants of least norm and separators of largest margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog, nnls
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.implicit_bias.minimizers import as_problem, signed_rows


def least_l2(features: Tensor, targets: Tensor) -> Tensor:
    """`argmin |beta|_2` over `X beta = y`, by the pseudo-inverse, `(d,)`; O(m^2 d).

    Raises:
        SolveError: no beta fits the targets.
    """
    x, y = as_problem(features, targets)
    found = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
    _require_fit(x @ found, y)
    return found


def least_l1(features: Tensor, targets: Tensor) -> Tensor:
    """`argmin |beta|_1` over `X beta = y`, a linear program in `beta = p - q`, solved by HiGHS, `(d,)`."""
    x, y = as_problem(features, targets)
    return _l1_program("eq", x, y)


def l1_margin(features: Tensor, signs: Tensor) -> Tensor:
    """`argmin |beta|_1` over `y_i <beta, x_i> >= 1`: the largest margin in the L1 sense, a linear program, `(d,)`."""
    signed = signed_rows(features, signs)
    return _l1_program("ub", -signed, -signed.new_ones(len(signed)))


def l2_margin(features: Tensor, signs: Tensor) -> Tensor:
    """`argmin |beta|_2` over `y_i <beta, x_i> >= 1`, the hard-margin support vector machine without a bias, `(d,)`.

    A least-distance problem, which Lawson and Hanson reduce to one call of non-negative least squares: with
    `E = [y_i x_i; 1]` and the last unit vector e, the residual `E u - e` at its solution is beta up to a factor.

    Raises:
        SolveError: the labels are not separable.
    """
    signed = signed_rows(features, signs)
    unit = _largest(signed)
    stacked = np.vstack([(signed / unit).numpy().T, np.ones(len(signed))])
    target = np.eye(len(stacked))[-1]
    weights, distance = nonnegative_least_squares(stacked, target)
    if distance < 1e-7:
        raise SolveError(
            "No hyperplane through the origin separates the points by more than 1e-7 of their size: add a constant feature, or "
            "use other labels."
        )
    residual = stacked @ weights - target
    return torch.from_numpy(-residual[:-1] / residual[-1]) / unit


def nonnegative_least_squares(matrix: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """`argmin |matrix u - target|` over `u >= 0`, and that distance."""
    try:
        weights, distance = nnls(matrix, target, maxiter=30 * max(matrix.shape))
    except RuntimeError as error:
        raise SolveError(f"Non-negative least squares did not converge: {error} Use fewer examples.") from error
    return weights, float(distance)


def _require_fit(values: Tensor, targets: Tensor) -> None:
    """Refuse what is a least-squares solution only."""
    residual = float((values - targets).norm() / _largest(targets))
    if not residual <= 1e-6:
        raise SolveError(f"No predictor fits these targets: at best |X beta - y| / max |y| = {residual:.1e}.")


def _largest(values: Tensor) -> float:
    """The largest entry, 1 if all are zero: the unit in which solvers with absolute tolerances are given a problem."""
    return float(values.abs().max()) or 1.0


def _l1_program(kind: str, matrix: Tensor, bound: Tensor) -> Tensor:
    """The `beta = p - q` of least `sum p + q` with `matrix beta` equal to ("eq") or at most ("ub") the bound."""
    unit, size = _largest(matrix), _largest(bound)
    rows = (matrix / unit).numpy()
    constraint = {f"A_{kind}": np.hstack([rows, -rows]), f"b_{kind}": (bound / size).numpy()}
    found = linprog(np.ones(2 * rows.shape[1]), bounds=(0, None), method="highs", **constraint)
    if not found.success:
        raise SolveError(f"The linear program has no solution ({found.message}): no predictor fits these targets.")
    positive, negative = np.split(np.asarray(found.x), 2)
    return torch.from_numpy(positive - negative) * (size / unit)


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
        SolveError: no matrix fits the measurements, or the gap was not reached.
    """
    a, y = as_problem(measurements, targets)
    if a.shape[1] != shape[0] * shape[1]:
        raise InputError(
            f"Measurements of a matrix of shape {shape} have {shape[0] * shape[1]} columns, not {a.shape[1]}."
        )
    inverse = torch.linalg.pinv(a)
    fitted = (inverse @ y).reshape(shape)
    _require_fit(a @ fitted.flatten(), y)
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

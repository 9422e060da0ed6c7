"""Functions of one variable that ReLU networks represent, and the norm that weight decay gives to them.

An infinitely wide network `f(x) = sum_j a_j relu(w_j x + b_j) + c` with the least `sum_j (a_j^2 + w_j^2) / 2` has the cost
`max(int |f''|, |f'(-inf) + f'(+inf)|)` (Savarese et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from tangentlab.errors import InputError, SolveError


@dataclass(frozen=True)
class LineFunction:
    """A continuous piecewise-linear function of one variable.

    Attributes:
        kinks: increasing, `(k,)`.
        slopes: left of the first kink, between kinks, right of the last, `(k + 1,)`.
        value: at the first kink (at 0 if there is none).
    """

    kinks: Tensor
    slopes: Tensor
    value: float

    def __call__(self, x: Tensor) -> Tensor:
        """`f(x)`, in the shape of x; O(n k)."""
        anchor = float(self.kinks[0]) if len(self.kinks) else 0.0
        jumps = self.slopes.diff()
        return (
            self.value
            + float(self.slopes[0]) * (x - anchor)
            + (jumps * (x[..., None] - self.kinks).clamp_min(0)).sum(-1)
        )

    @property
    def variation(self) -> float:
        """`int |f''|`: the sum of the absolute slope jumps."""
        return float(self.slopes.diff().abs().sum())

    @property
    def ends(self) -> float:
        """`|f'(-inf) + f'(+inf)|`."""
        return abs(float(self.slopes[0] + self.slopes[-1]))

    @property
    def norm(self) -> float:
        """`max(int |f''|, |f'(-inf) + f'(+inf)|)`, the least weight decay of a network that represents f."""
        return max(self.variation, self.ends)


def line_function(outer: Tensor, inner: Tensor, biases: Tensor, offset: float = 0.0) -> LineFunction:
    """The function of `x -> sum_j a_j relu(w_j x + b_j) + c`, exactly; units at one place are added up.

    Args:
        outer: a, `(units,)`.
        inner: w, `(units,)`.
        biases: b, `(units,)`.
        offset: c.
    """
    a, w, b = (one.detach().double().flatten() for one in (outer, inner, biases))
    if not a.shape == w.shape == b.shape:
        raise InputError(f"One outer weight, inner weight and bias per unit, not {len(a)}, {len(w)} and {len(b)}.")
    flat = w == 0
    constant = offset + float((a[flat] * b[flat].clamp_min(0)).sum())
    a, w, b = a[~flat], w[~flat], b[~flat]
    places, where = torch.unique(-b / w, return_inverse=True)
    jumps = torch.zeros(len(places), dtype=torch.float64).index_add(0, where, a * w.abs())
    kept = jumps != 0
    kinks, jumps = places[kept], jumps[kept]
    left = float((a * w)[w < 0].sum())  # units with a negative inner weight are active on the far left
    slopes = left + torch.cat([torch.zeros(1, dtype=torch.float64), jumps.cumsum(0)])
    anchor = float(kinks[0]) if len(kinks) else 0.0
    return LineFunction(kinks, slopes, constant + float((a * (w * anchor + b).clamp_min(0)).sum()))


def path_cost(outer: Tensor, inner: Tensor) -> float:
    """`sum_j |a_j w_j|`: the weight decay `sum (a^2 + w^2) / 2` of the network after rescaling its units; at least the norm."""
    return float((outer.detach().double().flatten() * inner.detach().double().flatten()).abs().sum())


def least_line_norm(x: Tensor, y: Tensor) -> LineFunction:
    """An interpolant of least norm `max(int |f''|, |f'(-inf) + f'(+inf)|)`, by a linear program over the slopes.

    Kinks at the data are enough: moving a kink between two data to them changes neither the values there nor the slopes at
    the ends, and adds no variation.

    Raises:
        InputError: a place with two values.
    """
    places, values = (one.detach().to("cpu", torch.float64) for one in (x, y))
    if places.ndim != 1 or places.shape != values.shape or not bool((places + values).isfinite().all()):
        raise InputError(f"Finite places (n,) and values (n,) are needed, not {tuple(x.shape)} and {tuple(y.shape)}.")
    order = torch.argsort(places)
    places, values = places[order], values[order]
    if len(places) < 2 or bool((places.diff() <= 0).any()):
        raise InputError("At least two distinct places with one value each are needed.")
    chords = values.diff() / places.diff()
    unit = float(chords.abs().max()) or 1.0  # the solver's tolerances are absolute
    inside = (chords / unit).numpy()
    count = len(places)  # variables: slopes at both ends, jump sizes (count), norm
    costs = np.concatenate([np.zeros(2 + count), [1.0]])
    rows, bounds = [], []

    def at_most(terms: dict[int, float], bound: float) -> None:
        row = np.zeros(len(costs))
        for place, factor in terms.items():
            row[place] += factor
        rows.append(row)
        bounds.append(bound)

    for k in range(count):
        jump: dict[int, float] = {}
        constant = 0.0
        for sign, slope in ((1.0, k), (-1.0, k - 1)):
            if slope == -1:
                jump[0] = sign
            elif slope == count - 1:
                jump[1] = sign
            else:
                constant += sign * inside[slope]
        at_most({**jump, 2 + k: -1.0}, -constant)
        at_most({**{place: -factor for place, factor in jump.items()}, 2 + k: -1.0}, constant)
    at_most({**{2 + k: 1.0 for k in range(count)}, len(costs) - 1: -1.0}, 0.0)
    for sign in (1.0, -1.0):
        at_most({0: sign, 1: sign, len(costs) - 1: -1.0}, 0.0)
    free = [(None, None)] * 2 + [(0, None)] * (count + 1)
    found = linprog(costs, A_ub=np.array(rows), b_ub=np.array(bounds), bounds=free, method="highs")
    if not found.success:
        raise SolveError(f"The linear program of the norm failed: {found.message}")
    slopes = np.concatenate([found.x[:1], inside, found.x[1:2]])
    return LineFunction(places, unit * torch.from_numpy(slopes), float(values[0]))

"""Integrals of waves over simplices, as divided differences of the exponential.

By Hermite and Genocchi the mean of `e^{-i k.x}` over a simplex with corners v_0 ... v_m is m! times the divided difference of
`e^{-i t}` (in the variable -i t) at the phases `t_j = k.v_j`; a factor that is 1 at corner j and 0 at the others repeats t_j.
Divided differences are entire functions of the phases: an edge that is orthogonal to k is no special case.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from numpy.typing import NDArray

from tangentlab.spectral.complexes import Floats

Waves = NDArray[np.complex128]
NEAR = 1.0
"""Phases that are closer together than this go into a series, others into differences, which lose nothing there."""
TERMS = 20


def wave_differences(phases: Floats) -> Waves:
    """Divided differences of the exponential at `-i phases`, over the first axis: `(m + 1, ...)` to `(...)`.

    m = 0: `e^{-i t}`. m = 1: `e^{-i (t_0 + t_1) / 2} sinc((t_1 - t_0) / 2)`. Beyond, with sorted phases, the difference of two
    divided differences over `-i (t_m - t_0)`, or the series `e^{-i c} sum_n (-i)^n h_n(t - c) / (n + m)!` of complete
    homogeneous polynomials around the mean c where all phases are within `NEAR`. Error: a few roundings, everywhere.
    """
    count = len(phases)
    if count == 1:
        return np.exp(-1j * phases[0])
    ordered = np.sort(phases, axis=0) if count > 2 else phases
    middle, half = (ordered[1:] + ordered[:-1]) / 2, (ordered[1:] - ordered[:-1]) / 2
    table = np.exp(-1j * middle) * np.sinc(half / np.pi)
    for level in range(2, count):
        gap = ordered[level:] - ordered[:-level]
        near = gap < NEAR
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 1j * (table[1:] - table[:-1]) / gap
        if near.any():
            nodes = np.stack([ordered[j : len(ordered) - level + j][near] for j in range(level + 1)])
            found[near] = _series(nodes)
        table = found
    return table[0]


def _series(nodes: Floats) -> Waves:
    """The series around the mean, `(m + 1, points)` to `(points,)`."""
    m = len(nodes) - 1
    centre = nodes.mean(0)
    powers = np.zeros((TERMS, nodes.shape[1]))
    powers[0] = 1.0
    for node in nodes - centre:
        for n in range(1, TERMS):
            powers[n] += node * powers[n - 1]
    weights = np.array([(-1j) ** n / factorial(n + m) for n in range(TERMS)])
    return np.exp(-1j * centre) * (weights @ powers)

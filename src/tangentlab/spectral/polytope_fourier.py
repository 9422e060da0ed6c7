"""Fourier transforms of polytopes, `1~_P(k) = integral over P of e^{-i k.x}`, and Lemma 3.1 as it is stated.

`NetworkTransform` is the fast way to the transform of a network. `lemma_3_1` takes the paper's: the transforms of all regions
by the recursion over their faces, each with the slope of its region.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Complex, Floats
from tangentlab.spectral.divided import Waves
from tangentlab.spectral.lattice import Lattice
from tangentlab.spectral.network_fourier import NetworkTransform, frequencies
from tangentlab.spectral.partition import Partition
from tangentlab.spectral.subdivide import Subdivision

CHUNK = 1 << 20


def polytope(corners: ArrayLike) -> Complex:
    """The convex hull of points `(points, d)` as a complex of one cell with all its faces.

    A box around the points is cut by the plane of each facet of their hull (scipy's Qhull) in turn.
    """
    points = np.asarray(corners, dtype=np.float64)
    if points.ndim != 2 or len(points) < points.shape[1] + 1 or not np.isfinite(points).all():
        raise InputError(
            f"A polytope in d dimensions has at least d + 1 finite corners (points, d), got {points.shape}."
        )
    low, high = points.min(0), points.max(0)
    if points.shape[1] == 1:
        return Complex.box(low, high)
    margin = 0.5 * (high - low).max()
    cell = Complex.box(low - margin, high + margin)
    for plane in _planes(points):
        values = cell.corners @ plane[:-1] + plane[-1]
        cut = Subdivision(cell, values[:, None], np.zeros(1, dtype=np.int64))
        outside = cut.complex.centres() @ plane[:-1] + plane[-1] > 0
        if outside.all():
            raise InputError("The polytope is too thin for float64: two of its facets cannot be told apart.")
        if outside.any():
            cell = cut.complex.restricted(np.flatnonzero(~outside))
    return cell


def _planes(points: Floats) -> Floats:
    """Normals and offsets of the facets, `(facets, d + 1)`, simplices of one facet once."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        planes = ConvexHull(points).equations
    except QhullError as error:
        raise InputError("The corners of the polytope lie in a plane of fewer dimensions: it has no volume.") from error
    scale = np.append(np.ones(points.shape[1]), np.abs(points).max())
    first = np.unique(np.round(planes / scale, 10), axis=0, return_index=True)[1]
    return np.asarray(planes[first])


def polytope_transform(corners: ArrayLike, k: ArrayLike) -> Waves:
    """`integral over P of e^{-i k.x}` for the convex hull P of corners `(points, d)`, at frequencies `(..., d)`.

    Exact to roundings at every k: at k = 0 it is the volume, and frequencies orthogonal to faces, or nearly so, are no
    special case. Cost: (faces) x (frequencies).
    """
    cell = polytope(corners)
    flat, shape = frequencies(k, cell.dimension)
    return Lattice(cell).transforms(flat)[-1][:, 0].reshape(shape)


def lemma_3_1(partition: Partition, k: ArrayLike, output: int | None = None, border: bool = True) -> Waves:
    """`f~(k) = -i sum_eps (W_eps.k / k^2) 1~_{P_eps}(k)` plus the border's terms, k not 0.

    The constant is -i for the transform with `e^{-i k.x}`; the paper prints i. On a domain, outside of which f counts as 0,
    `i/k^2 sum (k.n) integral of f e^{-i k.x}` over its border is added.
    """
    flat, shape = frequencies(k, partition.dimension)
    if not flat.any(axis=1).all():
        raise InputError("Lemma 3.1 divides by k^2: at k = 0 use network_transform.")
    weights, _ = partition.scalar(output)
    lattice = Lattice(partition.complex)
    found = np.empty(len(flat), dtype=np.complex128)
    step = max(1, CHUNK // len(lattice.incidences[-1].faces))
    for start in range(0, len(flat), step):
        some = flat[start : start + step]
        regions = lattice.transforms(some)[-1]
        found[start : start + step] = -1j * ((some @ weights.T) * regions).sum(1)
    if border:
        found += 1j * NetworkTransform(partition, output).border_integrals(flat)
    return (found / (flat**2).sum(1)).reshape(shape)

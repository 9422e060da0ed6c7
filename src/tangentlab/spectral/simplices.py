"""Faces of a complex as simplices, with their volumes and normals."""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial

import numpy as np

from tangentlab.spectral.complexes import Complex, Floats, Ints, Lists


@dataclass(frozen=True)
class Simplices:
    """Simplices that fill the faces of one dimension.

    Args:
        owners: the face that each is a part of, `(simplices,)`, in order.
        corners: numbers of corners, `(simplices, dimension + 1)`.
        volumes: `(simplices,)`.
    """

    owners: Ints
    corners: Ints
    volumes: Floats


def simplices_of(complex: Complex, dimension: int) -> Simplices:
    """Every face of a dimension, cut into simplices from its corner with the lowest number.

    A facet without that corner is cut likewise, and the corner joined to its simplices. A facet has the corner if it is its
    own lowest one as well. Cost: linear in the number of simplices.
    """
    lowest = np.arange(len(complex.corners))
    parts = Lists(np.arange(len(lowest) + 1), np.arange(len(lowest)))  # of every face: places in `corners`
    corners = lowest[:, None]
    for level in range(1, dimension + 1):
        facets = complex.facets[level - 1]
        apex = np.minimum.reduceat(lowest[facets.members], facets.starts[:-1])
        owners, members = facets.gather(np.arange(len(facets)))
        away = lowest[members] != apex[owners]
        owners, members = owners[away], members[away]
        inner, part = parts.gather(members)
        corners = np.concatenate([apex[owners[inner]][:, None], corners[part]], 1)
        parts = Lists.of(owners[inner], np.arange(len(corners)), len(facets))
        lowest = apex
    owners = parts.gather(np.arange(len(parts)))[0]
    return Simplices(owners, corners, _volumes(complex.corners[corners]))


def _volumes(points: Floats) -> Floats:
    """Volumes of simplices with corners `(simplices, m + 1, d)`."""
    m = points.shape[1] - 1
    edges = points[:, 1:] - points[:, :1]
    if m == 0:
        return np.ones(len(points))
    if m == 1:
        return np.linalg.norm(edges[:, 0], axis=1)
    if m == points.shape[2]:
        return np.abs(np.linalg.det(edges)) / factorial(m)
    if m == points.shape[2] - 1:
        return np.linalg.norm(_normal(edges), axis=1) / factorial(m)
    return np.sqrt(np.abs(np.linalg.det(edges @ np.swapaxes(edges, 1, 2)))) / factorial(m)


def _normal(edges: Floats) -> Floats:
    """The vector product of d - 1 vectors, `(..., d - 1, d)` to `(..., d)`; its length is the volume that they span."""
    d = edges.shape[-1]
    keep = [[column for column in range(d) if column != i] for i in range(d)]
    minors = [np.linalg.det(edges[..., columns]) if d > 1 else np.ones(len(edges)) for columns in keep]
    return np.stack([(-1) ** i * minor for i, minor in enumerate(minors)], -1)


def wall_normals(complex: Complex, parts: Simplices) -> Floats:
    """A unit normal of every face of dimension d - 1, from its largest simplex, `(faces, d)`; 0 where it has no area."""
    order = np.lexsort((-parts.volumes, parts.owners))
    first = order[np.searchsorted(parts.owners[order], np.arange(len(complex.walls)))]
    points = complex.corners[parts.corners[first]]
    normals = _normal(points[:, 1:] - points[:, :1])
    size = np.linalg.norm(normals, axis=1, keepdims=True)
    return np.divide(normals, size, out=np.zeros_like(normals), where=size > 0)

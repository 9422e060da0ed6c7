"""Results reduced to small arrays that different processes can compare."""

from __future__ import annotations

import numpy as np

BUCKETS = 1024


def vector(size: int, seed: int) -> np.ndarray:
    """The shared random parameter vector of a given seed, float32 (every numpy version draws the same)."""
    return np.random.RandomState(seed).standard_normal(size).astype(np.float32)


def sketch(flat: np.ndarray, seed: int = 0) -> np.ndarray:
    """Count sketch of a long vector: signs drawn at random, then summed into `BUCKETS` buckets.

    Linear, and it keeps norms: the relative difference of two sketches is that of the vectors, up to a few percent.
    """
    signs = np.random.RandomState(seed).randint(0, 2, flat.size).astype(np.int8) * 2 - 1
    padded = np.zeros(-(-flat.size // BUCKETS) * BUCKETS)
    padded[: flat.size] = flat.astype(np.float64) * signs
    return padded.reshape(-1, BUCKETS).sum(0)


def deviation(value: np.ndarray, reference: np.ndarray) -> float:
    """Relative distance in the Euclidean norm; infinite when shapes differ or something is not finite."""
    if value.shape != reference.shape or not np.isfinite(value).all():
        return float("inf")
    scale = float(np.linalg.norm(reference)) or 1.0
    return float(np.linalg.norm(value.astype(np.float64) - reference.astype(np.float64))) / scale

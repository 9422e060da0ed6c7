"""Numbers that several chapters judge their claims by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def rank_correlation(x: ArrayLike, y: ArrayLike, *, least: int = 2) -> float:
    """Spearman's rank correlation; 0 where one side is constant or there are fewer than `least` points."""
    from scipy.stats import spearmanr

    pair = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(pair[0]) < least or min(np.ptp(side) for side in pair) == 0:
        return 0.0
    return float(spearmanr(*pair).statistic)

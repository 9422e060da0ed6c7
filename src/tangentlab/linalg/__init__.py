"""Linear algebra of symmetric matrices, dense or known only through their products.

Dense decompositions follow torch: eigenvalues ascending, eigenvectors as columns. Matrix-free methods take
`matvec: (vectors, dim) -> (vectors, dim)` on row-batched vectors and return vectors as rows. Every approximate result
carries an estimate of its error, every result follows the dtype and device of its input, and whatever is random takes
an optional `generator`.
"""

from tangentlab.linalg._estimate import Estimate
from tangentlab.linalg._matvec import Matvec, dense, in_batches, random_rows
from tangentlab.linalg.block_krylov import BlockKrylov, LeftPairs
from tangentlab.linalg.cg import CGReport, conjugate_gradients
from tangentlab.linalg.damped import DampedFactor, damped_factor
from tangentlab.linalg.hutchinson import hutchinson_diag, hutchinson_trace
from tangentlab.linalg.hutchpp import hutchpp
from tangentlab.linalg.lanczos import LanczosResult, lanczos
from tangentlab.linalg.low_rank import low_rank_eigh
from tangentlab.linalg.nystrom import Nystrom, nystrom
from tangentlab.linalg.orthonormalize import orthonormal_rows
from tangentlab.linalg.randomized_svd import RandomizedSVD, randomized_svd
from tangentlab.linalg.range_finder import range_finder
from tangentlab.linalg.slq import Quadrature, lanczos_quadrature, slq_logdet, slq_trace
from tangentlab.linalg.spectral_density import SpectralDensity, spectral_density
from tangentlab.linalg.symmetric import (
    psd_thin_eigh,
    rounding_rtol,
    safe_eigh,
    safe_eigh_many,
    sym_matrix_pow,
    sym_pow,
    symmetric_product,
)
from tangentlab.linalg.xtrace import xdiag, xtrace

__all__ = [
    "BlockKrylov",
    "CGReport",
    "DampedFactor",
    "Estimate",
    "LanczosResult",
    "LeftPairs",
    "Matvec",
    "Nystrom",
    "Quadrature",
    "RandomizedSVD",
    "SpectralDensity",
    "conjugate_gradients",
    "damped_factor",
    "dense",
    "hutchinson_diag",
    "hutchinson_trace",
    "hutchpp",
    "in_batches",
    "lanczos",
    "lanczos_quadrature",
    "low_rank_eigh",
    "nystrom",
    "orthonormal_rows",
    "psd_thin_eigh",
    "random_rows",
    "randomized_svd",
    "range_finder",
    "rounding_rtol",
    "safe_eigh",
    "safe_eigh_many",
    "slq_logdet",
    "slq_trace",
    "spectral_density",
    "sym_matrix_pow",
    "sym_pow",
    "symmetric_product",
    "xdiag",
    "xtrace",
]

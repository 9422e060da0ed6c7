"""Representations of matrices on parameter space, behind one interface."""

from tangentlab.objects.pmat.base import PMat, Representation
from tangentlab.objects.pmat.dense import PMatBlockDiag, PMatDense
from tangentlab.objects.pmat.diag import PMatDiag, PMatEye
from tangentlab.objects.pmat.ekfac import PMatEKFAC
from tangentlab.objects.pmat.hessian import PMatImplicitHessian
from tangentlab.objects.pmat.implicit import PMatImplicit
from tangentlab.objects.pmat.kfac import PMatKFAC
from tangentlab.objects.pmat.kronsum import PMatKronSum
from tangentlab.objects.pmat.lowrank import PMatLowRank
from tangentlab.objects.pmat.mixed import PMatMixed
from tangentlab.objects.pmat.product import PMatProduct
from tangentlab.objects.pmat.quasidiag import PMatQuasiDiag
from tangentlab.objects.pmat.sum import PMatSum

__all__ = [
    "PMat",
    "PMatBlockDiag",
    "PMatDense",
    "PMatDiag",
    "PMatEKFAC",
    "PMatEye",
    "PMatImplicit",
    "PMatImplicitHessian",
    "PMatKFAC",
    "PMatKronSum",
    "PMatLowRank",
    "PMatMixed",
    "PMatProduct",
    "PMatQuasiDiag",
    "PMatSum",
    "Representation",
]

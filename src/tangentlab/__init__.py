"""tangentlab: the laboratory for networks seen to first order in their parameters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "tangentlab.alignment.recorder": ("TangentRecorder",),
    "tangentlab.curvatures": ("GGN", "GradientCovariance", "Hessian", "KFRA"),
    "tangentlab.metrics": (
        "FIM",
        "FIM_Empirical",
        "FIM_MonteCarlo",
        "GramMatrix",
        "Jacobian",
        "NTK",
        "per_example_grad_norms",
        "per_example_grads",
    ),
    "tangentlab.objects.pmat": (
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
    ),
    "tangentlab.objects.pvector": ("PVector",),
    "tangentlab.objects.fvector": ("FVector",),
    "tangentlab.objects.fmat": ("FMat", "FMatDense", "label_kernel"),
    "tangentlab.objects.fmat_implicit": ("FMatImplicit",),
    "tangentlab.objects.matrix_free": ("Eigenpairs",),
    "tangentlab.objects.maps": (
        "PullBackDense",
        "PullBackImplicit",
        "PushForwardDense",
        "PushForwardImplicit",
    ),
    "tangentlab.engine.layout": ("LayerCollection",),
    "tangentlab.engine.likelihood": ("Binary", "Classification", "Likelihood", "LogSoftmax", "Regression"),
    "tangentlab.engine.coverage": ("check", "coverage"),
    "tangentlab.spectra": ("fisher_eigenpairs",),
    "tangentlab.engine.memory": ("memory_budget", "memory_limit", "set_memory_budget"),
    "tangentlab.engine.planner": ("plan",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import tangentlab` costs next to nothing."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tangentlab' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from tangentlab.alignment.recorder import TangentRecorder
    from tangentlab.curvatures import GGN, KFRA, GradientCovariance, Hessian
    from tangentlab.engine.coverage import check, coverage
    from tangentlab.engine.layout import LayerCollection
    from tangentlab.engine.likelihood import Binary, Classification, Likelihood, LogSoftmax, Regression
    from tangentlab.engine.memory import memory_budget, memory_limit, set_memory_budget
    from tangentlab.engine.planner import plan
    from tangentlab.metrics import (
        FIM,
        NTK,
        FIM_Empirical,
        FIM_MonteCarlo,
        GramMatrix,
        Jacobian,
        per_example_grad_norms,
        per_example_grads,
    )
    from tangentlab.objects.fmat import FMat, FMatDense, label_kernel
    from tangentlab.objects.fmat_implicit import FMatImplicit
    from tangentlab.objects.fvector import FVector
    from tangentlab.objects.maps import PullBackDense, PullBackImplicit, PushForwardDense, PushForwardImplicit
    from tangentlab.objects.matrix_free import Eigenpairs
    from tangentlab.objects.pmat import (
        PMat,
        PMatBlockDiag,
        PMatDense,
        PMatDiag,
        PMatEKFAC,
        PMatEye,
        PMatImplicit,
        PMatImplicitHessian,
        PMatKFAC,
        PMatKronSum,
        PMatLowRank,
        PMatMixed,
        PMatProduct,
        PMatQuasiDiag,
        PMatSum,
    )
    from tangentlab.objects.pvector import PVector
    from tangentlab.spectra import fisher_eigenpairs

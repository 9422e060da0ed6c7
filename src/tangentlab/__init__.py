"""tangentlab: the laboratory for networks seen to first order in their parameters."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use
from tangentlab.moved import install

__version__ = "0.1.0"

if TYPE_CHECKING:  # `as` makes a name public, which strict checkers ask for
    from tangentlab import alignment as alignment
    from tangentlab import bench as bench
    from tangentlab import curvatures as curvatures
    from tangentlab import data as data
    from tangentlab import demo as demo
    from tangentlab import engine as engine
    from tangentlab import errors as errors
    from tangentlab import experiments as experiments
    from tangentlab import figures as figures
    from tangentlab import implicit_bias as implicit_bias
    from tangentlab import information as information
    from tangentlab import kernels as kernels
    from tangentlab import layers as layers
    from tangentlab import limits as limits
    from tangentlab import linalg as linalg
    from tangentlab import linearized as linearized
    from tangentlab import metrics as metrics
    from tangentlab import models as models
    from tangentlab import objects as objects
    from tangentlab import optim as optim
    from tangentlab import parallel as parallel
    from tangentlab import recorder as recorder
    from tangentlab import spectra as spectra
    from tangentlab import spectral as spectral
    from tangentlab import testing as testing
    from tangentlab.curvatures import GGN as GGN
    from tangentlab.curvatures import KFRA as KFRA
    from tangentlab.curvatures import GradientCovariance as GradientCovariance
    from tangentlab.curvatures import Hessian as Hessian
    from tangentlab.data import load as load
    from tangentlab.engine.certificate import verify as verify
    from tangentlab.engine.check import check as check
    from tangentlab.engine.coverage import coverage as coverage
    from tangentlab.engine.layout import LayerCollection as LayerCollection
    from tangentlab.engine.likelihood import Binary as Binary
    from tangentlab.engine.likelihood import Classification as Classification
    from tangentlab.engine.likelihood import Likelihood as Likelihood
    from tangentlab.engine.likelihood import LogSoftmax as LogSoftmax
    from tangentlab.engine.likelihood import Regression as Regression
    from tangentlab.engine.memory import memory_budget as memory_budget
    from tangentlab.engine.memory import memory_limit as memory_limit
    from tangentlab.engine.memory import set_memory_budget as set_memory_budget
    from tangentlab.engine.planner import plan as plan
    from tangentlab.linearized import linearize as linearize
    from tangentlab.metrics import FIM as FIM
    from tangentlab.metrics import NTK as NTK
    from tangentlab.metrics import FIM_Empirical as FIM_Empirical
    from tangentlab.metrics import FIM_MonteCarlo as FIM_MonteCarlo
    from tangentlab.metrics import GramMatrix as GramMatrix
    from tangentlab.metrics import Jacobian as Jacobian
    from tangentlab.metrics import per_example_grad_norms as per_example_grad_norms
    from tangentlab.metrics import per_example_grads as per_example_grads
    from tangentlab.objects.fmat import FMat as FMat
    from tangentlab.objects.fmat import FMatDense as FMatDense
    from tangentlab.objects.fmat import label_kernel as label_kernel
    from tangentlab.objects.fmat_implicit import FMatImplicit as FMatImplicit
    from tangentlab.objects.fvector import FVector as FVector
    from tangentlab.objects.map_algebra import PullBack as PullBack
    from tangentlab.objects.map_algebra import PullBackSum as PullBackSum
    from tangentlab.objects.map_algebra import PushForward as PushForward
    from tangentlab.objects.map_algebra import PushForwardSum as PushForwardSum
    from tangentlab.objects.maps import PullBackDense as PullBackDense
    from tangentlab.objects.maps import PullBackImplicit as PullBackImplicit
    from tangentlab.objects.maps import PushForwardDense as PushForwardDense
    from tangentlab.objects.maps import PushForwardImplicit as PushForwardImplicit
    from tangentlab.objects.matrix_free import Eigenpairs as Eigenpairs
    from tangentlab.objects.pmat import PMat as PMat
    from tangentlab.objects.pmat import PMatBlockDiag as PMatBlockDiag
    from tangentlab.objects.pmat import PMatDense as PMatDense
    from tangentlab.objects.pmat import PMatDiag as PMatDiag
    from tangentlab.objects.pmat import PMatEKFAC as PMatEKFAC
    from tangentlab.objects.pmat import PMatEye as PMatEye
    from tangentlab.objects.pmat import PMatImplicit as PMatImplicit
    from tangentlab.objects.pmat import PMatImplicitHessian as PMatImplicitHessian
    from tangentlab.objects.pmat import PMatKFAC as PMatKFAC
    from tangentlab.objects.pmat import PMatKronSum as PMatKronSum
    from tangentlab.objects.pmat import PMatLowRank as PMatLowRank
    from tangentlab.objects.pmat import PMatMixed as PMatMixed
    from tangentlab.objects.pmat import PMatProduct as PMatProduct
    from tangentlab.objects.pmat import PMatQuasiDiag as PMatQuasiDiag
    from tangentlab.objects.pmat import PMatSum as PMatSum
    from tangentlab.objects.pvector import PVector as PVector
    from tangentlab.recorder import TangentRecorder as TangentRecorder
    from tangentlab.spectra import fisher_eigenpairs as fisher_eigenpairs
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

install()

"""What gradients can and cannot learn, what they learn first, and which optimum they choose (slides of 2019)."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.limits.corrupted_clusters import CorruptedClusters as CorruptedClusters
    from tangentlab.experiments.limits.degrees import MonomialDegrees as MonomialDegrees
    from tangentlab.experiments.limits.emulation import SGDEmulation as SGDEmulation
    from tangentlab.experiments.limits.emulator_kernel import EmulatorKernel as EmulatorKernel
    from tangentlab.experiments.limits.hidden_units import HiddenUnits as HiddenUnits
    from tangentlab.experiments.limits.infinite_width import InfiniteWidth as InfiniteWidth
    from tangentlab.experiments.limits.information_stopping import InformationStoppingRule as InformationStoppingRule
    from tangentlab.experiments.limits.junk_bound import JunkBound as JunkBound
    from tangentlab.experiments.limits.label_corruption import LabelCorruption as LabelCorruption
    from tangentlab.experiments.limits.lazy_parities import LazyParities as LazyParities
    from tangentlab.experiments.limits.loss_regimes import LossRegimes as LossRegimes
    from tangentlab.experiments.limits.matrix_completion import MatrixCompletion as MatrixCompletion
    from tangentlab.experiments.limits.optimizer_functions import OptimizerFunctions as OptimizerFunctions
    from tangentlab.experiments.limits.parity_learners import ParityLearners as ParityLearners
    from tangentlab.experiments.limits.precision import BatchPrecision as BatchPrecision
    from tangentlab.experiments.limits.predictability import CrossPredictabilities as CrossPredictabilities
    from tangentlab.experiments.limits.sparse_regression import SampleThresholds as SampleThresholds
    from tangentlab.experiments.limits.sparse_regression import SparseRegression as SparseRegression
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

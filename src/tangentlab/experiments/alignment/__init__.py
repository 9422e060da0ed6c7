"""Figures 6.1 to 6.6 and B.1 to B.8: tangent kernels that align with the task, and what it says about capacity."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.alignment.complexity import ComplexityMnist as ComplexityMnist
    from tangentlab.experiments.alignment.complexity import ComplexityVgg as ComplexityVgg
    from tangentlab.experiments.alignment.disk import DiskEigenfunctions as DiskEigenfunctions
    from tangentlab.experiments.alignment.held_out import HeldOutAlignment as HeldOutAlignment
    from tangentlab.experiments.alignment.hierarchy import DepthHierarchy as DepthHierarchy
    from tangentlab.experiments.alignment.hierarchy import EasyDifficult as EasyDifficult
    from tangentlab.experiments.alignment.initial_eigenvectors import InitialEigenvectors as InitialEigenvectors
    from tangentlab.experiments.alignment.norm_capacity import NormCapacity as NormCapacity
    from tangentlab.experiments.alignment.supernat import SuperNat as SuperNat
    from tangentlab.experiments.alignment.trained_kernel import TrainedKernel as TrainedKernel
    from tangentlab.experiments.alignment.vgg import VGGAlignment as VGGAlignment
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

"""Figures 6.1 to 6.6 and B.1 to B.8: tangent kernels that align with the task, and what it says about capacity."""

from tangentlab.experiments.alignment.complexity import ComplexityMnist, ComplexityVgg
from tangentlab.experiments.alignment.disk import DiskEigenfunctions
from tangentlab.experiments.alignment.held_out import HeldOutAlignment
from tangentlab.experiments.alignment.hierarchy import DepthHierarchy, EasyDifficult
from tangentlab.experiments.alignment.initial_eigenvectors import InitialEigenvectors
from tangentlab.experiments.alignment.norm_capacity import NormCapacity
from tangentlab.experiments.alignment.supernat import SuperNat
from tangentlab.experiments.alignment.trained_kernel import TrainedKernel
from tangentlab.experiments.alignment.vgg import VGGAlignment

__all__ = [
    "ComplexityMnist",
    "ComplexityVgg",
    "DepthHierarchy",
    "DiskEigenfunctions",
    "EasyDifficult",
    "HeldOutAlignment",
    "InitialEigenvectors",
    "NormCapacity",
    "SuperNat",
    "TrainedKernel",
    "VGGAlignment",
]

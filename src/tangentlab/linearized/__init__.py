"""Lazy training: linearized networks, their dynamics, and how far a training is from them."""

from tangentlab.kernels.dynamics import EarlyStopping, KernelDynamics
from tangentlab.kernels.eigenpairs import GramPairs, gram_eigenpairs, landmark_eigenpairs
from tangentlab.kernels.mode_dynamics import GradientDescent, GradientFlow
from tangentlab.linearized.alignments import alignments, rayleigh_quotients
from tangentlab.linearized.alpha import AlphaModel
from tangentlab.linearized.anisotropy import (
    AnisotropyDirections,
    MixedDerivative,
    anisotropy_directions,
    gradient_directions,
)
from tangentlab.linearized.anisotropy_data import direction_dataset
from tangentlab.linearized.consistency import ConsistencyProfile, ConsistencyRecipe, consistency_scores, read_c_scores
from tangentlab.linearized.eigenfunctions import Eigenfunctions, LemmaOne, chance_concentration, eigenfunctions
from tangentlab.linearized.example_groups import Groups, cue_groups, noise_groups, score_groups, with_and_without
from tangentlab.linearized.information import Diffuseness, InformationSpace, Split, information_space, stacked
from tangentlab.linearized.information_bounds import InformationBound, information_bound, small_cutoff_bound
from tangentlab.linearized.linearity import Linearity, LinearityProbe
from tangentlab.linearized.linearize import LinearizedModel, linearize
from tangentlab.linearized.progress import (
    at_progress,
    common_thresholds,
    delta_loss,
    first_crossing,
    running_best,
)
from tangentlab.linearized.quadratic import QuadraticModel, sequential_value
from tangentlab.linearized.quadratic_examples import QuadraticExample, noisy_labels, reversed_order, spurious_feature
from tangentlab.linearized.scaled_start import RegimeReading, regime_of, scaled_init
from tangentlab.linearized.spurious import add_corner_patch
from tangentlab.linearized.stepping import KernelTrajectory, kernel_descent, kernel_flow
from tangentlab.linearized.steps import Step, StepRecorder
from tangentlab.linearized.streamed import streamed_eigenpairs

__all__ = [
    "AlphaModel",
    "AnisotropyDirections",
    "ConsistencyProfile",
    "ConsistencyRecipe",
    "Diffuseness",
    "EarlyStopping",
    "Eigenfunctions",
    "GradientDescent",
    "GradientFlow",
    "GramPairs",
    "Groups",
    "InformationBound",
    "InformationSpace",
    "KernelDynamics",
    "KernelTrajectory",
    "LemmaOne",
    "Linearity",
    "LinearityProbe",
    "LinearizedModel",
    "MixedDerivative",
    "QuadraticExample",
    "QuadraticModel",
    "RegimeReading",
    "Split",
    "Step",
    "StepRecorder",
    "add_corner_patch",
    "alignments",
    "anisotropy_directions",
    "at_progress",
    "chance_concentration",
    "common_thresholds",
    "consistency_scores",
    "cue_groups",
    "delta_loss",
    "direction_dataset",
    "eigenfunctions",
    "first_crossing",
    "gradient_directions",
    "gram_eigenpairs",
    "information_bound",
    "information_space",
    "kernel_descent",
    "kernel_flow",
    "landmark_eigenpairs",
    "linearize",
    "noise_groups",
    "noisy_labels",
    "rayleigh_quotients",
    "read_c_scores",
    "regime_of",
    "reversed_order",
    "running_best",
    "scaled_init",
    "score_groups",
    "sequential_value",
    "small_cutoff_bound",
    "spurious_feature",
    "stacked",
    "streamed_eigenpairs",
    "with_and_without",
]

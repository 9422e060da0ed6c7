"""Tangent-feature alignment: what a kernel's spectrum, its alignment with the labels and its path say about a training.

Start from a kernel, `K = NTK(model, probe)`, and ask for `kernel_spectrum(K)`, `label_alignment(K, labels)`.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.alignment.complexity import LearningFlow as LearningFlow
    from tangentlab.alignment.complexity import kernel_trace as kernel_trace
    from tangentlab.alignment.directions import DirectionEffects as DirectionEffects
    from tangentlab.alignment.directions import compare_directions as compare_directions
    from tangentlab.alignment.directions import directional_effects as directional_effects
    from tangentlab.alignment.norms import comparison_measures as comparison_measures
    from tangentlab.alignment.norms import distance_from_initialization as distance_from_initialization
    from tangentlab.alignment.norms import fisher_rao_norm as fisher_rao_norm
    from tangentlab.alignment.norms import frobenius_product as frobenius_product
    from tangentlab.alignment.norms import layer_matrices as layer_matrices
    from tangentlab.alignment.norms import neyshabur_two_layer as neyshabur_two_layer
    from tangentlab.alignment.norms import parameter_norm as parameter_norm
    from tangentlab.alignment.norms import path_norm as path_norm
    from tangentlab.alignment.norms import spectral_complexity as spectral_complexity
    from tangentlab.alignment.norms import spectral_product as spectral_product
    from tangentlab.engine.weightings import RandomSigns as RandomSigns
    from tangentlab.kernels.bounds import flow_bound as flow_bound
    from tangentlab.kernels.bounds import flow_exact as flow_exact
    from tangentlab.kernels.bounds import flow_monte_carlo as flow_monte_carlo
    from tangentlab.kernels.bounds import margin_bound as margin_bound
    from tangentlab.kernels.bounds import margins as margins
    from tangentlab.kernels.bounds import multiclass_bound as multiclass_bound
    from tangentlab.kernels.bounds import multiclass_flow_bound as multiclass_flow_bound
    from tangentlab.kernels.bounds import rademacher_of_values as rademacher_of_values
    from tangentlab.kernels.bounds import ramp_loss as ramp_loss
    from tangentlab.kernels.bounds import rescaled_kernel as rescaled_kernel
    from tangentlab.kernels.modes import KernelModes as KernelModes
    from tangentlab.kernels.modes import fourier_power as fourier_power
    from tangentlab.kernels.modes import kernel_modes as kernel_modes
    from tangentlab.kernels.modes import main_frequency as main_frequency
    from tangentlab.kernels.rescaling import Rescaling as Rescaling
    from tangentlab.kernels.rescaling import interpolant_capacity as interpolant_capacity
    from tangentlab.kernels.rescaling import optimal_rescaling as optimal_rescaling
    from tangentlab.kernels.rescaling import step_rescaling as step_rescaling
    from tangentlab.kernels.similarity import Hierarchy as Hierarchy
    from tangentlab.kernels.similarity import MinibatchCKA as MinibatchCKA
    from tangentlab.kernels.similarity import cka as cka
    from tangentlab.kernels.similarity import hierarchical_alignment as hierarchical_alignment
    from tangentlab.kernels.similarity import ka as ka
    from tangentlab.kernels.similarity import kernel_distance as kernel_distance
    from tangentlab.kernels.similarity import kernel_velocity as kernel_velocity
    from tangentlab.kernels.similarity import label_alignment as label_alignment
    from tangentlab.kernels.similarity import label_features as label_features
    from tangentlab.kernels.similarity import layer_alignment as layer_alignment
    from tangentlab.kernels.similarity import representation_alignment as representation_alignment
    from tangentlab.kernels.similarity import unbiased_cka as unbiased_cka
    from tangentlab.kernels.similarity import unbiased_hsic as unbiased_hsic
    from tangentlab.kernels.spectrum import KernelSpectrum as KernelSpectrum
    from tangentlab.kernels.spectrum import estimate_spectrum as estimate_spectrum
    from tangentlab.kernels.spectrum import kernel_spectrum as kernel_spectrum
    from tangentlab.kernels.supernat import SuperNatPath as SuperNatPath
    from tangentlab.kernels.supernat import supernat_descent as supernat_descent
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

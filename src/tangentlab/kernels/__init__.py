"""Mathematics of kernels, whatever network they come from: regression, spectra, alignment, bounds, dynamics.

A kernel is a symmetric positive semi-definite matrix `(n, n)`, or any object whose `matrix()` returns one (a tangent
kernel, say). Features Phi are `(n, p)` with `K = Phi Phi^T`; targets are `(n,)`, or `(n, c)` for c outputs that
share the kernel, and every result then has the same trailing axis.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
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
    from tangentlab.kernels.dynamics import EarlyStopping as EarlyStopping
    from tangentlab.kernels.dynamics import KernelDynamics as KernelDynamics
    from tangentlab.kernels.eigenpairs import GramPairs as GramPairs
    from tangentlab.kernels.eigenpairs import gram_eigenpairs as gram_eigenpairs
    from tangentlab.kernels.eigenpairs import landmark_eigenpairs as landmark_eigenpairs
    from tangentlab.kernels.gaussian import GaussianProcess as GaussianProcess
    from tangentlab.kernels.gaussian import gaussian_process as gaussian_process
    from tangentlab.kernels.infinite_width import WideKernels as WideKernels
    from tangentlab.kernels.infinite_width import wide_convolution_kernels as wide_convolution_kernels
    from tangentlab.kernels.infinite_width import wide_mlp_kernels as wide_mlp_kernels
    from tangentlab.kernels.matrix import HasMatrix as HasMatrix
    from tangentlab.kernels.matrix import Kernel as Kernel
    from tangentlab.kernels.matrix import kernel_matrix as kernel_matrix
    from tangentlab.kernels.mode_dynamics import GradientDescent as GradientDescent
    from tangentlab.kernels.mode_dynamics import GradientFlow as GradientFlow
    from tangentlab.kernels.modes import KernelModes as KernelModes
    from tangentlab.kernels.modes import fourier_power as fourier_power
    from tangentlab.kernels.modes import kernel_modes as kernel_modes
    from tangentlab.kernels.modes import main_frequency as main_frequency
    from tangentlab.kernels.rademacher import EXACT_SIGNS_LIMIT as EXACT_SIGNS_LIMIT
    from tangentlab.kernels.rademacher import RademacherEstimate as RademacherEstimate
    from tangentlab.kernels.rademacher import empirical_generalization_bound as empirical_generalization_bound
    from tangentlab.kernels.rademacher import generalization_bound as generalization_bound
    from tangentlab.kernels.rademacher import rademacher_exact as rademacher_exact
    from tangentlab.kernels.rademacher import rademacher_monte_carlo as rademacher_monte_carlo
    from tangentlab.kernels.rademacher import rademacher_trace_bound as rademacher_trace_bound
    from tangentlab.kernels.rescaling import Rescaling as Rescaling
    from tangentlab.kernels.rescaling import interpolant_capacity as interpolant_capacity
    from tangentlab.kernels.rescaling import optimal_rescaling as optimal_rescaling
    from tangentlab.kernels.rescaling import step_rescaling as step_rescaling
    from tangentlab.kernels.ridge import feature_distances as feature_distances
    from tangentlab.kernels.ridge import lipschitz_bound as lipschitz_bound
    from tangentlab.kernels.ridge import mercer_features as mercer_features
    from tangentlab.kernels.ridge import predict as predict
    from tangentlab.kernels.ridge import ridge_dual as ridge_dual
    from tangentlab.kernels.ridge import ridge_primal as ridge_primal
    from tangentlab.kernels.ridge import rkhs_norm as rkhs_norm
    from tangentlab.kernels.risk_bounds import finite_class_bound as finite_class_bound
    from tangentlab.kernels.risk_bounds import hoeffding_bound as hoeffding_bound
    from tangentlab.kernels.risk_bounds import hoeffding_tail as hoeffding_tail
    from tangentlab.kernels.risk_bounds import margin_rademacher_bound as margin_rademacher_bound
    from tangentlab.kernels.risk_bounds import occam_bound as occam_bound
    from tangentlab.kernels.risk_bounds import pac_bayes_bound as pac_bayes_bound
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

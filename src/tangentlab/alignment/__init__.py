"""Tangent-feature alignment: what a kernel's spectrum, its alignment with the labels and its path say about a training.

Start from a kernel, ``K = NTK(model, probe)``, and ask for `kernel_spectrum(K)`, `label_alignment(K, labels)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "bounds": (
        "flow_bound",
        "flow_exact",
        "flow_monte_carlo",
        "margin_bound",
        "margins",
        "multiclass_bound",
        "multiclass_flow_bound",
        "rademacher_of_values",
        "ramp_loss",
        "rescaled_kernel",
    ),
    "complexity": ("LearningFlow", "RandomSigns", "kernel_trace"),
    "directions": ("DirectionEffects", "compare_directions", "directional_effects"),
    "modes": ("KernelModes", "fourier_power", "kernel_modes", "main_frequency"),
    "norms": (
        "comparison_measures",
        "distance_from_initialization",
        "fisher_rao_norm",
        "frobenius_product",
        "layer_matrices",
        "neyshabur_two_layer",
        "parameter_norm",
        "path_norm",
        "spectral_complexity",
        "spectral_product",
    ),
    "rescaling": ("Rescaling", "interpolant_capacity", "optimal_rescaling", "step_rescaling"),
    "recorder": ("Recording", "TangentRecorder"),
    "similarity": (
        "Hierarchy",
        "MinibatchCKA",
        "cka",
        "hierarchical_alignment",
        "ka",
        "kernel_distance",
        "kernel_velocity",
        "label_alignment",
        "label_features",
        "layer_alignment",
        "representation_alignment",
        "unbiased_cka",
        "unbiased_hsic",
    ),
    "spectrum": ("KernelSpectrum", "estimate_spectrum", "kernel_spectrum"),
    "supernat": ("SuperNatPath", "supernat_descent"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

if TYPE_CHECKING:
    from tangentlab.alignment.bounds import (
        flow_bound,
        flow_exact,
        flow_monte_carlo,
        margin_bound,
        margins,
        multiclass_bound,
        multiclass_flow_bound,
        rademacher_of_values,
        ramp_loss,
        rescaled_kernel,
    )
    from tangentlab.alignment.complexity import LearningFlow, RandomSigns, kernel_trace
    from tangentlab.alignment.directions import DirectionEffects, compare_directions, directional_effects
    from tangentlab.alignment.modes import KernelModes, fourier_power, kernel_modes, main_frequency
    from tangentlab.alignment.norms import (
        comparison_measures,
        distance_from_initialization,
        fisher_rao_norm,
        frobenius_product,
        layer_matrices,
        neyshabur_two_layer,
        parameter_norm,
        path_norm,
        spectral_complexity,
        spectral_product,
    )
    from tangentlab.alignment.recorder import Recording, TangentRecorder
    from tangentlab.alignment.rescaling import Rescaling, interpolant_capacity, optimal_rescaling, step_rescaling
    from tangentlab.alignment.similarity import (
        Hierarchy,
        MinibatchCKA,
        cka,
        hierarchical_alignment,
        ka,
        kernel_distance,
        kernel_velocity,
        label_alignment,
        label_features,
        layer_alignment,
        representation_alignment,
        unbiased_cka,
        unbiased_hsic,
    )
    from tangentlab.alignment.spectrum import KernelSpectrum, estimate_spectrum, kernel_spectrum
    from tangentlab.alignment.supernat import SuperNatPath, supernat_descent

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a part when it is first used."""
    if name in _MODULE_OF:
        return getattr(import_module(f"tangentlab.alignment.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Spectral bias: low frequencies are learnt first, last longest, and are high on curved data (Rahaman, Baratin et al. 2019)."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.spectral.connected_classes import ConnectedClasses as ConnectedClasses
    from tangentlab.experiments.spectral.decay_exponents import DecayExponents as DecayExponents
    from tangentlab.experiments.spectral.delta_peak import DeltaPeak as DeltaPeak
    from tangentlab.experiments.spectral.flower_frequencies import FlowerFrequencies as FlowerFrequencies
    from tangentlab.experiments.spectral.flower_labels import FlowerLabels as FlowerLabels
    from tangentlab.experiments.spectral.frequency_order import FrequencyOrder as FrequencyOrder
    from tangentlab.experiments.spectral.kernel_frequencies import KernelFrequencies as KernelFrequencies
    from tangentlab.experiments.spectral.kernel_noise import KernelNoise as KernelNoise
    from tangentlab.experiments.spectral.manifold_noise import ManifoldNoise as ManifoldNoise
    from tangentlab.experiments.spectral.nearest_neighbours import NearestNeighbours as NearestNeighbours
    from tangentlab.experiments.spectral.perturbed_frequencies import PerturbedFrequencies as PerturbedFrequencies
    from tangentlab.experiments.spectral.radial_noise import RadialNoise as RadialNoise
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

"""Spectral bias: what a network learns first, measured in frequencies, and the spectra of networks themselves.

Networks learn low frequencies before high ones (Rahaman, Baratin et al. 2019). Here are the spectra in which this is seen,
the regions on which a piecewise-linear network is affine, and its exact Fourier transform.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.spectral.boundary import Boundary as Boundary
    from tangentlab.spectral.boundary import decision_boundary as decision_boundary
    from tangentlab.spectral.bounds import LipschitzChain as LipschitzChain
    from tangentlab.spectral.bounds import clip_weights as clip_weights
    from tangentlab.spectral.bounds import lipschitz_chain as lipschitz_chain
    from tangentlab.spectral.bounds import spectral_norm as spectral_norm
    from tangentlab.spectral.composition import composition_kernel as composition_kernel
    from tangentlab.spectral.composition import latent_reach as latent_reach
    from tangentlab.spectral.composition import stationary_points as stationary_points
    from tangentlab.spectral.cuts import cut_rectangle as cut_rectangle
    from tangentlab.spectral.cuts import cut_segment as cut_segment
    from tangentlab.spectral.cuts import cut_triangle as cut_triangle
    from tangentlab.spectral.decay import Decay as Decay
    from tangentlab.spectral.decay import decay_along as decay_along
    from tangentlab.spectral.decay import envelope_slope as envelope_slope
    from tangentlab.spectral.discrete import RadialSpectrum as RadialSpectrum
    from tangentlab.spectral.discrete import amplitudes as amplitudes
    from tangentlab.spectral.discrete import discrete_spectrum as discrete_spectrum
    from tangentlab.spectral.discrete import radial_spectrum as radial_spectrum
    from tangentlab.spectral.kernel_basis import KernelBasis as KernelBasis
    from tangentlab.spectral.kernel_basis import band_norms as band_norms
    from tangentlab.spectral.kernel_basis import gaussian_kernel as gaussian_kernel
    from tangentlab.spectral.kernel_basis import index_bands as index_bands
    from tangentlab.spectral.kernel_basis import wave_rates as wave_rates
    from tangentlab.spectral.lattice import Lattice as Lattice
    from tangentlab.spectral.modes import Volume as Volume
    from tangentlab.spectral.modes import continued_transform as continued_transform
    from tangentlab.spectral.modes import high_frequency_volume as high_frequency_volume
    from tangentlab.spectral.modes import mode_velocities as mode_velocities
    from tangentlab.spectral.modes import parameter_gradients as parameter_gradients
    from tangentlab.spectral.neighbours import neighbour_probabilities as neighbour_probabilities
    from tangentlab.spectral.network_fourier import NetworkTransform as NetworkTransform
    from tangentlab.spectral.network_fourier import kink_transform as kink_transform
    from tangentlab.spectral.network_fourier import kinks as kinks
    from tangentlab.spectral.network_fourier import network_transform as network_transform
    from tangentlab.spectral.partition import Frame as Frame
    from tangentlab.spectral.partition import Partition as Partition
    from tangentlab.spectral.paths import Path as Path
    from tangentlab.spectral.paths import connecting_path as connecting_path
    from tangentlab.spectral.patterns import Region as Region
    from tangentlab.spectral.patterns import activation_pattern as activation_pattern
    from tangentlab.spectral.patterns import region_affine as region_affine
    from tangentlab.spectral.patterns import region_halfspaces as region_halfspaces
    from tangentlab.spectral.patterns import region_of as region_of
    from tangentlab.spectral.perturbed import perturbed_spectrum as perturbed_spectrum
    from tangentlab.spectral.picture import draw_partition as draw_partition
    from tangentlab.spectral.picture import partition_picture as partition_picture
    from tangentlab.spectral.polytope_fourier import lemma_3_1 as lemma_3_1
    from tangentlab.spectral.polytope_fourier import polytope as polytope
    from tangentlab.spectral.polytope_fourier import polytope_transform as polytope_transform
    from tangentlab.spectral.regions import enumerate_regions as enumerate_regions
    from tangentlab.spectral.search import search_regions as search_regions
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

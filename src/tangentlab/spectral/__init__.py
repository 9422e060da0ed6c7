"""Spectral bias: what a network learns first, measured in frequencies, and the spectra of networks themselves.

Networks learn low frequencies before high ones (Rahaman, Baratin et al. 2019). Here are the spectra in which this is seen.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.spectral.composition import composition_kernel as composition_kernel
    from tangentlab.spectral.composition import latent_reach as latent_reach
    from tangentlab.spectral.composition import stationary_points as stationary_points
    from tangentlab.spectral.discrete import RadialSpectrum as RadialSpectrum
    from tangentlab.spectral.discrete import amplitudes as amplitudes
    from tangentlab.spectral.discrete import discrete_spectrum as discrete_spectrum
    from tangentlab.spectral.discrete import radial_spectrum as radial_spectrum
    from tangentlab.spectral.kernel_basis import KernelBasis as KernelBasis
    from tangentlab.spectral.kernel_basis import band_norms as band_norms
    from tangentlab.spectral.kernel_basis import gaussian_kernel as gaussian_kernel
    from tangentlab.spectral.kernel_basis import index_bands as index_bands
    from tangentlab.spectral.kernel_basis import wave_rates as wave_rates
    from tangentlab.spectral.perturbed import perturbed_spectrum as perturbed_spectrum
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

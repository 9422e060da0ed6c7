"""Figures 3.3 to 3.7: Fisher matrices and tangent kernels of deep networks, how well they do and what they cost."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.metrics.fim_quality import FimQuality as FimQuality
    from tangentlab.experiments.metrics.ntk_evolution import NTKEvolution as NTKEvolution
    from tangentlab.experiments.metrics.representation_costs import RepresentationCosts as RepresentationCosts
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

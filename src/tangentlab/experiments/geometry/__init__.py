"""Figure 2.1 and equation 2.4.12: distances between functions, and the Fisher matrix that measures small ones."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.geometry.kl_expansion import KLExpansion as KLExpansion
    from tangentlab.experiments.geometry.parameter_distance import ParameterDistance as ParameterDistance
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

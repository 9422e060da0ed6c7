"""Mutual information: how well it is estimated, and what raising or lowering it does (Belghazi, Baratin et al. 2018)."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.information.ali_gaussians import AliGaussians as AliGaussians
    from tangentlab.experiments.information.ali_mnist import AliMnist as AliMnist
    from tangentlab.experiments.information.equitability import Equitability as Equitability
    from tangentlab.experiments.information.gan_modes import GanModes as GanModes
    from tangentlab.experiments.information.gaussian_information import GaussianInformation as GaussianInformation
    from tangentlab.experiments.information.information_bottleneck import InformationBottleneck as InformationBottleneck
    from tangentlab.experiments.information.self_consistency import SelfConsistency as SelfConsistency
    from tangentlab.experiments.information.stacked_mnist import StackedMnist as StackedMnist
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

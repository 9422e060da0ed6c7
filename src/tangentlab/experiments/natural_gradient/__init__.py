"""Figures 4.1 to 4.6 and A.1 to A.5: natural gradient by Kronecker factors and their eigenbasis."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.natural_gradient.amortization import Amortization as Amortization
    from tangentlab.experiments.natural_gradient.autoencoder import AutoencoderOptimizers as AutoencoderOptimizers
    from tangentlab.experiments.natural_gradient.convolutional import Resnet34Optimizers as Resnet34Optimizers
    from tangentlab.experiments.natural_gradient.convolutional import Vgg11Optimizers as Vgg11Optimizers
    from tangentlab.experiments.natural_gradient.eigenbasis import KfacEigenbasis as KfacEigenbasis
    from tangentlab.experiments.natural_gradient.ellipse import RescalingEllipse as RescalingEllipse
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

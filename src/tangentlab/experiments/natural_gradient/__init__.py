"""Figures 4.1 to 4.6 and A.1 to A.5: natural gradient by Kronecker factors and their eigenbasis."""

from tangentlab.experiments.natural_gradient.amortization import Amortization
from tangentlab.experiments.natural_gradient.autoencoder import AutoencoderOptimizers
from tangentlab.experiments.natural_gradient.convolutional import Resnet34Optimizers, Vgg11Optimizers
from tangentlab.experiments.natural_gradient.eigenbasis import KfacEigenbasis
from tangentlab.experiments.natural_gradient.ellipse import RescalingEllipse

__all__ = [
    "Amortization",
    "AutoencoderOptimizers",
    "KfacEigenbasis",
    "RescalingEllipse",
    "Resnet34Optimizers",
    "Vgg11Optimizers",
]

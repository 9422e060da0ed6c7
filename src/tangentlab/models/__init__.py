"""The networks of the papers, small and plain, with the initializations that the papers use.

Images are `(examples, channels, height, width)`, tokens `(examples, positions)`; outputs are logits with the example
axis first. No layer works in place, no module is used twice except where the weights are tied on purpose.
"""

from tangentlab.models.autoencoder import AutoEncoder
from tangentlab.models.fixed_output import FixedOutputMLP
from tangentlab.models.generative import ConvDiscriminator, ConvEncoder, ConvGenerator
from tangentlab.models.gpt import GPT
from tangentlab.models.init import fan_in_normal_, glorot_
from tangentlab.models.lenet import LeNet5
from tangentlab.models.lstm import LSTMClassifier
from tangentlab.models.mlp import MLP
from tangentlab.models.pretrained import imagenet_resnet18
from tangentlab.models.resnet import ResNet, ResNet18, ResNet20, ResNet34, ResNet50
from tangentlab.models.vgg import VGG, VGG11, VGG13, VGG16, VGG19
from tangentlab.models.wide import WideMLP

__all__ = [
    "GPT",
    "MLP",
    "VGG",
    "VGG11",
    "VGG13",
    "VGG16",
    "VGG19",
    "AutoEncoder",
    "ConvDiscriminator",
    "ConvEncoder",
    "ConvGenerator",
    "FixedOutputMLP",
    "LSTMClassifier",
    "LeNet5",
    "ResNet",
    "ResNet18",
    "ResNet20",
    "ResNet34",
    "ResNet50",
    "WideMLP",
    "fan_in_normal_",
    "glorot_",
    "imagenet_resnet18",
]

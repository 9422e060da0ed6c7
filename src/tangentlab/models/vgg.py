"""VGG networks with the one-layer head used on small images."""

from typing import TypedDict, Unpack

from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive, make_activation
from tangentlab.models.init import initialize_plain_

CONVOLUTIONS_PER_STAGE: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


class VGGOptions(TypedDict, total=False):
    """Arguments that all depths share; `VGG` explains them."""

    base: int
    batch_norm: bool
    in_channels: int
    activation: Activation
    image_size: int


class VGG(nn.Module):
    """Stages of 3x3 convolutions, each stage ended by 2x2 max pooling, then a global average and one dense layer.

    Simonyan & Zisserman (2015), with `base * (1, 2, 4, 8, 8)` channels. Weights are He-normal, those of the first layer
    LeCun-normal, biases zero, which lets the network train without batch norm as well.

    Each pooling halves the image, and a 3x3 convolution of a single pixel sees one ninth of its fan-in, the rest being
    padding: without batch norm four of them divide the variance by 9^4. `image_size` below 32 therefore leaves out the
    first poolings, so that the last stage gets 2x2 pixels at any size. Images of other sizes than announced pass, too.

    Args:
        depth: 11, 13, 16 or 19.
        n_classes: number of outputs.
        base: channels of the first stage.
        batch_norm: whether batch norm follows each convolution.
        in_channels: channels of the images.
        activation: a name or a module class.
        image_size: pixels of the images for which the poolings are chosen.

    Shapes:
        `(examples, in_channels, height, width)` to `(examples, n_classes)`.
    """

    def __init__(
        self,
        depth: int,
        n_classes: int = 10,
        base: int = 64,
        batch_norm: bool = False,
        in_channels: int = 3,
        activation: Activation = "relu",
        image_size: int = 32,
    ) -> None:
        super().__init__()
        check_positive(n_classes=n_classes, base=base, in_channels=in_channels, image_size=image_size)
        if depth not in CONVOLUTIONS_PER_STAGE:
            raise InputError(
                f"The argument depth is one of {', '.join(map(str, CONVOLUTIONS_PER_STAGE))}, got {depth!r}."
            )
        modules: list[nn.Module] = []
        channels, left_out = in_channels, max(0, 6 - image_size.bit_length())
        for stage, (multiple, count) in enumerate(zip((1, 2, 4, 8, 8), CONVOLUTIONS_PER_STAGE[depth], strict=True)):
            for _ in range(count):
                modules.append(nn.Conv2d(channels, multiple * base, 3, padding=1))
                channels = multiple * base
                modules += [nn.BatchNorm2d(channels)] if batch_norm else []
                modules.append(make_activation(activation))
            if stage >= left_out:
                # ceil_mode leaves a single pixel as it is instead of failing.
                modules.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*modules)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, n_classes)
        initialize_plain_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self.classifier(self.pool(self.features(x)).flatten(1))


def VGG11(n_classes: int = 10, **options: Unpack[VGGOptions]) -> VGG:
    """Return a `VGG` with 8 convolutions."""
    return VGG(11, n_classes, **options)


def VGG13(n_classes: int = 10, **options: Unpack[VGGOptions]) -> VGG:
    """Return a `VGG` with 10 convolutions."""
    return VGG(13, n_classes, **options)


def VGG16(n_classes: int = 10, **options: Unpack[VGGOptions]) -> VGG:
    """Return a `VGG` with 13 convolutions."""
    return VGG(16, n_classes, **options)


def VGG19(n_classes: int = 10, **options: Unpack[VGGOptions]) -> VGG:
    """Return a `VGG` with 16 convolutions."""
    return VGG(19, n_classes, **options)

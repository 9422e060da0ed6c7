"""LeNet5, in the two forms that the literature calls by this name."""

from typing import Literal

from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive, make_activation


class LeNet5(nn.Module):
    """Two 5x5 convolutions (6 and 16 channels), each with an activation and 2x2 average pooling, then 120-84-classes.

    `"same"` pads both convolutions, so that images of 32 pixels reach the dense layers as 8x8 pixels of 16 channels.
    `"classic"` (LeCun et al. 1998) pads nothing, except images of 28 pixels to 32; the dense layers get 5x5 pixels.

    Args:
        in_channels: channels of the images.
        image_size: pixels of a side of the (square) images, such as 28 or 32.
        n_classes: number of outputs.
        activation: a name or a module class; LeCun's own was a scaled `"tanh"`.
        padding: `"same"` or `"classic"`.

    Shapes:
        `(examples, in_channels, image_size, image_size)` to `(examples, n_classes)`.
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        n_classes: int = 10,
        activation: Activation = "relu",
        padding: Literal["same", "classic"] = "same",
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, image_size=image_size, n_classes=n_classes)
        if padding not in ("same", "classic"):
            raise InputError(f"The argument padding is 'same' or 'classic', got {padding!r}.")
        pads = (2, 2) if padding == "same" else (2 if image_size == 28 else 0, 0)
        side = image_size
        for pad in pads:
            side = (side + 2 * pad - 4) // 2
        if side < 1:
            raise InputError(f"Images of {image_size} pixels are too small for LeNet5 with padding={padding!r}.")
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=pads[0]),
            make_activation(activation),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5, padding=pads[1]),
            make_activation(activation),
            nn.AvgPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * side**2, 120),
            make_activation(activation),
            nn.Linear(120, 84),
            make_activation(activation),
            nn.Linear(84, n_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self.classifier(self.features(x).flatten(1))

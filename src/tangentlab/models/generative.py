"""Convolutional generators, discriminators and encoders in the manner of DCGAN (Belghazi, Baratin et al. 2018, appendix C).

Kernels of 5 (or another odd number), stride 2, "same" padding. The numbers of feature maps are parameters; with those of the
paper the tables are

| table | network |
|---|---|
| C.1 | `ConvGenerator(100, (512, 256, 128, 64), (2, 4, 7, 14, 28), channels=3)` |
| C.2 | `ConvDiscriminator(3, 28, (64, 128, 256, 512), activation="relu")` |
| C.4 | `ConvEncoder(1, 28, (64, 128, 256), noise=128, latent=128)` |
| C.5 | `ConvGenerator(128, (256, 128, 64), (4, 7, 14, 28), channels=1)` |
| C.6 | `ConvDiscriminator(1, 28, (64, 128, 256), latent=128, head=1024)` |
| C.8 | `ConvEncoder(3, 64, (64, 128, 256, 512), noise=256, latent=256)` |
| C.9 | `ConvGenerator(256, (512, 256, 128, 64), (4, 8, 16, 32, 64), channels=3)` |
| C.10 | `ConvDiscriminator(3, 64, (64, 128, 256, 512), latent=256, head=1024)` |

The statistics networks C.3, C.7, C.11 and C.12 are critics: `tangentlab.information.Convolutional` and `Concatenated`. The
tables do not say where batch normalization goes: it is after every layer, as in DCGAN, but the first of a discriminator and
the last of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive, make_activation

LEAKY = partial(nn.LeakyReLU, 0.2)


class ConvGenerator(nn.Module):
    """A linear layer to the smallest image, then transposed convolutions to the largest; tanh at the end.

    Args:
        latent: entries of z.
        maps: feature maps of the images of all sizes but the last; where there are as many as sizes, the last ones are
            mapped to the channels by a convolution that keeps the size.
        sizes: pixels on a side; each is twice the one before, or one less.
        channels: of the images.
        batch_norm: after all layers but the last.
        kernel: pixels of a kernel, odd.

    Shapes:
        `(examples, latent)` to `(examples, channels, sizes[-1], sizes[-1])`, values in [-1, 1].
    """

    def __init__(
        self,
        latent: int,
        maps: Sequence[int],
        sizes: Sequence[int],
        channels: int,
        batch_norm: bool = True,
        kernel: int = 5,
    ) -> None:
        super().__init__()
        check_positive(
            latent=latent, channels=channels, **{f"maps[{place}]": count for place, count in enumerate(maps)}
        )
        if len(sizes) - len(maps) not in (0, 1) or any(
            2 * small - large not in (0, 1) for small, large in pairwise(sizes)
        ):
            raise InputError(
                f"{len(maps)} sets of feature maps need as many sizes or one more, each twice the last or one less: {sizes}."
            )
        self.start = (maps[0], sizes[0], sizes[0])
        self.linear = nn.Linear(latent, maps[0] * sizes[0] ** 2)
        layers: list[nn.Module] = [*_normed(maps[0], batch_norm), nn.ReLU()]
        half = kernel // 2
        for (before, after), (small, large) in zip(pairwise((*maps, channels)), pairwise(sizes), strict=False):
            grow = large - 2 * small + 1
            layers.append(nn.ConvTranspose2d(before, after, kernel, stride=2, padding=half, output_padding=grow))
            layers += [*_normed(after, batch_norm), nn.ReLU()]
        if len(sizes) == len(maps):
            layers.append(nn.Conv2d(maps[-1], channels, kernel, padding=half))
        else:
            layers = layers[: -2 if batch_norm else -1]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        """Images of a batch of codes."""
        return self.layers(self.linear(z).view(-1, *self.start))


class ConvDiscriminator(nn.Module):
    """Convolutions, and one logit; the probability of the papers is its sigmoid.

    Args:
        channels, pixels: of the images.
        maps: feature maps of every convolution.
        latent: entries of a z that is joined to the flattened features; 0 for none.
        head: units of a layer between features and logit; 0 for none.
        activation: after every layer.
        batch_norm: after all convolutions but the first.
        packed: images that are judged together, as further channels (PacGAN).
        kernel: pixels of a kernel, odd.
        norm_first: batch norm after the first convolution as well.

    Shapes:
        `(examples, packed * channels, pixels, pixels)`, and `(examples, latent)`, to `(examples,)`.
    """

    def __init__(
        self,
        channels: int,
        pixels: int,
        maps: Sequence[int],
        latent: int = 0,
        head: int = 0,
        activation: Activation = LEAKY,
        batch_norm: bool = True,
        packed: int = 1,
        kernel: int = 5,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.features, size = _convolutions(
            packed * channels,
            pixels,
            maps,
            activation,
            [batch_norm and norm_first, *[batch_norm] * (len(maps) - 1)],
            kernel,
        )
        flat = maps[-1] * size**2 + latent
        hidden = [nn.Linear(flat, head), make_activation(activation)] if head else []
        self.latent, self.head = latent, nn.Sequential(*hidden, nn.Linear(head or flat, 1))

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Logits that the examples are real."""
        flat = self.features(x).flatten(1)
        if (z is None) == bool(self.latent):
            raise InputError(
                f"This discriminator has {self.latent} latent entries: z is needed just where there are some."
            )
        return self.head(flat if z is None else torch.cat([flat, z], 1))[:, 0]


class ConvEncoder(nn.Module):
    """Images with Gaussian noise as further channels, every entry of it a constant image, to codes.

    Args:
        channels, pixels: of the images.
        maps: feature maps of the convolutions; one more, over all that is left of the image, has as many as the last.
        noise: entries of the noise.
        latent: entries of the code.
        batch_norm: after every convolution.

    Shapes:
        `(examples, channels, pixels, pixels)`, and noise `(examples, noise)`, drawn where it is not given, to
        `(examples, latent)`.
    """

    def __init__(
        self, channels: int, pixels: int, maps: Sequence[int], noise: int, latent: int, batch_norm: bool = True
    ) -> None:
        super().__init__()
        self.noise = noise
        self.features, size = _convolutions(channels + noise, pixels, maps, "relu", [batch_norm] * len(maps))
        whole = nn.Conv2d(maps[-1], maps[-1], size)
        self.head = nn.Sequential(
            whole, *_normed(maps[-1], batch_norm), nn.ReLU(), nn.Flatten(), nn.Linear(maps[-1], latent)
        )

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Codes of a batch of images."""
        noise = torch.randn(len(x), self.noise, dtype=x.dtype, device=x.device) if noise is None else noise
        tiled = noise[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return self.head(self.features(torch.cat([x, tiled], 1)))


def _convolutions(
    channels: int, pixels: int, maps: Sequence[int], activation: Activation, norms: Sequence[bool], kernel: int = 5
) -> tuple[nn.Sequential, int]:
    """Halving convolutions, each with or without batch norm, and the size of the images that they leave."""
    check_positive(channels=channels, pixels=pixels, **{f"maps[{place}]": count for place, count in enumerate(maps)})
    layers: list[nn.Module] = []
    for (before, after), norm in zip(pairwise((channels, *maps)), norms, strict=True):
        layers.append(nn.Conv2d(before, after, kernel, stride=2, padding=kernel // 2))
        layers += [*_normed(after, norm), make_activation(activation)]
        pixels = (pixels + 1) // 2
    return nn.Sequential(*layers), pixels


def _normed(maps: int, batch_norm: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(maps)] if batch_norm else []

"""Critics: networks `T(x, z)` that score pairs. One that splits into `f(x) . g(z)` scores all pairs by a matrix product.

Such a critic has a method `factors(x, z)`: `(n, k)` and `(m, k)` with `T(x_i, z_j)` as their products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models import MLP
from tangentlab.models.arguments import Activation, make_activation


class Separable(nn.Module):
    """`T(x, z) = f(x) . g(z) + a(x) + b(z)` with two MLPs: all n m scores cost n + m passes and one matrix product.

    Args:
        x_features, z_features: entries of an example, flattened.
        hidden: widths of the hidden layers of both networks.
        embedding: number of products.
        activation: by name or class.
    """

    def __init__(
        self,
        x_features: int,
        z_features: int,
        hidden: Sequence[int] = (256, 256),
        embedding: int = 32,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.left = MLP((x_features, *hidden, embedding + 1), activation)
        self.right = MLP((z_features, *hidden, embedding + 1), activation)

    def factors(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """`(n, embedding + 2)` and `(m, embedding + 2)`, whose products are the scores."""
        return _with_own_terms(self.left(x), self.right(z))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scores of pairs, `(n,)`."""
        left, right = self.factors(x, z)
        return (left * right).sum(1)


class Bilinear(nn.Module):
    """`T(x, z) = x^T W z + a . x + b . z`, linear in its parameters, which start at 0."""

    def __init__(self, x_features: int, z_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(x_features, z_features))
        self.left = nn.Linear(x_features, 1)
        self.right = nn.Linear(z_features, 1)
        for side in (self.left, self.right):
            nn.init.zeros_(side.weight)
            nn.init.zeros_(side.bias)

    def factors(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """`(n, features of z + 2)` and `(m, features of z + 2)`, whose products are the scores."""
        x, z = x.flatten(1), z.flatten(1)
        left = torch.cat([self.left(x), x @ self.weight], 1)
        return _with_own_terms(left, torch.cat([self.right(z), z], 1))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scores of pairs, `(n,)`."""
        left, right = self.factors(x, z)
        return (left * right).sum(1)


def _with_own_terms(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The first columns a and b become terms of their own: [a, 1, rest] . [1, b, rest]."""
    one, other = torch.ones_like(left[:, :1]), torch.ones_like(right[:, :1])
    return torch.cat([left[:, :1], one, left[:, 1:]], 1), torch.cat([other, right[:, :1], right[:, 1:]], 1)


class Concatenated(nn.Module):
    """An MLP on `[x, z]`, with Gaussian noise on its input and hidden layers while it is in training mode, where asked for.

    The statistics network of the information bottleneck (table C.12) is `Concatenated(x, z, (512, 512), "elu",
    noise=(0.3, 0.5, 0.5))`.

    Args:
        x_features, z_features: entries of an example, flattened.
        hidden: widths of the hidden layers.
        activation: by name or class.
        noise: standard deviations on the input and after every hidden layer; empty for none.
    """

    def __init__(
        self,
        x_features: int,
        z_features: int,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        noise: Sequence[float] = (),
    ) -> None:
        super().__init__()
        if noise and (len(noise) != len(hidden) + 1 or min(noise) < 0):
            raise InputError(
                f"Noise needs {len(hidden) + 1} standard deviations, for the input and every hidden layer."
            )
        layers = list(MLP((x_features + z_features, *hidden, 1), activation).layers)
        if noise:  # an MLP is linear, activation, ..., linear: noise goes before every linear map
            layers = [
                part
                for place, layer in enumerate(layers)
                for part in ([GaussianNoise(noise[place // 2]), layer] if place % 2 == 0 else [layer])
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scores of pairs, `(n,)`."""
        return self.layers(torch.cat([x.flatten(1), z.flatten(1)], 1))[:, 0]


class GaussianNoise(nn.Module):
    """Adds noise of the given standard deviation in training mode, nothing in evaluation mode."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        """`x + deviation * noise`."""
        return x + self.deviation * torch.randn_like(x) if self.training and self.deviation else x


class Convolutional(nn.Module):
    """Images against vectors: convolutions on x, and z as a *dynamic bias*, a linear map of it added to every feature map.

    Table C.3 is `Convolutional(3, 28, features, (16, 32, 64), head=1024)`, table C.7
    `Convolutional(1, 28, features, (64, 128, 256), activation=nn.LeakyReLU)`, table C.11
    `Convolutional(3, 64, features, (16, 32, 64, 128))`: kernels of 5, stride 2, "same" padding.

    Args:
        channels, pixels: of the images, `(n, channels, pixels, pixels)`.
        z_features: entries of z, flattened.
        maps: feature maps of every convolution.
        head: width of a linear layer before the last one; 0 for none.
        activation: after every convolution, by name or class.
    """

    def __init__(
        self,
        channels: int,
        pixels: int,
        z_features: int,
        maps: Sequence[int] = (16, 32, 64),
        head: int = 0,
        activation: Activation = "elu",
    ) -> None:
        super().__init__()
        self.activation = make_activation(activation)
        self.convolutions = nn.ModuleList()
        for before, after in zip((channels, *maps), maps, strict=False):
            self.convolutions.append(nn.Conv2d(before, after, 5, stride=2, padding=2))
            pixels = (pixels + 1) // 2
        self.biases = nn.ModuleList(nn.Linear(z_features, count, bias=False) for count in maps)
        flat = maps[-1] * pixels * pixels
        self.head = nn.Sequential(nn.Linear(flat, head), nn.Linear(head, 1)) if head else nn.Linear(flat, 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scores of pairs, `(n,)`."""
        z = z.flatten(1)
        for convolution, bias in zip(self.convolutions, self.biases, strict=True):
            x = self.activation(convolution(x) + bias(z)[:, :, None, None])
        return self.head(x.flatten(1))[:, 0]

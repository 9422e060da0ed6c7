"""The information bottleneck: three noisy encoders, and the variational bound of DVB on what they let through.

`L = H(Y | Z) + beta I(X; Z)`: a cross-entropy of a decoder of z, plus beta times an estimate of the information. MINE
estimates it from samples of any encoder; the deep variational bottleneck bounds it by `E KL(q(z | x) || N(0, I))`, which
needs a density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from tangentlab.models import MLP
from tangentlab.models.arguments import check_positive


@dataclass(frozen=True)
class Encoded:
    """Codes of a batch, `(n, latent)`, and, where there is a density, their rate `KL(q(z | x) || N(0, I))`, `(n,)`."""

    z: Tensor
    rate: Tensor | None = None


class GaussianEncoder(nn.Module):
    """`z = mu(x) + sigma(x) N(0, I)` with `sigma = softplus(raw - 5)` (Alemi et al. 2016); z = mu(x) in evaluation mode.

    Args:
        features: entries of x, flattened.
        hidden: widths of the hidden layers.
        latent: entries of z.
        input_noise: standard deviation of Gaussian noise on the input, while training.
    """

    def __init__(
        self, features: int, hidden: Sequence[int] = (1024, 1024), latent: int = 256, input_noise: float = 0.0
    ) -> None:
        super().__init__()
        check_positive(latent=latent)
        self.network, self.input_noise = MLP((features, *hidden, 2 * latent)), input_noise

    def forward(self, x: Tensor) -> Encoded:
        """Codes, and their rate."""
        mean, raw = self.network(_noisy(x.flatten(1), self.input_noise if self.training else 0.0)).chunk(2, 1)
        sigma = softplus(raw - 5)
        rate = 0.5 * (mean**2 + sigma**2 - 1).sum(1) - sigma.log().sum(1)
        return Encoded(_noisy(mean, sigma) if self.training else mean, rate)


class AdditiveEncoder(nn.Module):
    """`z = enc(x + sigma N(0, I))`; no noise in evaluation mode.

    Args:
        features: entries of x, flattened.
        hidden: widths of the hidden layers.
        latent: entries of z.
        sigma: standard deviation of the noise.
    """

    def __init__(
        self, features: int, hidden: Sequence[int] = (1024, 1024), latent: int = 256, sigma: float = 0.3
    ) -> None:
        super().__init__()
        self.network, self.sigma = MLP((features, *hidden, latent)), sigma

    def forward(self, x: Tensor) -> Encoded:
        """Codes without a rate: their density is not known."""
        return Encoded(self.network(_noisy(x.flatten(1), self.sigma if self.training else 0.0)))


class PropagatedEncoder(nn.Module):
    """`z = enc([x, N(0, I)])`: the noise is a further input; its mean, zero, in evaluation mode.

    Args:
        features: entries of x, flattened.
        hidden: widths of the hidden layers.
        latent: entries of z.
        noise: entries of the noise.
    """

    def __init__(self, features: int, hidden: Sequence[int] = (1024, 1024), latent: int = 256, noise: int = 64) -> None:
        super().__init__()
        self.network, self.noise = MLP((features + noise, *hidden, latent)), noise

    def forward(self, x: Tensor) -> Encoded:
        """Codes without a rate: their density is not known."""
        blank = torch.zeros(len(x), self.noise, dtype=x.dtype, device=x.device)
        return Encoded(self.network(torch.cat([x.flatten(1), _noisy(blank, 1.0 if self.training else 0.0)], 1)))


def _noisy(x: Tensor, sigma: Tensor | float) -> Tensor:
    return x if isinstance(sigma, float) and sigma == 0 else x + sigma * torch.randn_like(x)

"""The losses of adversarial games, from the logits of a discriminator, and of adversarial inference with its extensions."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def discriminator_loss(real: Tensor, generated: Tensor) -> Tensor:
    """`-E log D(real) - E log(1 - D(generated))` of logits: what a discriminator minimizes (eq. 16 with its logarithm)."""
    return softplus(-real).mean() + softplus(generated).mean()


def generator_loss(generated: Tensor) -> Tensor:
    """`-E log D(generated)`: what a generator minimizes (eq. 17 without the information)."""
    return softplus(-generated).mean()


def inference_loss(encoded: Tensor, decoded: Tensor) -> Tensor:
    """`-E_q log(1 - D) - E_p log D`: what encoder and decoder minimize together (eq. 19 without the information).

    Args:
        encoded: logits of pairs (data, their codes), which the discriminator takes for real.
        decoded: logits of pairs (samples, the codes they were made of).
    """
    return softplus(encoded).mean() + softplus(-decoded).mean()


def squared_cycle(images: Tensor, reconstructed: Tensor) -> Tensor:
    """`E |x - G(F(x))|^2`, summed over the entries of an example: the cycle of ALICE (l2)."""
    return (images - reconstructed).flatten(1).square().sum(1).mean()


def reconstruction_error(images: Tensor, reconstructed: Tensor) -> Tensor:
    """Euclidean distance of every example from its reconstruction, `(n,)`."""
    return (images - reconstructed).flatten(1).norm(dim=1)

"""The emulation with parts left ideal: what is needed at least, and what the full network adds.

`SharedMemoryNetwork` has memory as its only parameters and an ideal readout; `MemoryEdgeNetwork` has memory edges and output
edges with their real slopes, and exact gates. `EmulatingNetwork` leaves nothing ideal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.limits.algorithms import Algorithm
from tangentlab.limits.emulation import chosen_algorithm, default_rate


class _StoringNetwork(nn.Module):
    """What both have: T blocks of n + 1 weights that begin at 0, and an algorithm that reads them as signs."""

    def __init__(
        self,
        algorithm: Algorithm | str,
        n: int,
        samples: int,
        rate: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if samples < 1:
            raise InputError(f"At least one sample is stored, not {samples}.")
        self.n, self.samples = n, samples
        self.rate = default_rate(n, samples) if rate is None else rate
        self.algorithm = chosen_algorithm(algorithm)
        self.cells = nn.Parameter(torch.zeros(samples, n + 1, dtype=dtype))

    def memory(self) -> Tensor:
        """The stored weights, `(T, n + 1)`."""
        return self.cells.detach()

    def _controls(self, inputs: Tensor, filled: Tensor) -> Tensor:
        """c of every block, `(m, T, n + 1)`: (1, x) up to the first empty block, 0 beyond."""
        active = torch.cat([filled.new_ones(1), filled[:-1]]).cumprod(0)
        source = torch.cat([inputs.new_ones(len(inputs), 1), inputs], 1)
        return source[:, None] * active[:, None].to(source)

    def _answers(self, signs: Tensor, inputs: Tensor) -> Tensor:
        """The algorithm on the stored signs, or 0 while a block is empty."""
        if not bool((signs != 0).all()):
            return inputs.new_zeros(len(inputs))
        y = signs[:, 0]
        return self.algorithm.predict(signs[:, 1:] * y[:, None], y, inputs).to(inputs)


class SharedMemoryNetwork(_StoringNetwork):
    """Tier 1: the weights are memory, read as signs with a dead zone |w| <= 1/2; the readout is ideal.

    `df/dw = c / gamma` in the first empty block and 0 elsewhere, whatever f is: all that is left of a network is that a
    step of SGD writes y c.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs `(m,)`."""
        x = inputs.to(self.cells.dtype)
        with torch.no_grad():
            signs = torch.where(self.cells.abs() > 0.5, self.cells.sign(), 0.0)
            filled = (signs[:, 0] != 0).to(x)
            current = self._controls(x, filled) * (1 - filled)[:, None] / self.rate
            answers = self._answers(signs, x)
        return answers + (current * (self.cells - self.cells.detach())).sum((1, 2))


class MemoryEdgeNetwork(_StoringNetwork):
    """Tier 2: memory edges and output edges are real, with all their gradients; the gates around them are exact functions.

    `f = sum kappa r - kappa r' + head`, r = s(w c) the cells, r' their staircase copies, as in `EmulatingNetwork`.
    """

    def __init__(
        self,
        algorithm: Algorithm | str,
        n: int,
        samples: int,
        rate: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(algorithm, n, samples, rate, dtype)
        kappa = 1 / (2 * self.rate)
        self.direct = nn.Parameter(torch.full((samples, n + 1), kappa, dtype=dtype))
        self.copied = nn.Parameter(torch.full((samples, n + 1), -kappa, dtype=dtype))
        self.head = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs `(m,)`."""
        x = inputs.to(self.cells.dtype)
        with torch.no_grad():
            filled = ((2 * self.cells[:, 0]).abs() > 0.5).to(x)
            controls = self._controls(x, filled)
        reads = (2 * self.cells * controls).clamp(-1, 1)
        with torch.no_grad():
            copies = torch.where(reads.abs() > 0.5, reads.sign(), 0.0)
            signs = torch.where(self.cells.abs() > 0.25, self.cells.sign(), 0.0)
            answers = self._answers(signs, x)
        return (self.direct * reads + self.copied * copies).sum((1, 2)) + self.head * answers

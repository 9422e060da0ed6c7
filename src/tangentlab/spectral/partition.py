"""A partition: the regions of a network on a domain, their affine maps, and what can be read from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Complex, Floats, Ints


@dataclass(frozen=True)
class Frame:
    """Coordinates u of a flat piece of input space: `x = origin + sum_i u_i basis_i`.

    Args:
        origin: an input, without an axis of examples.
        basis: d orthonormal directions, `(d, *input)`.
    """

    origin: Tensor
    basis: Tensor

    def points(self, coordinates: Tensor) -> Tensor:
        """Inputs at coordinates `(points, d)`."""
        return self.origin + torch.tensordot(coordinates.to(self.basis.dtype), self.basis, 1)


@dataclass(frozen=True)
class Partition:
    """The regions of a network on a domain of dimension d.

    Args:
        complex: cells and their faces, in the coordinates of `frame`.
        frame: where the domain lies in input space; for a box of inputs, coordinates are the inputs.
        weights: slope of each region, `(regions, outputs, d)`.
        biases: `(regions, outputs)`: the network is `weights u + biases` at coordinates u of the region.
        bends: first wall number and number of units of each bend of the network.
        parts: in how many parts the domain was cut; cells of different parts do not share their faces.
    """

    complex: Complex
    frame: Frame
    weights: Floats
    biases: Floats
    bends: tuple[tuple[int, int], ...]
    parts: int = 1

    def __repr__(self) -> str:
        return f"Partition({self.n_regions} regions in {self.dimension}-D, {self.weights.shape[1]} outputs)"

    def __len__(self) -> int:
        return self.n_regions

    @property
    def n_regions(self) -> int:
        """N_f, the number of regions with an interior."""
        return self.complex.n_cells

    @property
    def dimension(self) -> int:
        """d."""
        return self.complex.dimension

    @cached_property
    def lipschitz(self) -> float:
        """`L_f = max_eps |W_eps|_2`, the exact Lipschitz constant on the domain (the spectral norm for many outputs)."""
        return float(np.linalg.norm(self.weights, 2, axis=(1, 2)).max())

    def corners(self, region: int) -> Floats:
        """The corners of a region; in 2-D they go around it, in 1-D from left to right."""
        found = self.complex.corners[self.complex.faces_of(0, np.array([region]))[1]]
        if self.dimension == 1:
            return np.sort(found, axis=0)
        if self.dimension == 2:
            away = found - found.mean(0)
            return found[np.argsort(np.arctan2(away[:, 1], away[:, 0]))]
        return found

    def at(self, regions: Ints, coordinates: Floats) -> Floats:
        """The affine map of given regions at given coordinates, `(points, outputs)`; all coordinates are allowed."""
        return np.einsum("pod,pd->po", self.weights[regions], coordinates) + self.biases[regions]

    def scalar(self, output: int | None) -> tuple[Floats, Floats]:
        """Slopes `(regions, d)` and constants `(regions,)` of one output, or of the only one."""
        outputs = self.weights.shape[1]
        if output is None and outputs != 1:
            raise InputError(f"The network has {outputs} outputs: say which one with output=.")
        if output is not None and not -outputs <= output < outputs:
            raise InputError(f"The argument output is a number below {outputs}, got {output}.")
        return self.weights[:, output or 0], self.biases[:, output or 0]

    def wall(self, number: int) -> tuple[int, int] | None:
        """Bend and unit that made a face of dimension d - 1 (its number is in `complex.walls`); None on the border."""
        for bend, (first, units) in enumerate(self.bends):
            if first <= number < first + units:
                return bend, number - first
        return None

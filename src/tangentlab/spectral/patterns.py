"""The region of an input: its activation pattern, its affine map and the half-spaces that bound it.

A pattern is one tensor per bend of the network, in the order in which they are met, with the number of the piece that each
unit is on: 0 and 1 for the two sides of a ReLU, 0, 1, 2 for Hardtanh, the place of the winner for a maximum. On the region
`P_eps` of a pattern eps the network is `W_eps x + b_eps` (Lemma A.1 of Rahaman, Baratin et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError
from tangentlab.spectral.bends import Bend
from tangentlab.spectral.follow import DTYPE, follow

Pattern = tuple[Tensor, ...]


@dataclass(frozen=True)
class BendWalls:
    """What may bound the regions of some points at one bend.

    Args:
        bend: its number.
        values: functions that are at most 0 on the region, `(1 + d, groups, walls)`.
        near: which of them are next to the units' pieces, `(groups, walls)`.
        beyond: the piece of the unit on the other side, `(groups, walls)`.
        per_unit: walls of one unit; they stand side by side.
    """

    bend: int
    values: Tensor
    near: Tensor
    beyond: Tensor
    per_unit: int


class OnOnePiece:
    """A traveller that keeps groups of points on one affine piece each, that of the group's base or a given one.

    Rows are `(1 + d, groups)` flattened: the bases first, then each base moved along the first direction, and so on.

    Args:
        groups: number of bases.
        given: the pattern to follow instead of that of the bases.
        keep_walls: record the half-spaces of every bend.
    """

    def __init__(self, groups: int, given: Pattern | None = None, keep_walls: bool = False) -> None:
        self.groups, self.given, self.keep_walls = groups, given, keep_walls
        self.pattern: list[Tensor] = []
        self.walls: list[BendWalls] = []

    def catch_up(self, rows: Tensor) -> Tensor:
        """Nothing is added on the way."""
        return rows

    def bend(self, rows: Tensor, bend: Bend) -> Tensor:
        """Every unit stays on its piece: `f(a) + slope (z - a)` with a point a of the piece."""
        pieces = self._next(bend.pieces(rows[: self.groups]))
        if self.keep_walls:
            for number, at in enumerate(bend.breaks):
                side = torch.where(pieces > number, -1.0, 1.0).to(DTYPE)
                near = (pieces == number) | (pieces == number + 1)
                beyond = torch.where(pieces == number, number + 1, number)
                self._record(self._repeated(side, rows) * (rows - at), near, beyond)
        return bend.on_piece(rows.view(-1, *pieces.shape), pieces).view(rows.shape)

    def largest(self, rows: Tensor) -> Tensor:
        """The winner of the base stays the winner."""
        winner = self._next(rows[: self.groups].argmax(-1))
        chosen = torch.gather(rows, -1, self._repeated(winner, rows).long().unsqueeze(-1))
        if self.keep_walls:
            rivals = torch.arange(rows.shape[-1]).expand(self.groups, *rows.shape[1:])
            self._record(rows - chosen, rivals != winner.unsqueeze(-1), rivals)
        return chosen.squeeze(-1)

    def _next(self, found: Tensor) -> Tensor:
        if self.given is not None:
            if len(self.pattern) >= len(self.given) or self.given[len(self.pattern)].numel() != found.numel():
                raise InputError("The pattern does not belong to this network: it has other bends or other units.")
            found = self.given[len(self.pattern)].reshape(found.shape).to(found.dtype)
        self.pattern.append(found)
        return found

    def _repeated(self, pieces: Tensor, rows: Tensor) -> Tensor:
        return pieces.repeat(len(rows) // self.groups, *(1 for _ in pieces.shape[1:]))

    def _record(self, signed: Tensor, near: Tensor, beyond: Tensor) -> None:
        """Keep functions that are at most 0 on the region, which of them may bound it, and the units' pieces beyond."""
        table = signed.reshape(len(signed) // self.groups, self.groups, -1)
        near, beyond = near.reshape(self.groups, -1), beyond.reshape(self.groups, -1)
        bend, units = len(self.pattern) - 1, self.pattern[-1][0].numel()
        self.walls.append(BendWalls(bend, table, near, beyond, near.shape[1] // units))


@dataclass(frozen=True)
class Region:
    """`{x : normals x <= offsets}`, on which the network is `weight x + bias`; x flattened.

    Args:
        pattern: the piece of every unit.
        weight: W_eps, `(outputs, inputs)`.
        bias: b_eps, `(outputs,)`.
        normals: outward and not normalized, `(half-spaces, inputs)`.
        offsets: `(half-spaces,)`.
        beyond: what changes across each half-space: number of the bend, of the unit, and its new piece, `(half-spaces, 3)`.
    """

    pattern: Pattern
    weight: Tensor
    bias: Tensor
    normals: Tensor
    offsets: Tensor
    beyond: Tensor

    def contains(self, x: Tensor, slack: float = 1e-9) -> bool:
        """Whether a point satisfies all half-spaces up to `slack` times their size."""
        flat = x.to(DTYPE).flatten()
        size = self.normals.norm(dim=1) * (1 + flat.norm()) + self.offsets.abs()
        return bool((self.normals @ flat - self.offsets <= slack * size).all())


def activation_pattern(model: nn.Module, x: Tensor) -> Pattern:
    """The piece of every unit for every input: one tensor `(examples, units...)` per bend, int8 (int64 for a maximum).

    Cost: one forward in float64.
    """
    traveller = OnOnePiece(len(x))
    follow(model, x, traveller)
    return tuple(traveller.pattern)


def region_of(model: nn.Module, x: Tensor) -> Region:
    """The region of one input (without an axis of examples). Cost: one forward of `1 + inputs` examples."""
    return _region(model, x, None)


def region_affine(model: nn.Module, pattern: Sequence[Tensor], shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`W_eps` `(outputs, inputs)` and `b_eps` `(outputs,)` of a pattern, whether its region is empty or not.

    Args:
        model: the network.
        pattern: one tensor `(units...)` or `(1, units...)` per bend.
        shape: of an input, without the axis of examples.
    """
    region = _region(model, torch.zeros(tuple(shape)), tuple(pattern))
    return region.weight, region.bias


def region_halfspaces(model: nn.Module, pattern: Sequence[Tensor], shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Normals `(half-spaces, inputs)` and offsets of `{x : normals x <= offsets}`, the region of a pattern."""
    region = _region(model, torch.zeros(tuple(shape)), tuple(pattern))
    return region.normals, region.offsets


def _region(model: nn.Module, x: Tensor, given: Pattern | None) -> Region:
    base = x.detach().to(DTYPE)
    inputs = base.numel()
    require_memory(8 * inputs * (1 + inputs), f"The region of an input of {inputs} numbers", "Use a cut.")
    points = torch.cat([base[None], base[None] + torch.eye(inputs, dtype=DTYPE).view(inputs, *base.shape)])
    traveller = OnOnePiece(1, given, keep_walls=True)
    weight, bias = _affine(follow(model, points, traveller), base)
    normals, offsets = [torch.zeros(0, inputs, dtype=DTYPE)], [torch.zeros(0, dtype=DTYPE)]
    beyond = [torch.zeros(0, 3, dtype=torch.int64)]
    for walls in traveller.walls:
        slopes, constants = _affine(walls.values[:, 0], base)
        kept = walls.near[0].nonzero()[:, 0]
        normals.append(slopes[kept])
        offsets.append(-constants[kept])
        beyond.append(
            torch.stack([torch.full_like(kept, walls.bend), kept // walls.per_unit, walls.beyond[0][kept]], 1)
        )
    return Region(tuple(traveller.pattern), weight, bias, torch.cat(normals), torch.cat(offsets), torch.cat(beyond))


def _affine(rows: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Slope `(outputs, inputs)` and constant of functions given at a base and at the base plus every unit vector."""
    slope = (rows[1:] - rows[0]).T
    return slope, rows[0] - slope @ base.flatten()

"""Paths between two inputs along which a classifier does not change its mind (nudged elastic bands without springs).

A network that is biased towards low frequencies should have no isolated islands of a class. `connecting_path` bends the
straight line between two inputs of a class so that the class's logit is large all along it (Kolsbjerg et al. 2016, Draxler et
al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tangentlab.engine.network import evaluated, refuse_modes
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError


@dataclass(frozen=True)
class Path:
    """A chain of inputs.

    Attributes:
        points: `(pivots, *input)`, from the start to the end.
        probabilities: `(samples,)` of the class, evenly along the path.
        connected: whether the class is the prediction at all of these places.
        excess: length of the path over that of the straight line, minus 1.
    """

    points: Tensor
    probabilities: Tensor
    connected: bool
    excess: float


def connecting_path(
    model: nn.Module,
    start: Tensor,
    end: Tensor,
    target: int,
    *,
    pivots: int = 5,
    iterations: int = 4,
    steps: int = 10,
    lr: float = 1e-3,
    momentum: float = 0.9,
    samples: int = 64,
) -> Path:
    """Bend the line from `start` to `end` towards larger logits of the class `target`.

    Inner pivots climb the logit along the part of its gradient that is orthogonal to the path, and after every step they are
    put at equal distances along it again. After each iteration but the last, the segment with the smallest logit at its middle
    gets a new pivot.

    Args:
        model: a classifier in evaluation mode, `(n, *input)` to `(n, classes)`; it is not touched.
        start: an input, without the axis of examples; `end` another of the same shape.
        target: the class.
        pivots: points of the first chain, both ends included.
        iterations: how often `steps` steps are taken, with learning rate `lr` and `momentum`.
        samples: places at which the final path is looked at.

    Cost: `iterations * steps` gradients of a batch of pivots.
    """
    _require_ends(start, end, pivots, samples, min(iterations, steps))
    start, end = start.detach(), end.detach()
    straight = float((end - start).norm())
    if straight == 0:
        raise InputError("Both ends of the path are the same input.")
    refuse_modes(model)
    weights = torch.linspace(0, 1, pivots, dtype=start.dtype, device=start.device)
    chain = torch.lerp(start.flatten(), end.flatten(), weights[:, None])
    climb = _Climb(model, start.shape, target)
    climb.logits(chain[:1])
    for iteration in range(iterations):
        velocity = torch.zeros_like(chain)
        for _ in range(steps):
            slope = _sideways(chain, climb.gradient(chain))
            velocity = momentum * velocity + slope
            moved = chain + lr * velocity
            chain = resampled(torch.cat([chain[:1], moved[1:-1], chain[-1:]]), len(chain))
        if iteration < iterations - 1:
            chain = _refined(chain, climb)
    logits = climb.logits(resampled(chain, samples))
    length = float(chain.diff(dim=0).norm(dim=1).sum())
    return Path(
        chain.view(len(chain), *start.shape),
        logits.softmax(1)[:, target],
        bool((logits.argmax(1) == target).all()),
        length / straight - 1,
    )


def _require_ends(start: Tensor, end: Tensor, pivots: int, samples: int, steps: int) -> None:
    """Refuse what no path leads between."""
    if start.shape != end.shape or pivots < 3 or samples < 2 or steps < 0:
        raise InputError(
            f"A path needs two inputs of one shape ({tuple(start.shape)}, {tuple(end.shape)}), at least 3 pivots and 2 samples."
        )
    if not (start.is_floating_point() and end.is_floating_point()):
        raise InputError(f"The ends of a path are floating-point inputs, not {start.dtype} and {end.dtype}.")


class _Climb:
    """Logits of chains, and the gradient of one of them by the input."""

    def __init__(self, model: nn.Module, shape: torch.Size, target: int) -> None:
        self._model, self._shape, self._target = model, shape, target

    def logits(self, chain: Tensor) -> Tensor:
        """`(points, classes)`."""
        with untouched(self._model):
            found = evaluated(lambda: self._model(chain.view(len(chain), *self._shape)))
        if found.ndim != 2 or not 0 <= self._target < found.shape[1]:
            raise InputError(f"The argument target = {self._target} is no class of outputs {tuple(found.shape)}.")
        return found

    def gradient(self, chain: Tensor) -> Tensor:
        """Of the target's logit, `(points, entries)`; gradients of the parameters are left alone."""
        with untouched(self._model), torch.enable_grad():
            points = chain.detach().requires_grad_()
            logits = self._model(points.view(len(chain), *self._shape))
            (slopes,) = torch.autograd.grad(logits[:, self._target].sum(), points)
        return slopes


def _sideways(chain: Tensor, gradient: Tensor) -> Tensor:
    """Without the part along the path: the tangent of a pivot is the direction between its neighbours."""
    tangent = torch.zeros_like(chain)
    tangent[1:-1] = chain[2:] - chain[:-2]
    tangent = tangent / tangent.norm(dim=1, keepdim=True).clamp_min(torch.finfo(chain.dtype).tiny)
    return gradient - (gradient * tangent).sum(1, keepdim=True) * tangent


def resampled(chain: Tensor, count: int) -> Tensor:
    """`count` points at equal distances along a chain of segments, `(pivots, entries)` to `(count, entries)`."""
    lengths = chain.diff(dim=0).norm(dim=1)
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    wanted = torch.linspace(0, 1, count, dtype=chain.dtype, device=chain.device) * ends[-1]
    segment = torch.searchsorted(ends, wanted, right=True).sub(1).clamp(0, len(lengths) - 1)
    share = (wanted - ends[segment]) / lengths[segment].clamp_min(torch.finfo(chain.dtype).tiny)
    found = torch.lerp(chain[segment], chain[segment + 1], share[:, None])
    found[0], found[-1] = chain[0], chain[-1]
    return found


def _refined(chain: Tensor, climb: _Climb) -> Tensor:
    """One more pivot, in the middle of the segment whose middle has the smallest logit of the class."""
    middles = (chain[1:] + chain[:-1]) / 2
    place = int(climb.logits(middles)[:, climb._target].argmin())
    return torch.cat([chain[: place + 1], middles[place : place + 1], chain[place + 1 :]])

"""The certificate of every route: a random combination of the rows that were found is the gradient of that combination.

For random cotangents r_kn the routes give rows J_n^T r_kn. With weights w_kn that are drawn afterwards,

    sum_kn w_kn J_n^T r_kn  =  d/dtheta sum_n <s_n, f_n>,        s_n = sum_k w_kn r_kn,

and the right-hand side is one plain gradient. A row that holds a part of another example's gradient is weighted by w_kn on the
left and by that example's weight on the right, so it shows with probability one; so does a layer that computes something else
than its closed form says, whoever changed it, and a derivative that was taken inside the forward. The identity holds per
parameter, which names the one at fault.

Gradients that are nothing but rounding differ whoever computes them. Where the two sides disagree, more combinations are
drawn, plain autograd is compared with itself on each of them, and only what it does not do to itself counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import common_length, take_examples
from tangentlab.engine.capture import Route, RouteUse, call_gradients, factors_of, gradients
from tangentlab.engine.graph import coarsest_type, read_graph
from tangentlab.engine.groups import Group
from tangentlab.engine.layout import common_dtype
from tangentlab.engine.network import Network, grad_mode, require_finite
from tangentlab.engine.snapshot import untouched
from tangentlab.layers.contractions import sum_of_cotangents
from tangentlab.temporary import changed

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Largest difference of two gradients of one parameter, relative to the largest entry, that counts as rounding."""
_LENGTH = 0.25
"""The same for the length of the difference, relative to the length of the gradient, as a part of the tolerance."""
OWN_NOISE = 8
"""How many times the difference of plain autograd from itself counts as rounding."""
_PROBES = 4
"""Combinations that are compared where the first one disagrees: in half precision a wrong row may pass one by luck."""
_SOME = 32
"""Examples that are looked at one by one where a proof has failed."""
_PERIOD = 1_000_003
"""Random numbers that are drawn; to draw those of a language model's outputs takes longer than its backward pass."""
_verifies: ContextVar[bool] = ContextVar("tangentlab_verify", default=True)

Gradients = dict[str, Tensor]


@contextmanager
def verify(on: bool) -> Iterator[None]:
    """Whether routes are proved inside the block: `with tangentlab.verify(False):` for models that have been proved before."""
    before = _verifies.get()
    yield from changed(lambda: _verifies.set(on), lambda: _verifies.set(before))


def verifies(network: Network) -> bool:
    """Whether the routes of this network are to be proved."""
    return network.verify and _verifies.get()


def random_weights(shape: Sequence[int], like: Tensor, draw: int = 0) -> Tensor:
    """Numbers of either sign between 1/2 and 3/2: none is near zero and no two agree. Not of the caller's random stream.

    More than a million, which only the outputs of many tokens or pixels need, repeat themselves after a prime number of them.
    """
    count = torch.Size(shape).numel()
    generator = torch.Generator(like.device).manual_seed(len(shape) + 7919 * count + 104729 * draw)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    drawn = torch.rand(min(count, _PERIOD), generator=generator, dtype=dtype, device=like.device).mul_(2).sub_(1)
    drawn = drawn.add_(drawn.sign(), alpha=0.5).to(like.dtype)
    return drawn.repeat(-(-count // _PERIOD))[:count].view(shape) if count > _PERIOD else drawn.view(shape)


def differs(found: Tensor, truth: Tensor, noise: Tensor | None = None, tolerance: float | None = None) -> bool:
    """Whether two gradients of one parameter differ by more than rounding, in the largest entry or in length.

    noise: what rounding alone does to this gradient, of its shape. tolerance: that of the type by default.
    """
    if truth.numel() == 0:
        return False
    difference = found.reshape(truth.shape) - truth
    tolerance = TOLERANCE.get(truth.dtype, 0.2) if tolerance is None else tolerance
    for size, part in ((_largest, 1.0), (_length, _LENGTH)):
        allowed = part * tolerance * size(truth)
        if noise is not None:
            allowed = allowed + OWN_NOISE * size(noise)
        if not bool(size(difference) <= allowed):
            return True
    return False


def _largest(gradient: Tensor) -> Tensor:
    """Largest absolute entry, NaN if there is one, in double precision; 25 times faster than the norm of torch."""
    low, high = gradient.aminmax()
    return torch.maximum(-low, high).double()


def _length(gradient: Tensor) -> Tensor:
    """Euclidean length; squares that leave the range of single precision are added up in double precision."""
    single = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
    if 1e-15 < single < 1e15:
        return single.double()
    return torch.linalg.vector_norm(gradient, dtype=torch.float64)


@dataclass(frozen=True)
class Proof:
    """What a proof has shown.

    Attributes:
        failed: the groups whose closed form is not what plain autograd says, each with the parameter that shows it.
        complete: whether every group that is used had a gradient; zeros prove nothing about the next batch.
        apart: whether every example had a gradient at every layer, and that of no example, however small, arrived at another.
            A saturated softmax over the examples, or a unit that is dead for some of them, may hide in one batch what shows
            in the next.
    """

    failed: dict[Group, str]
    complete: bool
    apart: bool


def proof(network: Network, outputs: Tensor, routes: Sequence[Route], known_apart: bool = False) -> Proof:
    """Compare all closed forms with plain autograd.

    known_apart: the graph shows that the examples do not mix, so that one cotangent is enough.

    Cost: a backward pass to the layers for two cotangents, and one plain gradient.
    """
    claimed = [route for route in routes if route.structured]
    if not claimed:
        return Proof({}, True, True)
    own = network.parameters()
    parameters = {name: own[name] for route in claimed for name in route.group.names}
    found, combined, grads = _combined_rows(network, outputs, claimed, parameters, known_apart=known_apart)
    truth = plain_gradient(outputs, parameters, combined)
    for name, gradient in truth.items():
        require_finite(gradient, f"The gradients of {name}")
    wrong = [name for name in truth if differs(found[name], truth[name])]
    if wrong:
        wrong = _beyond_rounding(network, outputs, claimed, wrong, largest_of_all(truth))
    failed = {route.group: name for route in claimed for name in route.group.names if name in wrong}
    used = [name for route in claimed if route.uses for name in route.group.names]
    complete = all(not truth[name].numel() or bool(_largest(truth[name]) > 0) for name in used)
    uses = [use for route in claimed for use in route.uses]
    apart = known_apart or all(_keep_apart(use, grads[id(use.call)]) for use in uses)
    return Proof(failed, complete, apart)


def _keep_apart(use: RouteUse, grads: Tensor) -> bool:
    """Whether output-gradients (2, ...) of two sets of examples are there for all of the own and for none of the others."""
    if use.axis < 0 or grads.shape[use.axis + 1] == 1:
        return True
    examples = grads.movedim(use.axis + 1, 1)
    there = examples.reshape(*examples.shape[:2], -1).ne(0).any(2)
    return bool((there == _set_of(examples.shape[1], 0, grads.device)).all())


def _set_of(examples: int, draw: int, device: torch.device) -> Tensor:
    """(2, N): whether an example is in the first and whether it is in the second of two sets, drawn at random."""
    generator = torch.Generator(device).manual_seed(examples + 104729 * draw)
    order = torch.randperm(examples, generator=generator, device=device)
    return torch.stack([order < (examples + 1) // 2, order >= (examples + 1) // 2])


def _beyond_rounding(
    network: Network, outputs: Tensor, routes: list[Route], suspects: list[str], largest: float
) -> list[str]:
    """Which parameters differ, over several combinations, by more than plain autograd differs from itself.

    largest: entry of all gradients, to whose precision even sums without any rounding are known.
    """
    own = network.parameters()
    parameters = {name: own[name] for route in routes for name in route.group.names}
    some = {name: parameters[name] for name in suspects}
    errors, allowed = dict.fromkeys(suspects, 0.0), dict.fromkeys(suspects, 0.0)
    for draw in range(1, _PROBES + 1):
        found, combined, _ = _combined_rows(network, outputs, routes, parameters, draw)
        truth = plain_gradient(outputs, some, combined)
        noise = own_noise(outputs, some, combined, truth, largest / OWN_NOISE)
        for name in suspects:
            errors[name] += float(_length(found[name].reshape(truth[name].shape) - truth[name]).square())
            allowed[name] += float(_length(noise[name]).square())
    return [name for name in suspects if not errors[name] <= OWN_NOISE**2 * allowed[name]]


def _combined_rows(
    network: Network,
    outputs: Tensor,
    routes: list[Route],
    parameters: Mapping[str, nn.Parameter],
    draw: int = 0,
    known_apart: bool = False,
) -> tuple[Gradients, Tensor, dict[int, Tensor]]:
    """sum_kn w_kn J_n^T r_kn by name, s (N, ...), and the output-gradients at the calls.

    Two cotangents, as a call may ask for several at once, each of one half of the examples; one of all where they are known
    to be apart.
    """
    count = 1 if known_apart else min(2, len(outputs))
    cotangents = random_weights((count, *outputs.shape), outputs, draw)
    if not known_apart:
        sets = _set_of(len(outputs), draw, outputs.device)[:count].reshape(count, -1, *[1] * (outputs.ndim - 1))
        cotangents = cotangents * sets
    grads = call_gradients(outputs, routes, cotangents)
    factors = factors_of(routes, grads, common_dtype(network.parameters().values()))
    weights = random_weights((count, outputs.shape[0]), outputs, draw)
    unused = [name for route in routes if not route.uses for name in route.group.names]
    found = {name: torch.zeros_like(parameters[name]) for name in unused}
    for group, factor in factors.items():
        pulled = factor.pull(weights.to(factor.dtype))
        sizes = [parameters[name].numel() for name in group.names]
        found |= dict(zip(group.names, pulled.split(sizes), strict=True))
    return found, sum_of_cotangents(cotangents.flatten(2), weights).view(outputs.shape), grads


def plain_gradient(outputs: Tensor, parameters: Mapping[str, nn.Parameter], cotangent: Tensor) -> Gradients:
    """d/dtheta sum(outputs * cotangent) by name, nothing clever about it."""
    found = gradients(outputs, list(parameters.values()), cotangent)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
    }


def own_noise(
    outputs: Tensor,
    parameters: Mapping[str, nn.Parameter],
    cotangent: Tensor,
    truth: Gradients,
    magnitude: float,
    draw: int = 0,
) -> Gradients:
    """By how much the gradients of two parts of the cotangent miss the whole: rounding of plain autograd itself.

    Never less than the precision of `magnitude` in the coarsest type on the way, for sums that happen to have no rounding.
    """
    part = cotangent * random_weights(cotangent.shape, cotangent, draw)
    one = plain_gradient(outputs, parameters, part)
    other = plain_gradient(outputs, parameters, cotangent - part)
    coarsest = torch.finfo(coarsest_type(outputs)).eps
    least = {name: max(torch.finfo(gradient.dtype).eps, coarsest) * magnitude for name, gradient in truth.items()}
    return {name: (one[name] + other[name] - truth[name]).abs() + least[name] for name in parameters}


def largest_of_all(truth: Gradients) -> float:
    """Largest absolute entry of some gradients."""
    return max((float(_largest(gradient)) for gradient in truth.values() if gradient.numel()), default=0.0)


def examples_depend_on_each_other(
    network: Network, batch: Any, outputs: Tensor, tolerance: float | None = None
) -> bool:
    """Whether an example alone has other outputs or gradients than in its batch; False where it cannot run alone.

    Looks at up to 32 examples. One that differs is looked at beside itself too, because torch's own gradients of a single
    example are wrong at times (an instance norm whose output is transposed). Gradients that are nothing but rounding of
    cotangents of order one count as none. Cost: a plain gradient, and two more for each of them, one through the whole batch.
    """
    if common_length(batch) != outputs.shape[0]:
        return False
    parameters = network.parameters()
    cotangent = random_weights(outputs.shape, outputs)
    largest = largest_of_all(plain_gradient(outputs, parameters, cotangent))
    largest = max(largest, torch.finfo(outputs.dtype).eps ** -0.25)
    rounding = torch.finfo(coarsest_type(outputs)).eps * outputs.detach().abs().amax(0)

    def other(n: int, company: list[int]) -> bool | None:
        """Whether an example is another among `company`, which begins with it; None where these cannot run."""
        try:
            with grad_mode(), untouched(network.model):
                alone = network(take_examples(batch, company))[:1]
                read_graph(alone)
                own = plain_gradient(alone, parameters, cotangent[n : n + 1])
        except Exception:  # whatever the model says about so few examples: its batch is all there is
            return None
        if alone.shape != outputs[n : n + 1].shape:
            return None
        if differs(alone[0].detach(), outputs[n].detach(), rounding, tolerance):
            return True
        mask = torch.zeros_like(cotangent)
        mask[n] = cotangent[n]
        among = plain_gradient(outputs, parameters, mask)
        wrong = {name: parameters[name] for name in parameters if differs(own[name], among[name], tolerance=tolerance)}
        noise = own_noise(outputs, wrong, mask, among, largest) if wrong else {}
        return any(differs(own[name], among[name], noise[name], tolerance) for name in wrong)

    for n in range(0, outputs.shape[0], -(-outputs.shape[0] // _SOME)):
        verdict = other(n, [n])
        if verdict is None:
            return False
        if verdict and other(n, [n, n]) is not False:
            return True
    return False

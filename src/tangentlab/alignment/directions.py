"""How far a network's function moves along the top directions of its Jacobian, and along random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.fallback import Caller
from tangentlab.engine.network import Forward, Network, OutputFunction, evaluated
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError
from tangentlab.objects.pvector import PVector
from tangentlab.spectra import fisher_eigenpairs


@dataclass(frozen=True)
class DirectionEffects:
    """Change of the function along directions of one length.

    Attributes:
        top: root mean square change of the outputs along each of the k top right singular vectors of the Jacobian, `(k,)`.
        random: the same along k random directions, `(k,)`.
        singular_values: of the Jacobian on the examples that gave the directions, `(k,)`, largest first.
    """

    top: Tensor
    random: Tensor
    singular_values: Tensor


def compare_directions(
    model: nn.Module,
    examples: Any,
    test: Any,
    k: int = 50,
    radius: float = 1.0,
    *,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    generator: torch.Generator | None = None,
) -> DirectionEffects:
    """Perturb the parameters by `radius` along the k top right singular vectors of the Jacobian and k random directions.

    Args:
        model: the network; it is not touched.
        examples: data on which the Jacobian is decomposed.
        test: data on which the change of the outputs is measured.
        k: number of directions of each kind.
        radius: length of every perturbation.
        generator: source of the random directions, and of the starting vectors of a decomposition by Lanczos.
    """
    if k < 1:
        raise InputError(f"The argument k is at least 1, not {k}.")
    options: dict[str, Any] = {"forward": forward, "function": function}
    pairs = fisher_eigenpairs(model, examples, k, "regression", progress=False, generator=generator, **options)
    count = sum(len(outputs) for outputs in outputs_at(Network.of(model, None, **options), examples, None))
    random = PVector.random_unit(model, pairs.vectors.layout, batch=len(pairs.values), generator=generator)
    both = [directional_effects(model, test, v * radius, **options) for v in (pairs.vectors, random)]
    return DirectionEffects(both[0], both[1], (pairs.values * count).clamp_min(0).sqrt())


def directional_effects(
    model: nn.Module,
    data: Any,
    perturbations: PVector,
    *,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
) -> Tensor:
    """Root mean square over outputs and examples of `f(w + v) - f(w)`, for every vector v of a batch, `(vectors,)`."""
    if perturbations.flat.ndim != 2:
        raise InputError(f"A batch of perturbations (vectors, d) is expected, not {perturbations!r}.")
    network = Network.of(model, perturbations.layout, forward, function)
    start = outputs_at(network, data, None)
    changes = []
    for vector in perturbations.flat:
        moved = outputs_at(network, data, vector)
        squares = [(there - here).double().square().sum() for here, there in zip(start, moved, strict=True)]
        changes.append((torch.stack(squares).sum() / sum(part.numel() for part in start)).sqrt())
    return torch.stack(changes)


def outputs_at(network: Network, data: Any, perturbation: Tensor | None) -> list[Tensor]:
    """Outputs of every batch at the parameters plus the perturbation, by a functional call that writes nothing."""
    parameters = {name: p.detach() for name, p in network.parameters().items()}
    if perturbation is not None:
        parts = network.layout.unflatten(perturbation)
        parameters = {name: value + parts[name] for name, value in parameters.items()}
    caller = Caller(network)
    found = []
    for batch in Batches(data, ordered=True):
        with untouched(network.model):
            found.append(evaluated(partial(caller.call, parameters, batch)))
    return found

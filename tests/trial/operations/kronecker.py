"""KFAC of linear layers by its definition, and the trace of EKFAC."""

from __future__ import annotations

import torch
from torch import Tensor

import tangentlab as tl
from tests.trial.blocks.base import MIXES
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.linear_calls import NotOnce, kronecker_factors, linear_calls, own_linear_layers
from tests.trial.operations.base import STRUCTURE, Results, Work, operation
from tests.trial.scene import Scene
from tests.trial.truth import Truth, fisher_of_outputs


@operation(3, dtypes=(torch.float64,), fits=lambda scene: scene.selection == "all")
def kronecker(o: Choices, scene: Scene) -> Work:
    """The linear layers that are called once: KFAC, and the trace of EKFAC."""
    layers = own_linear_layers(scene.model)
    corrected = o.chance("corrected")
    names = [
        name for name, p in scene.model.named_parameters() if p.requires_grad and name.rpartition(".")[0] in layers
    ]
    if not names:
        raise NoSuchCase("no linear layer")
    likelihood = scene.data.likelihood

    def found() -> Results:
        kind = tl.PMatEKFAC if corrected else tl.PMatKFAC
        options = scene.options() | {"layers": names}
        matrix = tl.FIM(scene.model, scene.data.give(), kind, likelihood, **options)
        return {"trace": matrix.trace()} if corrected else {"dense": matrix.to_dense()}

    def expected(truth: Truth) -> Results:
        if corrected:
            kept = truth.only(tuple(names))
            return {"trace": kept.weighted(fisher_of_outputs(likelihood, kept.outputs)).trace()}
        return {"dense": dense}

    if not corrected:
        if scene.place not in ("nowhere", "no_grad") or MIXES in scene.blueprint.traits:
            raise NoSuchCase("the definition is for examples that do not mix")
        try:
            dense = _dense(scene, layers, tuple(names))
        except NotOnce:
            raise NoSuchCase("a layer is not called exactly once") from None
    return Work(found, expected, refusals=STRUCTURE)


def _dense(scene: Scene, layers: list[str], names: tuple[str, ...]) -> Tensor:
    """Block-diagonal with B x A for every layer, in flat order."""
    every = [_calls(scene, layers, x) for x, _ in scene.data.batches]
    shapes, start, places = scene.truth.shapes, 0, {}
    for name in (name for name in scene.truth.names if name in names):
        numel = torch.Size(shapes[name]).numel()
        places[name] = torch.arange(start, start + numel).reshape(shapes[name])
        start += numel
    full = torch.zeros(start, start, dtype=torch.float64)
    for layer in layers:
        prefix = f"{layer}." if layer else ""
        weight, bias = places.get(f"{prefix}weight"), places.get(f"{prefix}bias")
        if weight is None and bias is None:
            continue
        if weight is None:
            raise NoSuchCase("a bias alone")
        inputs, grads = (
            torch.cat([calls[layer][0] for calls in every]),
            torch.cat([calls[layer][1] for calls in every], 1),
        )
        a, b = kronecker_factors(inputs, grads, scene.data.examples, bias is not None)
        flat = (weight if bias is None else torch.cat([weight, bias[:, None]], 1)).flatten()
        full[flat[:, None], flat[None]] = torch.kron(b.contiguous(), a.contiguous())
    return full


def _calls(scene: Scene, layers: list[str], x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    model = scene.fresh()

    def run() -> Tensor:
        outputs = scene.call(model, x)
        return outputs[:, None] if outputs.ndim == 1 else outputs

    def roots(outputs: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(fisher_of_outputs(scene.data.likelihood, outputs))
        return vectors * values.clamp_min(0).sqrt()[:, None]

    return linear_calls(model, layers, run, roots)

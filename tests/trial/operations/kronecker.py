"""KFAC of linear layers by its definition: inputs and output-gradients noted call by call, products written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import tangentlab as tl
from tests.trial.blocks.base import MIXES
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.operations.base import STRUCTURE, Results, Work, operation
from tests.trial.scene import Scene
from tests.trial.truth import Truth, fisher_of_outputs


@operation(3, dtypes=(torch.float64,))
def kronecker(o: Choices, scene: Scene) -> Work:
    """The linear layers that are called once: KFAC, and the trace of EKFAC."""
    layers = _linear_layers(scene)
    corrected = o.chance("corrected")
    names = [
        name for name, p in scene.model.named_parameters() if p.requires_grad and name.rpartition(".")[0] in layers
    ]
    options = {key: value for key, value in scene.options().items() if key != "layers"} | {"layers": names}
    if not names or scene.selection != "all":
        raise NoSuchCase("no linear layer")
    likelihood = scene.data.likelihood

    def found() -> Results:
        kind = tl.PMatEKFAC if corrected else tl.PMatKFAC
        matrix = tl.FIM(scene.model, scene.data.give(), kind, likelihood, **options)
        return {"trace": matrix.trace()} if corrected else {"dense": matrix.to_dense()}

    def expected(truth: Truth) -> Results:
        if corrected:
            kept = truth.only(tuple(names))
            return {"trace": kept.weighted(fisher_of_outputs(likelihood, kept.outputs)).trace()}
        return {"dense": _dense(scene, layers, tuple(names))}

    if not corrected and (scene.place not in ("nowhere", "no_grad") or MIXES in scene.blueprint.traits):
        raise NoSuchCase("the definition is for examples that do not mix")
    return Work(found, expected, refusals=STRUCTURE)


def _linear_layers(scene: Scene) -> list[str]:
    """Names of plain linear layers, each under one name and with a weight of its own."""
    owners: dict[int, int] = {}
    for module in scene.model.modules():
        for p in module._parameters.values():
            owners[id(p)] = owners.get(id(p), 0) + 1
    return [
        name
        for name, m in scene.model.named_modules()
        if type(m) is nn.Linear and "weight" in m._parameters and all(owners[id(p)] == 1 for p in m.parameters())
    ]


def _dense(scene: Scene, layers: list[str], names: tuple[str, ...]) -> Tensor:
    """Block-diagonal with B x A for every layer, in flat order."""
    notes: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    for x, _ in scene.data.batches:
        for name, pair in _observed(scene, layers, x).items():
            notes[name].append(pair)
    shapes, start, places = scene.truth.shapes, 0, {}
    for name in (name for name in scene.truth.names if name in names):
        numel = torch.Size(shapes[name]).numel()
        places[name] = torch.arange(start, start + numel).reshape(shapes[name])
        start += numel
    full = torch.zeros(start, start, dtype=torch.float64)
    for layer, pairs in notes.items():
        prefix = f"{layer}." if layer else ""
        weight, bias = places.get(f"{prefix}weight"), places.get(f"{prefix}bias")
        if weight is None and bias is None:
            continue
        if weight is None:
            raise NoSuchCase("a bias alone")
        inputs, grads = torch.cat([a for a, _ in pairs]), torch.cat([g for _, g in pairs], 1)
        index = weight
        if bias is not None:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
            index = torch.cat([weight, bias[:, None]], 1)
        a = inputs.t() @ inputs / scene.data.examples
        b = torch.einsum("kpo,kpq->oq", grads, grads) / grads.shape[1]
        flat = index.flatten()
        full[flat[:, None], flat[None]] = torch.kron(b.contiguous(), a.contiguous())
    return full


def _observed(scene: Scene, layers: list[str], x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs (positions, in) and gradients (factors, positions, out) of the one call of every layer on a batch."""
    model, seen = scene.fresh(), {name: [] for name in layers}  # type: ignore[var-annotated]

    def note(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
            seen[name].append(((args or (kwargs["input"],))[0].detach().clone(), out))
            return out.clone()  # so that nothing writes into the layer's own output

        return hook

    for name in layers:
        model.get_submodule(name).register_forward_hook(note(name), with_kwargs=True, prepend=True)
    with torch.enable_grad():
        outputs = scene.call(model, x)
        outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    if any(len(calls) != 1 or not calls[0][1].requires_grad for calls in seen.values()):
        raise NoSuchCase("a layer is not called exactly once")
    tensors = [calls[0][1] for calls in seen.values()]
    weights = fisher_of_outputs(scene.data.likelihood, outputs.detach())
    values, vectors = torch.linalg.eigh(weights)
    roots = vectors * values.clamp_min(0).sqrt()[:, None]
    grads = [
        torch.autograd.grad(outputs.flatten(1), tensors, roots[:, :, k], retain_graph=True, allow_unused=True)
        for k in range(roots.shape[2])
    ]
    result = {}
    for index, (name, calls) in enumerate(seen.items()):
        if any(line[index] is None for line in grads):
            raise NoSuchCase("a layer that is not used")
        stacked = torch.stack([line[index] for line in grads])
        result[name] = calls[0][0].flatten(0, -2), stacked.flatten(1, -2)
    return result

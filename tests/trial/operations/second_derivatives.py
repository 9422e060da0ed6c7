"""The true Hessian: by two backward passes where that is symmetric, else by differences of gradients.

Torch's own second derivatives are wrong for some operations (`torch._weight_norm`), and then not symmetric. Differences see
through `detach`, which two backward passes do not, so they are second choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.trial.choices import NoSuchCase
from tests.trial.scene import Scene
from tests.trial.truth import losses


def dense_hessian(scene: Scene) -> Tensor:
    """1/N sum of second derivatives of the losses, (d, d)."""
    for method in (_two_passes, _differences):
        matrix = method(scene)
        if not torch.isfinite(matrix).all():
            raise NoSuchCase("no second derivatives")
        if (matrix - matrix.t()).abs().max() <= 1e-6 * matrix.abs().max().clamp_min(1e-2):
            return (matrix + matrix.t()) / 2
    raise NoSuchCase("the gradients are no gradients of a function")


def _two_passes(scene: Scene) -> Tensor:
    total = torch.zeros(*[scene.truth.rows.shape[-1]] * 2, dtype=torch.float64)
    for batch in scene.data.batches:
        model = scene.fresh()
        parameters, loss = _selected(scene, model), _total(scene, model, batch)
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
        slopes = torch.autograd.grad(loss, parameters, create_graph=True, **options)
        flat = torch.cat([slope.flatten() for slope in slopes])
        if flat.requires_grad:
            lines = [torch.autograd.grad(entry, parameters, retain_graph=True, **options) for entry in flat]
            total += torch.stack([torch.cat([part.flatten() for part in line]) for line in lines])
    return total / scene.data.examples


def _differences(scene: Scene, step: float = 1e-5) -> Tensor:
    """A column from the gradients on both sides of every entry."""
    columns = []
    for index in range(scene.truth.rows.shape[-1]):
        up, down = (_moved_gradient(scene, index, sign * step) for sign in (1, -1))
        columns.append((up - down) / (2 * step))
    return torch.stack(columns, 1)


def _moved_gradient(scene: Scene, index: int, move: float) -> Tensor:
    """Gradient of the mean loss with one entry of the parameters moved."""
    total: Any = 0
    for batch in scene.data.batches:
        model = scene.fresh()
        parameters = _selected(scene, model)
        flat = torch.cat([p.detach().flatten() for p in parameters])
        flat[index] += move
        with torch.no_grad():
            for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
                p.copy_(part.reshape(p.shape))
        loss = _total(scene, model, batch)
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        total = total + torch.cat([grad.flatten() for grad in grads])
    return total / scene.data.examples


def _selected(scene: Scene, model: nn.Module) -> list[Tensor]:
    own = dict(model.named_parameters())
    return [own[name] for name in scene.selected()]


def _total(scene: Scene, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Sum of the losses of a batch."""
    with torch.enable_grad():
        outputs = scene.call(model, batch[0])
        return losses(scene.data.likelihood, outputs[:, None] if outputs.ndim == 1 else outputs, batch[1]).sum()

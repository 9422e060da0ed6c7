"""The slow, obvious truth of curvatures: output Hessians, Gauss-Newton matrices and Hessians, by loops."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tangentlab.engine.layout import LayerCollection
from tangentlab.testing.small_models import EXAMPLES, Case
from tangentlab.testing.truth import gradient, jacobian

Loss = Callable[[Tensor, Tensor], Tensor]


def huberized(outputs: Tensor, targets: Tensor) -> Tensor:
    """A smooth convex loss that is no likelihood."""
    return (1 + (outputs - F.one_hot(targets, outputs.shape[1])).square()).sqrt().sum(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def output_hessian(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda f: loss(f[None], target[None])[0], output.detach())


def gauss_newton(case: Case, loss: Loss) -> Tensor:
    """1/n sum J^T H J, example by example."""
    total = 0.0
    for x, y, J in zip(case.inputs, case.targets, jacobian(case.model, case.inputs)):
        total = total + J.t() @ output_hessian(loss, case.model(x[None])[0], y) @ J / EXAMPLES
    return total


def hessian(case: Case, loss: Loss) -> Tensor:
    """Row by row, by differentiating the gradient of the mean loss."""
    layout = LayerCollection.from_model(case.model)
    parameters = layout.parameters(case.model)
    value = loss(case.model(case.inputs), case.targets).mean()
    grads = torch.autograd.grad(value, list(parameters.values()), create_graph=True, materialize_grads=True)
    flat = torch.cat([g.flatten() for g in grads])
    return torch.stack([gradient(entry, case.model) for entry in flat])

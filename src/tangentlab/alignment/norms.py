"""Other measures of a network's complexity, for comparison with C(f): norms of weights, paths, and gradients.

A layer's matrix is its weight as `(outputs, everything else)`: the kernel of a convolution counts as one matrix, as in the
literature on these measures. They are defined for chains of linear layers, convolutions, ReLU, and pooling; other modules are
refused by name, since normalization or residual branches change what the products of norms bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError, StructureError

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_WITHOUT_WEIGHTS = (nn.ReLU, nn.Flatten, nn.Identity, nn.Sequential, *_POOLS)


def parameter_norm(model: nn.Module) -> float:
    """`|w|_2` over all trainable parameters."""
    return float(_flat(model).norm())


def distance_from_initialization(model: nn.Module, initial: nn.Module) -> float:
    """`|w - w_0|_2` over the trainable parameters of `model`, each against that of the same name."""
    starts = dict(initial.named_parameters())
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    other = [n for n, p in trained.items() if n not in starts or starts[n].shape != p.shape]
    if other or not trained:
        raise InputError(
            f"The argument initial is not an earlier copy of the model: {', '.join(other[:5]) or 'nothing'} to be compared."
        )
    moved = [(parameter - starts[name]).detach().double().norm() for name, parameter in trained.items()]
    return float(torch.stack(moved).norm())


def frobenius_product(model: nn.Module) -> float:
    """`prod_l |W_l|_F`."""
    return math.prod(float(weight.norm()) for weight in layer_matrices(model))


def spectral_product(model: nn.Module) -> float:
    """`prod_l |W_l|_2`, a bound of the Lipschitz constant of a fully connected ReLU network."""
    return math.prod(_spectral(weight) for weight in layer_matrices(model))


def spectral_complexity(model: nn.Module, initial: nn.Module) -> float:
    """`prod_l |W_l|_2 (sum_l (|(W_l - W0_l)^T|_{2,1} / |W_l|_2)^{2/3})^{3/2}` (Bartlett, Foster and Telgarsky 2017).

    `|M|_{2,1}` sums the norms of the columns of M, here those of `(W - W0)^T`: one per output unit.
    """
    weights, starts = layer_matrices(model), layer_matrices(initial)
    norms = [_spectral(weight) for weight in weights]
    if min(norms) == 0:
        return 0.0
    moved = [float((w - s).norm(dim=1).sum()) for w, s in zip(weights, starts, strict=True)]
    return math.prod(norms) * sum((m / norm) ** (2 / 3) for m, norm in zip(moved, norms, strict=True)) ** 1.5


@torch.no_grad()
def path_norm(model: nn.Module, inputs: Tensor) -> float:
    """`sqrt(sum over paths of the product of squared weights)`: the root of the outputs' sum with squared weights, at ones.

    One forward pass with `W -> W^2` and `b -> b^2` (a bias is a path that starts at it) on an input of ones (Neyshabur,
    Salakhutdinov and Srebro 2015). Pooling is applied as it is.

    Args:
        inputs: any batch, for the shape of one example.
    """
    _require_chain(model)
    ones = torch.ones_like(inputs[:1], dtype=torch.float64)
    squares = {name: parameter.detach().double().square() for name, parameter in model.named_parameters()}
    with untouched(model):
        return math.sqrt(float(functional_call(model, squares, (ones,)).sum()))


@torch.no_grad()
def fisher_rao_norm(model: nn.Module, inputs: Tensor, labels: Tensor, batch: int = 500) -> float:
    """`(L + 1) sqrt(E <dl/df, f>^2)` for the cross-entropy l of a network with L hidden layers (Liang et al. 2019).

    One output is the logit of class 1 of labels 0 and 1 (or -1 and 1). For a ReLU network without biases this is
    `sqrt(w^T G w)`, with G the second moment of the loss gradients.
    """
    depth = len(layer_matrices(model))
    squares = []
    with untouched(model):
        for x, y in zip(inputs.split(batch), labels.split(batch), strict=True):
            outputs = model(x).double()
            squares.append((_logit_gradient(outputs, y.long()) * outputs).sum(1).square())
    return depth * math.sqrt(float(torch.cat(squares).mean()))


def _logit_gradient(outputs: Tensor, labels: Tensor) -> Tensor:
    """`dl/df` of the cross-entropy, `(n, outputs)`."""
    classes = outputs.shape[1]
    lowest, highest = (-1, 1) if classes == 1 else (0, classes - 1)
    if int(labels.min()) < lowest or int(labels.max()) > highest:
        raise InputError(f"Labels of {classes} outputs lie in {lowest}..{highest}.")
    if classes == 1:
        return outputs.sigmoid() - (labels > 0)[:, None].double()
    return outputs.softmax(1) - nn.functional.one_hot(labels, classes)


def neyshabur_two_layer(model: nn.Module, initial: nn.Module) -> float:
    """`|U_0|_2 |V|_F + |U - U_0|_F |V|_F + sqrt(h)` for x -> V relu(U x) with h hidden units (Neyshabur et al. 2019)."""
    weights, starts = layer_matrices(model), layer_matrices(initial)
    if not _is_two_layer(model):
        raise StructureError("This measure is of networks with one hidden layer, all linear.")
    (hidden, last), start = weights, starts[0]
    return _spectral(start) * float(last.norm()) + float((hidden - start).norm() * last.norm()) + math.sqrt(len(hidden))


def comparison_measures(model: nn.Module, initial: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """All of the above that are defined for this network, by name."""
    measures: dict[str, Callable[[], float]] = {
        "parameter norm": lambda: parameter_norm(model),
        "distance from initialization": lambda: distance_from_initialization(model, initial),
        "product of Frobenius norms": lambda: frobenius_product(model),
        "product of spectral norms": lambda: spectral_product(model),
        "spectral complexity": lambda: spectral_complexity(model, initial),
        "path norm": lambda: path_norm(model, inputs),
        "Fisher-Rao norm": lambda: fisher_rao_norm(model, inputs, labels),
    }
    if _is_two_layer(model):
        measures["Neyshabur et al."] = lambda: neyshabur_two_layer(model, initial)
    return {name: measure() for name, measure in measures.items()}


def _is_two_layer(model: nn.Module) -> bool:
    return [type(m) for m in model.modules() if isinstance(m, _LAYERS)] == [nn.Linear, nn.Linear]


def layer_matrices(model: nn.Module) -> list[Tensor]:
    """Weights of linear and convolutional layers as matrices `(outputs, rest)` in float64, in the order of the modules."""
    _require_chain(model)
    return [m.weight.detach().double().flatten(1) for m in model.modules() if isinstance(m, _LAYERS)]


def _require_chain(model: nn.Module) -> None:
    """Refuse modules for which these measures are not defined. A module with children only passes data on."""
    seen: set[nn.Module] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _LAYERS) and module in seen:
            raise StructureError(f"Layer {name!r} is used a second time: norm measures count every layer once.")
        seen.add(module)
        known = isinstance(module, _LAYERS + _WITHOUT_WEIGHTS)
        if not known and (any(True for _ in module.parameters(recurse=False)) or not any(module.children())):
            raise StructureError(
                f"{type(module).__name__} {name!r} is not a linear layer, convolution, ReLU or pooling: norm measures are not "
                "defined for it."
            )


def _spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def _flat(model: nn.Module) -> Tensor:
    layout: Any = LayerCollection.from_model(model)
    found: Tensor = layout.flatten(layout.parameters(model)).detach().double()
    if not found.numel():
        raise InputError("The model has no trainable parameters.")
    return found

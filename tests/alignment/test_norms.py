"""Comparison measures against explicit sums over weights, paths and gradients."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

from tangentlab.alignment import (
    comparison_measures,
    distance_from_initialization,
    fisher_rao_norm,
    frobenius_product,
    neyshabur_two_layer,
    parameter_norm,
    path_norm,
    spectral_complexity,
    spectral_product,
)
from tangentlab.errors import InputError, StructureError
from tangentlab.models import MLP, VGG11, ResNet18
from tests.alignment.linear import normal


@pytest.fixture
def pair(seed):
    initial = MLP((3, 5, 2)).double()
    model = copy.deepcopy(initial)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model, initial


def weights_of(model):
    return [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear)]


def test_norms_are_their_definitions(pair):
    model, initial = pair
    flat, start = (torch.cat([p.detach().flatten() for p in net.parameters()]) for net in pair)
    (u, v), (u0, _) = weights_of(model), weights_of(initial)
    assert parameter_norm(model) == pytest.approx(float(flat.norm()))
    assert distance_from_initialization(model, initial) == pytest.approx(float((flat - start).norm()))
    assert frobenius_product(model) == pytest.approx(float(u.norm() * v.norm()))
    top = [float(torch.linalg.svdvals(w)[0]) for w in (u, v)]
    assert spectral_product(model) == pytest.approx(top[0] * top[1])
    moved = [sum(float(row.norm()) for row in (w - s)) for w, s in zip(weights_of(model), weights_of(initial))]
    expected = top[0] * top[1] * sum((m / t) ** (2 / 3) for m, t in zip(moved, top)) ** 1.5
    assert spectral_complexity(model, initial) == pytest.approx(expected)
    two = float(torch.linalg.svdvals(u0)[0] * v.norm() + (u - u0).norm() * v.norm()) + 5**0.5
    assert neyshabur_two_layer(model, initial) == pytest.approx(two)


def test_the_path_norm_is_the_sum_over_all_paths(seed):
    model = MLP((2, 3, 3, 2), bias=False).double()
    a, b, c = weights_of(model)
    total = sum(
        float(a[j, i] * b[k, j] * c[o, k]) ** 2 for i, j, k, o in product(range(2), range(3), range(3), range(2))
    )
    assert path_norm(model, normal(4, 2)) == pytest.approx(total**0.5)
    shallow = MLP((2, 3, 1)).double()
    (u, v), biases = weights_of(shallow), [m.bias.detach() for m in shallow.layers if isinstance(m, nn.Linear)]
    with_bias = float((v.square() @ (u.square().sum(1) + biases[0].square()) + biases[1].square()).sum())
    assert path_norm(shallow, normal(4, 2)) == pytest.approx(with_bias**0.5)


def test_the_fisher_rao_norm_is_that_of_the_loss_gradients_for_a_relu_network_without_biases(seed):
    model = MLP((4, 6, 5, 3), bias=False).double()
    inputs, labels = normal(9, 4), torch.arange(9) % 3
    total = 0.0
    for x, y in zip(inputs, labels):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        total += float(sum((g * p).sum().detach() for g, p in zip(grads, model.parameters()))) ** 2
    assert fisher_rao_norm(model, inputs, labels, batch=4) == pytest.approx((total / 9) ** 0.5, rel=1e-10)


def test_convolutions_count_as_matrices_and_measures_without_meaning_are_left_out_or_refused(seed, pair):
    model = VGG11(base=4)
    initial = copy.deepcopy(model)
    inputs, labels = torch.randn(6, 3, 32, 32), torch.arange(6)
    found = comparison_measures(model, initial, inputs, labels)
    assert "Neyshabur et al." not in found and "path norm" in found
    assert found["distance from initialization"] == found["spectral complexity"] == 0
    first = torch.linalg.svdvals(
        next(m for m in model.modules() if isinstance(m, nn.Conv2d)).weight.detach().flatten(1)
    )[0]
    alone = nn.Sequential(copy.deepcopy(next(m for m in model.modules() if isinstance(m, nn.Conv2d))))
    assert spectral_product(alone) == pytest.approx(float(first), rel=1e-6)
    assert "Neyshabur et al." in comparison_measures(*pair, normal(3, 3), torch.arange(3) % 2)
    with pytest.raises(StructureError, match="BatchNorm2d"):
        frobenius_product(ResNet18(base=4))
    with pytest.raises(StructureError, match="one hidden layer"):
        neyshabur_two_layer(model, initial)


def test_a_convolution_and_a_linear_layer_are_no_hidden_layer_of_units(seed):
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    found = comparison_measures(model, copy.deepcopy(model), torch.randn(4, 1, 4, 4), torch.arange(4) % 3)
    assert "Neyshabur et al." not in found and len(found) == 7


@pytest.mark.parametrize("zero", [0, -1])
def test_one_output_is_the_logit_of_class_one(seed, zero):
    model, x = MLP((3, 5, 1)).double(), normal(6, 3)
    labels = torch.tensor([zero, 1, 1, zero, zero, 1])
    f = model(x).detach()[:, 0]
    slope = f.sigmoid() - (labels > 0).double()
    truth = 2 * float((slope * f).square().mean().sqrt())
    assert fisher_rao_norm(model, x, labels) == pytest.approx(truth)
    with pytest.raises(InputError, match=r"1 outputs lie in -1\.\.1"):
        fisher_rao_norm(model, x, labels + 1 - zero)
    with pytest.raises(InputError, match=r"2 outputs lie in 0\.\.1"):
        fisher_rao_norm(MLP((3, 5, 2)).double(), x, torch.full((6,), 2))


def test_a_layer_used_twice_is_refused_and_the_distance_is_by_name(pair):
    layer = nn.Linear(3, 3)
    with pytest.raises(StructureError, match="second time"):
        spectral_product(nn.Sequential(layer, nn.ReLU(), layer))
    model, initial = pair
    truth = distance_from_initialization(model, initial)
    initial.requires_grad_(False)
    assert distance_from_initialization(model, initial) == truth
    with pytest.raises(InputError, match=r"layers\.0\.weight"):
        distance_from_initialization(model, MLP((3, 4, 2)))

"""PVector: the algebra of parameter space, its views, and its way into and out of a model."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.testing.small_models import Bare, mlp


@pytest.fixture
def model(seed) -> nn.Module:
    """Linear layers, a bare vector and a parameter without axes, in double precision."""
    return Bare().double()


def flat_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def pair(model: nn.Module, *batch: int) -> tuple[tl.PVector, tl.PVector, torch.Tensor, torch.Tensor]:
    """Two random vectors with entries of both signs, and their flat tensors."""
    layout = LayerCollection.from_model(model)
    a, b = torch.randn(2, *batch, layout.numel, dtype=torch.float64)
    return tl.PVector(layout, a), tl.PVector(layout, b), a, b


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=["one", "batch", "two axes"])
def test_sums_scalars_and_powers_act_on_the_entries(model, batch):
    v, w, a, b = pair(model, *batch)
    for result, expected in (
        (v + w, a + b),
        (v - w, a - b),
        (-v, -a),
        (2 * v, 2 * a),
        (v * 2, 2 * a),
        (v / 4, a / 4),
        (v**2, a**2),
        (abs(v) ** 0.5, a.abs() ** 0.5),
        (torch.tensor(3.0) * v, 3 * a),
        (v * torch.tensor(3.0), 3 * a),
        (np.float32(2) * v, 2 * a),
        (v * np.float64(2), 2 * a),
        (v / np.int64(2), a / 2),
    ):
        assert isinstance(result, tl.PVector) and result.layout == v.layout
        assert torch.equal(result.flat, expected)


def test_one_number_per_vector_of_a_batch_scales_each(model):
    v, _, a, _ = pair(model, 4)
    scales = torch.arange(1.0, 5.0)
    assert torch.equal((v * scales).flat, a * scales[:, None])
    assert torch.equal((scales * v).flat, a * scales[:, None])
    assert torch.equal((v / scales).flat, a / scales[:, None])


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_norms_count_negative_entries_by_their_size(model, p):
    v, _, a, _ = pair(model, 3)
    expected = a.abs().amax(-1) if math.isinf(p) else (a.abs() ** p).sum(-1) ** (1 / p)
    assert torch.allclose(v.norm(p), expected, rtol=1e-12)
    assert (-v).norm(p).equal(v.norm(p)) and bool((a < 0).any())


def test_a_norm_of_nonpositive_order_is_refused(model):
    with pytest.raises(InputError, match="p > 0"):
        tl.PVector.ones(model).norm(0)


def test_dot_and_cosine_of_single_vectors_and_batches(model):
    v, w, a, b = pair(model, 3)
    assert torch.allclose(v.dot(w), (a * b).sum(-1))
    assert torch.allclose(v.cosine(w), (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)))
    one = tl.PVector(v.layout, b[0])
    assert torch.allclose(v.dot(one), a @ b[0]) and one.dot(one).shape == ()


def test_zeros_ones_and_copies_of_the_model(model):
    d = sum(p.numel() for p in model.parameters())
    assert torch.equal(tl.PVector.zeros(model).flat, torch.zeros(d, dtype=torch.float64))
    assert torch.equal(tl.PVector.ones(model).flat, torch.ones(d, dtype=torch.float64))
    v = tl.PVector.from_model(model)
    assert torch.equal(v.flat, flat_of(model))
    v.flat.data.zero_()
    assert flat_of(model).abs().sum() > 0


def test_random_unit_vectors_have_norm_one_and_follow_the_generator(model):
    draw = [tl.PVector.random_unit(model, batch=5, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.allclose(draw[0].norm(), torch.ones(5, dtype=torch.float64))
    assert torch.equal(draw[0].flat, draw[1].flat) and not torch.equal(draw[0].flat, draw[2].flat)
    assert tl.PVector.random_unit(model).norm() == pytest.approx(1)


def test_random_unit_vectors_are_uniform_on_the_sphere(model):
    """E[v v^T] = I / d: with 20000 draws each entry of d * mean lies within 6 standard deviations."""
    v = tl.PVector.random_unit(model, batch=20_000, generator=torch.Generator().manual_seed(0)).flat
    d = v.shape[1]
    second = d * v.t() @ v / len(v)
    assert (second - torch.eye(d)).abs().max() < 6 * (2 / len(v)) ** 0.5
    assert (v.mean(0).abs() * d**0.5).max() < 6 / len(v) ** 0.5


def test_gradient_vector_is_the_grad_of_the_parameters_and_zero_where_there_is_none(model):
    with pytest.raises(InputError, match="backward"):
        tl.PVector.from_grad(model)
    model.shift.requires_grad_(True)
    x = torch.randn(4, 3, dtype=torch.float64)
    model.last(x).square().sum().backward()
    v = tl.PVector.from_grad(model)
    assert torch.equal(v["last.weight"], model.last.weight.grad) and torch.equal(v["last.bias"], model.last.bias.grad)
    assert v["scale"] == 0 and torch.equal(v["shift"], torch.zeros(3, dtype=torch.float64))
    v.flat.zero_()
    assert model.last.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("bias", [True, False])
def test_gradient_vector_after_create_graph_is_a_copy_without_a_graph(bias):
    layer = nn.Linear(3, 2, bias=bias).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the cycle between parameter and grad
        layer(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward(create_graph=True)
    assert layer.weight.grad.requires_grad
    v = tl.PVector.from_grad(layer)
    truth = torch.cat([p.grad.detach().flatten() for p in layer.parameters()])
    assert not v.flat.requires_grad and not any(part.requires_grad for part in v.to_dict().values())
    assert torch.equal(v.flat, truth)
    layer.zero_grad(set_to_none=False)
    assert torch.equal(v.flat, truth) and float(truth.abs().min()) > 0
    layer.zero_grad()  # or parameter and grad keep each other alive


def test_flat_and_dict_views_are_two_sides_of_one_vector(model):
    v, _, a, _ = pair(model, 2)
    parts = v.to_dict()
    assert list(parts) == [name for name, _ in model.named_parameters()]
    assert all(parts[name].shape == (2, *p.shape) for name, p in model.named_parameters())
    again = tl.PVector(v.layout, parts)
    assert torch.equal(again.flat, a) and torch.equal(again["shift"], parts["shift"])
    parts["scale"][0] = 7.0
    assert v.flat[0, 0] == 7.0


def test_order_is_that_of_named_parameters_row_major(model):
    numbered = tl.PVector(LayerCollection.from_model(model), torch.arange(16.0))
    assert numbered["scale"] == 0 and numbered["shift"].tolist() == [1, 2, 3]
    assert numbered["last.weight"].tolist() == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert numbered["last.bias"].tolist() == [13, 14, 15]


def test_adding_and_copying_to_a_model_change_its_parameters_in_place(model):
    before, parameters = flat_of(model), list(model.parameters())
    step = tl.PVector.random_unit(model)
    step.add_to_model(model)
    assert torch.allclose(flat_of(model), before + step.flat)
    tl.PVector(step.layout, before).copy_to_model(model)
    assert torch.equal(flat_of(model), before)
    assert all(a is b and a.requires_grad for a, b in zip(parameters, model.parameters()))


def test_a_step_on_some_layers_leaves_the_others_alone(model):
    before = flat_of(model)
    tl.PVector.ones(model, "last").add_to_model(model)
    assert torch.equal(flat_of(model)[:4], before[:4]) and torch.equal(flat_of(model)[4:], before[4:] + 1)


def test_a_float32_step_fits_a_float64_model(model):
    before = flat_of(model)
    tl.PVector.ones(model).to(torch.float32).add_to_model(model)
    assert torch.allclose(flat_of(model), before + 1) and flat_of(model).dtype == torch.float64


def test_conversion_clone_and_detach(model):
    v = tl.PVector.from_model(model)
    assert v.to(torch.float32).dtype == torch.float32 and v.to("cpu").device == torch.device("cpu")
    copy = v.detach().clone()
    copy.flat.zero_()
    assert v.flat.abs().sum() > 0 and not copy.flat.requires_grad and v.flat.requires_grad


def test_autograd_flows_through_the_model_into_vectors_and_back(model):
    v = tl.PVector.from_model(model)
    (v.dot(v) / 2 + 3 * v["scale"]).backward()
    assert torch.allclose(model.last.weight.grad, model.last.weight)
    assert torch.allclose(model.scale.grad, model.scale + 3)


def test_autograd_flows_through_algebra_on_leaves(model):
    layout = LayerCollection.from_model(model)
    leaf = torch.randn(layout.numel, dtype=torch.float64, requires_grad=True)
    v = tl.PVector(layout, leaf)
    (2 * v - v / 2).norm().backward()
    assert torch.allclose(leaf.grad, 1.5 * leaf.detach() / leaf.detach().norm())


def test_restriction_keeps_the_entries_of_the_smaller_collection(model):
    v, _, _, _ = pair(model, 2)
    small = LayerCollection.from_model(model, "last")
    assert torch.equal(v.restrict(small).flat, v.flat[:, 4:])
    with pytest.raises(InputError, match="scale"):
        v.restrict(small).restrict(v.layout)


def test_vectors_of_different_models_do_not_mix(model):
    v, other = tl.PVector.ones(model), tl.PVector.ones(mlp().double())
    for operation in (v.__add__, v.__sub__, v.dot, v.cosine):
        with pytest.raises(InputError, match="different parameters"):
            operation(other)
    with pytest.raises(InputError, match="another model"):
        v.add_to_model(mlp())


def test_what_is_no_vector_of_the_layout_is_refused(model):
    layout = LayerCollection.from_model(model)
    parts = tl.PVector.ones(model).to_dict()
    for values, message in (
        (torch.ones(layout.numel + 1), "16 entries"),
        ({name: part for name, part in parts.items() if name != "shift"}, "shift"),
        (parts | {"shift": torch.ones(4)}, "shift has shape"),
        (parts | {"last.bias": torch.ones(())}, "last.bias has shape"),
        (parts | {"shift": torch.ones(2, 3)}, "leading axes"),
    ):
        with pytest.raises(InputError, match=message):
            tl.PVector(layout, values)
    with pytest.raises(InputError, match="No parameter 'first'"):
        tl.PVector.ones(model)["first"]


def test_a_batch_of_vectors_does_not_fit_a_model(model):
    before, batch = flat_of(model), tl.PVector.random_unit(model, batch=1)
    for write in (batch.add_to_model, batch.copy_to_model):
        with pytest.raises(InputError, match="single vector"):
            write(model)
    assert torch.equal(flat_of(model), before)


def test_vectors_do_not_combine_with_anything_else(model):
    v = tl.PVector.ones(model)
    for wrong in (lambda: v + 1, lambda: v * "2", lambda: v * v, lambda: v - tl.FVector.ones(4, 4)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(InputError, match="inner product"):
        v.dot(tl.FVector.ones(4, 4))


def test_a_vector_survives_pickling_and_tells_what_it_is(model):
    v, _, a, _ = pair(model, 2)
    back = pickle.loads(pickle.dumps(v))
    assert torch.equal(back.flat, a) and back.layout == v.layout
    assert repr(v) == "PVector(d = 16, batch (2,), torch.float64, cpu)"

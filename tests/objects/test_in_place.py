"""In-place algebra of PVector and FVector: the numbers change, the object and its memory stay."""

import numpy as np
import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.testing.small_models import Bare

BATCHES = [(), (4,), (2, 3)]


def parameter_vector(data: Tensor) -> tl.PVector:
    return tl.PVector(LayerCollection.from_model(Bare().double()), data)


def named_vector(data: Tensor) -> tl.PVector:
    layout = LayerCollection.from_model(Bare().double())
    return tl.PVector(layout, {name: part.clone() for name, part in layout.unflatten(data).items()})


def function_vector(data: Tensor) -> tl.FVector:
    """Examples first in memory, as outputs of a model come, so that the flat view is a copy."""
    return tl.FVector(data.unflatten(-1, (8, 2)).transpose(-1, -2))


KINDS = (parameter_vector, named_vector, function_vector)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def plus(v, w):
    v += w
    return v


def minus(v, w):
    v -= w
    return v


def times(v, factor):
    v *= factor
    return v


def over(v, factor):
    v /= factor
    return v


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_operation_writes_what_the_algebra_gives_into_the_same_memory(kind, batch):
    a, b = noise(2, *batch)
    scales = torch.arange(1.0, 5.0, dtype=torch.float64)
    cases = [
        (lambda v, w: plus(v, w), lambda v, w: v + w),
        (lambda v, w: minus(v, w), lambda v, w: v - w),
        (lambda v, w: times(v, 3), lambda v, w: 3 * v),
        (lambda v, w: times(v, np.float32(2)), lambda v, w: 2 * v),
        (lambda v, w: over(v, torch.tensor(4.0)), lambda v, w: v / 4),
        (lambda v, w: v.add_(w, alpha=-0.5), lambda v, w: v - 0.5 * w),
        (lambda v, w: v.add_(w, alpha=torch.tensor(2.0)), lambda v, w: v + 2 * w),
    ]
    if batch == (4,):
        cases += [(lambda v, w: times(v, scales), lambda v, w: v * scales)]
        cases += [(lambda v, w: over(v, scales), lambda v, w: v / scales)]
    for written, expected in cases:
        v, w = kind(a.clone()), kind(b)
        fresh, memory = expected(kind(a.clone()), w), v.tensor()
        result = written(v, w)
        assert result is v and v.tensor().data_ptr() == memory.data_ptr()
        assert torch.allclose(v.tensor(), fresh.tensor(), rtol=1e-14) and torch.equal(w.tensor(), kind(b).tensor())


def test_the_parts_of_a_parameter_vector_follow():
    for make in (parameter_vector, named_vector):
        v, w = make(noise()), make(noise(2)[1])
        assert v["last.weight"].shape == (3, 3)
        expected = (v + w).to_dict()
        v += w
        assert all(torch.equal(v[name], part) for name, part in expected.items())
        v["shift"].zero_()
        assert v.flat[1:4].abs().sum() == 0


def test_a_vector_made_from_a_flat_tensor_writes_into_it():
    flat = noise()
    v = parameter_vector(flat)
    v *= 2
    assert torch.equal(flat, 2 * noise())


def test_a_batch_takes_a_single_vector_and_not_the_other_way_round(kind):
    batch, one = kind(noise(4)), kind(noise())
    expected = batch + one
    batch += one
    assert torch.equal(batch.tensor(), expected.tensor())
    with pytest.raises(InputError, match="cannot be changed in place"):
        one += batch
    assert torch.equal(one.tensor(), kind(noise()).tensor())


def test_autograd_flows_through_what_is_no_leaf_and_leaves_are_refused(kind):
    leaf, alpha = noise().requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    v = kind(leaf * 1)
    v.add_(kind(noise()), alpha=alpha)
    v *= 3
    v.tensor().sum().backward()
    assert torch.allclose(leaf.grad, torch.full_like(leaf, 3)) and torch.allclose(alpha.grad, 3 * noise().sum())
    if kind is not named_vector:  # gathered parts are no leaf
        with pytest.raises(InputError, match="leaf"):
            plus(kind(leaf), kind(noise()))


def test_what_is_no_vector_of_the_space_is_refused(kind):
    v = kind(noise())
    other = tl.FVector.ones(3, 3) if kind is function_vector else tl.PVector.ones(torch.nn.Linear(2, 2).double())
    for wrong in (lambda: plus(v, other), lambda: minus(v, other), lambda: v.add_(other)):
        with pytest.raises(InputError, match="different"):
            wrong()
    with pytest.raises(InputError, match="adds to another"):
        v.add_(1.0)
    with pytest.raises(InputError, match="one number"):
        v.add_(v, alpha=torch.ones(2))
    for wrong in (lambda: plus(v, 1), lambda: minus(v, "one"), lambda: times(v, "two"), lambda: over(v, v)):
        with pytest.raises(TypeError):
            wrong()
    assert torch.equal(v.tensor(), kind(noise()).tensor())

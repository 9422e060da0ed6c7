"""FVector: values of outputs on examples."""

import math

import numpy as np
import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError


@pytest.fixture
def data(seed) -> torch.Tensor:
    """Two pairs of batches of vectors with 3 outputs on 4 examples."""
    return torch.randn(2, 5, 3, 4, dtype=torch.float64)


def test_sums_scalars_and_powers_act_on_the_entries(data):
    a, b = data
    v, w = tl.FVector(a), tl.FVector(b)
    for result, expected in (
        (v + w, a + b),
        (v - w, a - b),
        (-v, -a),
        (2 * v, 2 * a),
        (v * 2, 2 * a),
        (v / 4, a / 4),
        (v**2, a**2),
        (torch.tensor(3.0) * v, 3 * a),
        (np.float32(2) * v, 2 * a),
        (v * torch.arange(5.0), a * torch.arange(5.0)[:, None, None]),
    ):
        assert isinstance(result, tl.FVector) and torch.equal(result.data, expected)


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_norms_count_negative_entries_by_their_size(data, p):
    flat = data[0].flatten(1).abs()
    expected = flat.amax(-1) if math.isinf(p) else (flat**p).sum(-1) ** (1 / p)
    assert torch.allclose(tl.FVector(data[0]).norm(p), expected, rtol=1e-12)


def test_dot_is_the_sum_over_outputs_and_examples(data):
    a, b = data
    assert torch.allclose(tl.FVector(a).dot(tl.FVector(b)), (a * b).sum((1, 2)))
    assert torch.allclose(tl.FVector(a).cosine(tl.FVector(a)), torch.ones(5, dtype=torch.float64))


def test_flat_order_is_output_major(data):
    v = tl.FVector(data[0, 0])
    assert v.flat[1 * 4 + 2] == data[0, 0, 1, 2] and v.shape == (3, 4)


def test_outputs_of_a_model_come_and_go_with_examples_first(data):
    outputs = data[0, 0].t().reshape(4, 3, 1)
    v = tl.FVector.from_outputs(outputs)
    assert torch.equal(v.data, data[0, 0]) and torch.equal(v.to_outputs(), data[0, 0].t())


def test_zeros_ones_and_random_units():
    assert torch.equal(tl.FVector.zeros(2, 3).data, torch.zeros(2, 3))
    assert torch.equal(tl.FVector.ones(2, 3, dtype=torch.float64).data, torch.ones(2, 3, dtype=torch.float64))
    units = [tl.FVector.random_unit(2, 3, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert units[0].norm() == pytest.approx(1) and torch.equal(units[0].data, units[1].data)
    assert not torch.equal(units[0].data, units[2].data)


def test_conversion_clone_and_detach(data):
    leaf = data[0].clone().requires_grad_()
    v = tl.FVector(leaf)
    assert v.to(torch.float32).dtype == torch.float32 and v.device == torch.device("cpu")
    copy = v.detach().clone()
    copy.data.zero_()
    assert leaf.abs().sum() > 0 and not copy.data.requires_grad


def test_autograd_flows_through(data):
    leaf = data[0].clone().requires_grad_()
    (2 * tl.FVector(leaf)).norm().sum().backward()
    assert torch.allclose(leaf.grad, 2 * data[0] / data[0].flatten(1).norm(dim=1)[:, None, None])


def test_vectors_on_other_outputs_or_examples_do_not_mix(data):
    v = tl.FVector(data[0])
    for operation in (v.__add__, v.__sub__, v.dot):
        with pytest.raises(InputError, match="different"):
            operation(tl.FVector.ones(4, 3))
    with pytest.raises(InputError, match="outputs, examples"):
        tl.FVector(torch.ones(3))
    with pytest.raises(TypeError):
        v + 1
    assert repr(v) == "FVector(outputs = 3, examples = 4, torch.float64)"

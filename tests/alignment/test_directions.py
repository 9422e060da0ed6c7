"""Perturbations along Jacobian directions, against the model moved by hand; the model itself stays as it is."""

import copy

import pytest
import torch

from tangentlab import Jacobian, PVector
from tangentlab.alignment import compare_directions, directional_effects
from tangentlab.errors import InputError
from tests.alignment.linear import network, normal


def test_effects_are_those_of_a_model_that_is_really_moved():
    model, test = network(), normal(7, 3, seed=4)
    moves = PVector.random_unit(model, batch=3, generator=torch.Generator().manual_seed(0)) * 0.7
    found = directional_effects(model, [(test[:4],), (test[4:],)], moves)
    for number in range(3):
        moved = copy.deepcopy(model)
        PVector(moves.layout, moves.flat[number]).add_to_model(moved)
        change = (moved(test) - model(test)).detach()
        assert float(found[number]) == pytest.approx(float(change.square().mean().sqrt()), rel=1e-12)


def test_top_directions_move_the_function_by_their_singular_value_and_more_than_random_ones():
    model, examples = network(inputs=3, width=30), normal(8, 3, seed=1)
    before = copy.deepcopy(model.state_dict())
    radius = 1e-5
    found = compare_directions(model, examples, examples, 5, radius, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(Jacobian(model, examples).data.flatten(0, 1))
    assert torch.allclose(found.singular_values, singular[:5], rtol=1e-8)
    assert torch.allclose(found.top, radius * singular[:5] / 16**0.5, rtol=1e-3)
    assert float(found.random.max()) < float(found.top[0])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_single_vector_is_refused():
    model = network()
    with pytest.raises(InputError, match="batch of perturbations"):
        directional_effects(model, normal(4, 3), PVector.random_unit(model))

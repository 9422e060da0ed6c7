"""Decay exponents from geometry, against the transform measured along the direction (theorem 3.3)."""

import numpy as np
import pytest

from tangentlab.errors import InputError
from tangentlab.spectral import NetworkTransform, decay_along, enumerate_regions, envelope_slope
from tests.spectral.networks import Pyramid, hat, mlp, shallow

PYRAMID = [
    (2, [1.0, 0.42], 3), (2, [1.0, 0.0], 2), (2, [0.0, -1.0], 2), (2, [1.0, 1.0], 2),
    (3, [1.0, 0.42, 0.7], 4), (3, [1.0, 0.0, 0.0], 2), (3, [1.0, 1.0, 1.0], 2), (3, [1.0, 1.0, 0.0], 3),
]  # fmt: skip


@pytest.mark.parametrize("dimension, direction, exponent", PYRAMID)
def test_pyramid_falls_off_as_its_faces_say(dimension: int, direction: list[float], exponent: int) -> None:
    partition = enumerate_regions(Pyramid(), [[-2.0, 2.1]] * dimension)
    found = decay_along(partition, direction)
    assert found.exponent == exponent and found.codimension == exponent - 1
    measured = envelope_slope(NetworkTransform(partition, border=False), direction, 30, 1000)
    assert measured == pytest.approx(-exponent, abs=0.25)


@pytest.mark.parametrize("dimension, direction, exponent", PYRAMID)
def test_weights_of_the_faces_are_the_leading_term(dimension: int, direction: list[float], exponent: int) -> None:
    partition = enumerate_regions(Pyramid(), [[-2.0, 2.1]] * dimension)
    found = decay_along(partition, direction)
    towards = np.array(direction) / np.linalg.norm(direction)
    t = np.array([1e4, 3e4])
    leading = -(np.exp(-1j * t[:, None] * (found.places @ towards)) @ found.weights) / t**exponent
    truth = NetworkTransform(partition, border=False)(t[:, None] * towards)
    np.testing.assert_allclose(truth * t**exponent, leading * t**exponent, atol=3e-3 * np.abs(found.weights).sum())


def test_one_dimension_is_always_two() -> None:
    found = decay_along(enumerate_regions(hat(), (-2, 2)), [1.0])
    assert found.exponent == 2 and len(found.faces) == 3


def test_walls_without_a_jump_are_skipped() -> None:
    silent = shallow([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [0.0, 1.0])  # the first unit is not read
    partition = enumerate_regions(silent, [[-1, 1]] * 2)
    assert len(partition) == 4
    assert decay_along(partition, [0.0, 1.0]).exponent == 2
    assert decay_along(partition, [1.0, 0.0]).exponent == float("inf")


def test_folds_that_cross_and_leave_each_other_alone_cause_nothing() -> None:
    ridges = enumerate_regions(mlp(2, 8, 1, seed=1), [[-2, 2]] * 2)  # one hidden layer: a sum of ridges
    assert decay_along(ridges, [1.0, 0.3]).exponent == float("inf")
    deep = enumerate_regions(mlp(2, 8, 2, seed=1), [[-2, 2]] * 2)
    assert decay_along(deep, [1.0, 0.3]).exponent == 3


def test_the_wall_that_causes_slow_decay_is_named() -> None:
    model = mlp(2, 6, 2, seed=1)
    partition = enumerate_regions(model, [[-2, 2]] * 2)
    for unit, normal in enumerate(model[0].weight.detach().double().numpy()):
        found = decay_along(partition, normal)
        if found.exponent == 2:
            assert {partition.wall(int(number)) for number in partition.complex.walls[found.faces]} == {(0, unit)}
            break
    else:
        pytest.fail("No unit of the first layer has a wall in the box.")


def test_directions_that_are_none_are_refused() -> None:
    partition = enumerate_regions(hat(), (-2, 2))
    with pytest.raises(InputError, match="direction"):
        decay_along(partition, [0.0])
    with pytest.raises(InputError, match="direction"):
        decay_along(partition, [1.0, 0.0])

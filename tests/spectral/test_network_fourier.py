"""The exact transform of a network, against closed forms and adaptive quadrature."""

import numpy as np
import pytest
from scipy.integrate import quad

from tangentlab.errors import InputError
from tangentlab.spectral import NetworkTransform, enumerate_regions, kink_transform, kinks, network_transform
from tests.spectral.networks import Pyramid, hat, mlp


def hat_truth(k: np.ndarray) -> np.ndarray:
    return np.sinc(k / 2 / np.pi) ** 2


def test_hat_is_its_closed_form_at_all_frequencies() -> None:
    k = np.array([0.0, 1e-8, 1e-3, 0.1, 0.7, 3.0, 2 * np.pi, 50.0, 1000.0])
    found = network_transform(enumerate_regions(hat(), (-3, 4)), k)
    np.testing.assert_allclose(found, hat_truth(k), atol=3e-15)


def test_kinks_of_the_hat_and_the_closed_form_from_them() -> None:
    places, jumps = kinks(enumerate_regions(hat(), (-3, 4)))
    np.testing.assert_allclose(places, [-1, 0, 1], atol=1e-15)
    np.testing.assert_allclose(jumps, [1, -2, 1], atol=1e-15)
    k = np.array([0.5, 3.0, 40.0])
    np.testing.assert_allclose(kink_transform(places, jumps, k), hat_truth(k), atol=1e-14)
    with pytest.raises(InputError, match="k = 0"):
        kink_transform(places, jumps, [0.0, 1.0])


@pytest.mark.parametrize("k", [0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0])
def test_a_network_on_an_interval_is_adaptive_quadrature(k: float) -> None:
    model = mlp(1, 12, 2, seed=7).double()
    partition = enumerate_regions(model, (-1.0, 2.0))
    edges = np.unique(np.concatenate([partition.corners(i)[:, 0] for i in range(len(partition))]))

    layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in model[::2]]

    def f(x: float) -> float:
        h = np.array([x])
        for weight, bias in layers[:-1]:
            h = np.maximum(weight @ h + bias, 0)
        return float((layers[-1][0] @ h + layers[-1][1])[0])

    def part(wave: str) -> float:
        if k == 0:
            return sum(quad(f, a, b)[0] for a, b in zip(edges, edges[1:])) if wave == "cos" else 0.0
        return sum(quad(f, a, b, weight=wave, wvar=k, epsabs=1e-12)[0] for a, b in zip(edges, edges[1:]))

    assert abs(network_transform(partition, k) - (part("cos") - 1j * part("sin"))) < 1e-8


@pytest.mark.parametrize("dimension, width", [(1, 12), (2, 8), (3, 6), (4, 3)])
@pytest.mark.parametrize("size", [0.3, 1.0, 10.0, 100.0, 1000.0])
def test_walls_and_regions_give_the_same_transform(dimension: int, width: int, size: float) -> None:
    transform = NetworkTransform(enumerate_regions(mlp(dimension, width, 2, seed=dimension), [[-1.0, 2.0]] * dimension))
    k = np.random.default_rng(0).normal(size=(8, dimension))
    k[0] = np.eye(dimension)[0]
    k[1, 1:] *= 1e-9
    k *= size / np.linalg.norm(k, axis=1, keepdims=True)
    np.testing.assert_allclose(transform(k), transform.by_regions(k), atol=1e-12)


def test_border_terms_vanish_for_a_compactly_supported_network() -> None:
    partition = enumerate_regions(Pyramid(), [[-2.0, 1.5]] * 2)
    k = np.random.default_rng(0).normal(size=(20, 2)) * 5
    with_border, without = network_transform(partition, k), network_transform(partition, k, border=False)
    np.testing.assert_allclose(with_border, without, atol=1e-14)

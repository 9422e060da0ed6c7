"""Transforms of polytopes by the recursion over faces, and Lemma 3.1, against closed forms and quadrature."""

import numpy as np
import pytest
from scipy.integrate import nquad

from tangentlab.errors import InputError
from tangentlab.spectral import enumerate_regions, lemma_3_1, network_transform, polytope_transform
from tangentlab.spectral.divided import wave_differences
from tests.spectral.networks import Pyramid, hat, mlp


def cube(dimension: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[[0.0, 1.0]] * dimension), -1).reshape(-1, dimension)


def awkward(dimension: int) -> np.ndarray:
    """Zero, small, orthogonal to faces, nearly orthogonal, generic and large frequencies."""
    k = np.random.default_rng(0).normal(size=(40, dimension)) * 5
    axis = np.eye(dimension)[0]
    k[0] = 0
    k[1:9] *= np.geomspace(1e-9, 0.3, 8)[:, None]
    k[9:19] = 7 * axis + k[9:19] * np.geomspace(1e-14, 0.1, 10)[:, None]
    k[19] = 7 * axis
    k[20:24] *= 100
    return k


def test_interval_is_its_closed_form() -> None:
    k = np.array([1e-3, 0.5, 3.0, 80.0])
    a, b = -0.3, 1.9
    truth = 1j * (np.exp(-1j * k * b) - np.exp(-1j * k * a)) / k
    np.testing.assert_allclose(polytope_transform([[a], [b]], k), truth, atol=1e-13)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_cube_is_a_product_of_sincs(dimension: int) -> None:
    k = awkward(dimension)
    truth = np.prod(np.exp(-0.5j * k) * np.sinc(k / 2 / np.pi), axis=1)
    np.testing.assert_allclose(polytope_transform(cube(dimension), k), truth, atol=2e-15)


@pytest.mark.parametrize("dimension", [2, 3])
def test_volume_at_zero_and_conjugate_at_minus_k(dimension: int) -> None:
    corners = np.random.default_rng(3).normal(size=(9, dimension))
    from scipy.spatial import ConvexHull

    assert polytope_transform(corners, np.zeros(dimension)) == pytest.approx(ConvexHull(corners).volume, rel=1e-12)
    k = awkward(dimension)
    np.testing.assert_allclose(polytope_transform(corners, -k), polytope_transform(corners, k).conj(), atol=1e-13)


def test_a_translation_is_a_phase_and_a_rotation_turns_k() -> None:
    corners, k = np.random.default_rng(3).normal(size=(9, 3)), awkward(3)
    shift = np.array([0.3, -2.0, 1.0])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    plain = polytope_transform(corners, k)
    np.testing.assert_allclose(polytope_transform(corners + shift, k), plain * np.exp(-1j * k @ shift), atol=1e-12)
    np.testing.assert_allclose(polytope_transform(corners @ turn.T, k @ turn.T), plain, atol=1e-12)


def test_two_halves_add_up_to_the_whole() -> None:
    corners, k = cube(3), awkward(3)
    left = np.concatenate([corners[corners[:, 0] == 0], [[0.5, 0, 0], [0.7, 1, 0], [0.5, 0, 1], [0.7, 1, 1]]])
    right = np.concatenate([corners[corners[:, 0] == 1], [[0.5, 0, 0], [0.7, 1, 0], [0.5, 0, 1], [0.7, 1, 1]]])
    both = polytope_transform(left, k) + polytope_transform(right, k)
    np.testing.assert_allclose(both, polytope_transform(corners, k), atol=1e-14)


@pytest.mark.parametrize("k", [(0.0, 0.0), (1e-3, 2e-3), (3.0, 0.0), (3.0, 1e-8), (5.0, 9.0)])
def test_triangle_is_quadrature(k: tuple[float, float]) -> None:
    def part(wave) -> float:
        return nquad(lambda y, x: wave(k[0] * x + k[1] * y), [lambda x: (0, 2 * (1 - x)), (0, 1)])[0]

    truth = part(np.cos) - 1j * part(np.sin)
    assert abs(polytope_transform([[0, 0], [1, 0], [0, 2]], k) - truth) < 1e-8


def test_flat_corners_are_refused() -> None:
    with pytest.raises(InputError, match="no volume"):
        polytope_transform([[0, 0], [1, 1], [2, 2], [3, 3]], [1.0, 0.0])
    with pytest.raises(InputError, match="d \\+ 1"):
        polytope_transform([[0, 0], [1, 1]], [1.0, 0.0])


class TestLemma:
    def test_the_constant_is_minus_i(self) -> None:
        k = np.array([0.5, 3.0, 11.0])
        truth = (2 - 2 * np.cos(k)) / k**2
        found = lemma_3_1(enumerate_regions(hat(), (-2, 2)), k, border=False)
        np.testing.assert_allclose(found, truth, atol=1e-14)
        assert np.abs(-found - truth).max() > 0.1  # with i

    @pytest.mark.parametrize("dimension, width", [(1, 10), (2, 8), (3, 5)])
    def test_regions_with_the_border_are_the_transform_by_walls(self, dimension: int, width: int) -> None:
        partition = enumerate_regions(mlp(dimension, width, 2, seed=dimension), [[-1.0, 2.0]] * dimension)
        k = awkward(dimension)[10:]
        np.testing.assert_allclose(lemma_3_1(partition, k), network_transform(partition, k), atol=1e-13)

    def test_without_the_border_it_is_wrong_on_a_box(self) -> None:
        partition = enumerate_regions(mlp(2, 8, 2, seed=2), [[-1.0, 2.0]] * 2)
        k = awkward(2)[10:]
        truth = network_transform(partition, k)
        assert (np.abs(lemma_3_1(partition, k, border=False) - truth) / np.abs(truth)).min() > 0.01

    def test_zero_is_refused(self) -> None:
        with pytest.raises(InputError, match="k = 0"):
            lemma_3_1(enumerate_regions(Pyramid(), [[-1, 1]] * 2), np.zeros(2))


class TestWaveDifferences:
    @pytest.mark.parametrize("count", [2, 3, 4, 5])
    def test_against_high_precision(self, count: int) -> None:
        mpmath = pytest.importorskip("mpmath")
        rng = np.random.default_rng(count)
        with mpmath.workdps(80):
            for spread in (1e-12, 1e-6, 1e-3, 0.3, 0.99, 1.01, 2.0, 10.0, 100.0):
                nodes = rng.uniform(-spread, spread, count) + rng.normal()
                exact = [mpmath.mpc(0, -mpmath.mpf(node)) for node in nodes]
                table = [mpmath.exp(node) for node in exact]
                for level in range(1, count):
                    table = [(table[i + 1] - table[i]) / (exact[i + level] - exact[i]) for i in range(count - level)]
                assert abs(wave_differences(nodes[:, None])[0] - complex(table[0])) < 3e-15

    def test_repeated_phases(self) -> None:
        found = wave_differences(np.full((4, 1), 2.0))
        np.testing.assert_allclose(found, np.exp(-2j) / 6, rtol=1e-15)

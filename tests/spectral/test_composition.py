"""The kernel that carries frequencies to a curve: closed forms, the sum rule, and the support by stationary phase."""

import math
from functools import partial

import pytest
import torch
from scipy.special import jv
from torch import Tensor

from tangentlab.data import flower
from tangentlab.errors import InputError
from tangentlab.spectral import composition_kernel, latent_reach, stationary_points


def curve(petals: int):
    return partial(flower, petals=petals)


def whole(*numbers: int) -> Tensor:
    return 2 * math.pi * torch.tensor(numbers, dtype=torch.float64)


def test_on_a_circle_it_is_a_bessel_function():
    """`int e^(i k cos 2 pi z - 2 pi i m z) dz = i^m J_m(k)`."""
    for k in (0.5, 7.0, 60.0):
        found = composition_kernel(curve(0), whole(0, 1, 5, 40), torch.tensor([[k, 0.0]], dtype=torch.float64))[:, 0]
        truth = torch.tensor([1j**m * jv(m, k) for m in (0, 1, 5, 40)], dtype=torch.complex128)
        torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


def test_on_a_straight_line_it_is_a_sinc_at_any_frequency():
    line = lambda z: torch.stack([z, 0 * z], 1)  # noqa: E731
    latent = torch.tensor([0.3, 5.0, 91.7], dtype=torch.float64)
    found = composition_kernel(line, latent, torch.tensor([[2.0, 9.0]], dtype=torch.float64))[:, 0]
    half = (2.0 - latent) / 2
    truth = torch.polar(torch.sin(half) / half, half)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


def test_a_wave_seen_along_the_curve_has_the_kernel_as_its_spectrum():
    k = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
    n = 512
    z = torch.arange(n, dtype=torch.float64) / n
    wave = torch.exp(1j * (flower(z, 4) @ k[0]))
    spectrum = torch.fft.fft(wave) / n
    found = composition_kernel(curve(4), whole(*range(30)), k)[:, 0]
    torch.testing.assert_close(found, spectrum[:30], atol=1e-12, rtol=0)


def test_the_support_at_a_fixed_frequency_widens_with_the_petals_and_ends_at_the_reach():
    directions = torch.linspace(0, math.pi, 9, dtype=torch.float64)
    k = 20 * torch.stack([directions.cos(), directions.sin()], 1)
    reached = []
    for petals in (0, 4, 10, 16):
        reach = latent_reach(curve(petals), k)
        latent = whole(*range(450))
        weight = composition_kernel(curve(petals), latent, k).abs()
        beyond = latent[:, None] > 2 * reach
        assert float(weight[beyond].max()) < 1e-5 < 0.02 < float(weight.max())
        reached.append(float(reach.max()))
    assert reached == sorted(reached) and reached[3] > 5 * reached[0]


def test_the_reach_is_the_largest_speed_of_the_curve():
    k = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert float(latent_reach(curve(0), k)) == pytest.approx(2 * math.pi)
    z = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    steps = flower(z, 7).diff(dim=0)[:, 0] * 200_000
    assert float(latent_reach(curve(7), k)) == pytest.approx(float(steps.abs().max()), rel=1e-4)


def test_stationary_points_solve_the_equation_and_exist_only_within_the_reach():
    k = torch.tensor([5.0, 3.0], dtype=torch.float64)
    reach = float(latent_reach(curve(4), k[None]))
    places = stationary_points(curve(4), 0.5 * reach, k)
    assert len(places) >= 2
    speeds = torch.func.jvp(lambda z: flower(z, 4) @ k, (places,), (torch.ones_like(places),))[1]
    torch.testing.assert_close(speeds, torch.full_like(places, 0.5 * reach), atol=1e-8, rtol=0)
    assert len(stationary_points(curve(4), 1.01 * reach, k)) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: composition_kernel(curve(1), torch.zeros(2, 1), torch.zeros(1, 2)), "latent is a list"),
        (lambda: composition_kernel(curve(1), torch.zeros(2), torch.zeros(1, 3)), r"\(count, 2\)"),
        (lambda: latent_reach(lambda z: z, torch.zeros(1, 1)), "maps latent values"),
    ],
)
def test_what_has_no_kernel_is_refused(call, words: str):
    with pytest.raises(InputError, match=words):
        call()

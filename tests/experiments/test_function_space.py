"""Figure 2.1 and the KL expansion: the numbers of the theory."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.experiments.geometry.kl_expansion import network_family, normal_family, order, softmax_kl
from tangentlab.experiments.geometry.parameter_distance import NORMALS, fisher_rao, interval, normal_kl, overlap


def test_figure_2_1_has_the_numbers_of_its_text():
    a, b, c, d = NORMALS.values()
    assert math.dist(a, b) == 1 and math.dist(c, d) == 1
    assert normal_kl(a, b) == pytest.approx(0.09657, abs=5e-6)
    assert normal_kl(b, a) == pytest.approx(0.15343, abs=5e-6)
    assert normal_kl(c, d) == pytest.approx(3.73205, abs=5e-6)
    assert interval(b) == pytest.approx((-2.772, 2.772), abs=1e-3)
    assert interval(c) == pytest.approx((-1.217, 0.217), abs=1e-3)
    assert overlap(a, a) == 1 and overlap((0, 1), (100, 1)) == 0


def test_the_fisher_rao_length_is_that_of_the_fisher_metric_for_small_steps():
    for p in ((0.0, 1.0), (0.3, 0.2)):
        dm, dv = 1e-5, -2e-5
        length = math.sqrt(dm**2 / p[1] + dv**2 / (2 * p[1] ** 2))
        assert fisher_rao(p, (p[0] + dm, p[1] + dv)) == pytest.approx(length, rel=1e-4)


def test_the_fisher_matrix_of_a_network_is_the_hessian_of_the_divergence():
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)), torch.randn(5, 3, dtype=torch.float64)
    for likelihood in ("softmax", "normal"):
        family = network_family("n", net, inputs, likelihood)
        eps = 1e-4
        for direction in torch.eye(family.size, dtype=torch.float64)[:6]:
            both = [sum(family.divergences(sign * eps * direction)) / 2 for sign in (1, -1)]
            assert sum(both) / eps**2 == pytest.approx(
                (direction @ family.fisher @ direction).item(), rel=1e-4, abs=1e-8
            )


def test_a_wrong_fisher_matrix_would_lose_the_third_order():
    family, steps = normal_family(), np.geomspace(0.003, 0.1, 6)
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    kl = np.array([family.divergences(length * direction)[0] for length in steps])
    right = 0.5 * steps**2 * (direction @ family.fisher @ direction).item()
    assert order(steps, np.abs(kl - right)) == pytest.approx(3, abs=0.1)
    assert order(steps, np.abs(kl - 1.05 * right)) == pytest.approx(2, abs=0.3)


def test_the_softmax_divergence_is_zero_only_for_equal_distributions():
    logits = torch.randn(4, 3, dtype=torch.float64)
    assert softmax_kl(logits, logits + 7) == pytest.approx(0, abs=1e-15)
    assert softmax_kl(logits, 2 * logits) > 0

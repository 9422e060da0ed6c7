"""Costs of representations: exponents, processor time, and what is left out."""

import time

import numpy as np
import pytest
import torch

from tangentlab import LayerCollection
from tangentlab.experiments.metrics.representation_costs import (
    EXPONENTS,
    RepresentationCosts,
    cpu_seconds,
    slope,
    spread,
    square_network,
)


def test_the_slope_of_a_power_law_is_its_exponent_and_small_sizes_do_not_count():
    sizes = np.array([1.0, 10, 100, 1000, 10000, 100000])
    assert slope(sizes, 3 * sizes**1.5) == pytest.approx(1.5)
    assert slope(sizes, np.where(sizes <= 10, 7.0, sizes**2)) == pytest.approx(2)
    assert slope(sizes[::-1], sizes[::-1] ** 2) == pytest.approx(2)


def test_times_are_those_of_the_processor_and_preparations_are_not_counted():
    def prepare() -> None:
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass

    calls: list[int] = []
    assert cpu_seconds(lambda: calls.append(1), 0.0, prepare) < 0.005 and len(calls) == 3
    assert cpu_seconds(lambda: time.sleep(0.02), 0.0) < 0.015
    assert cpu_seconds(prepare, 0.0) >= 0.01


def test_the_networks_have_about_two_squares_of_their_width_in_parameters():
    for width in (8, 64):
        layout = LayerCollection.from_model(square_network(width))
        assert layout.numel == 2 * width * (width + 1) + 10 * (width + 1)


def test_what_would_take_too_long_or_too_much_memory_is_left_out():
    layout = LayerCollection.from_model(square_network(30))  # 2,170 parameters, 930 in the largest layer
    for kind, limit in (("Dense", 2170), ("BlockDiag", 930)):
        assert RepresentationCosts(dense_limit=limit)._fits(kind, layout)
        assert not RepresentationCosts(dense_limit=limit - 1)._fits(kind, layout)
    assert RepresentationCosts(bytes_limit=4 * 1024 * 2170)._fits("LowRank", layout)
    assert not RepresentationCosts(bytes_limit=4 * 1024 * 2170 - 1)._fits("LowRank", layout)
    assert RepresentationCosts(dense_limit=0, bytes_limit=0)._fits("KFAC", layout)


def test_a_factorization_is_forgotten_before_every_timed_solve():
    torch.manual_seed(0)
    from tangentlab import FIM_MonteCarlo, PMatDense, PVector

    model = square_network(4)
    matrix = FIM_MonteCarlo(model, torch.randn(20, 4), PMatDense)
    v = PVector(matrix.layout, torch.randn(matrix.dim))
    RepresentationCosts(budget=0.0)._times(matrix, lambda: matrix, v)
    kept = [key for block in matrix.blocks.values() for key in vars(block) if key.startswith("_cached")]
    assert kept == []


def test_every_exponent_is_a_claim():
    ids = {claim.id for claim in RepresentationCosts.claims}
    assert {f"2.7-{what}-{kind.lower()}" for what, kind in EXPONENTS} <= ids


def test_labels_at_the_ends_of_curves_keep_their_order_and_their_distance():
    places = spread([1.0, 1.01, 5.0, 1.02], 0.5)
    assert np.argsort(places).tolist() == np.argsort([1.0, 1.01, 5.0, 1.02]).tolist()
    ordered = np.sort(places)
    assert np.diff(ordered).min() >= 0.5 - 1e-9 and places[2] == 5.0
    assert spread([3.0], 0.5) == [3.0]

"""Bounds of a risk from a sample: formulas, order, and coverage in simulation."""

import math

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.kernels import (
    finite_class_bound,
    hoeffding_bound,
    hoeffding_tail,
    margin_rademacher_bound,
    occam_bound,
    pac_bayes_bound,
)


def test_the_formulas() -> None:
    n, delta = 200, 0.05
    assert hoeffding_bound(0.1, n, delta) == pytest.approx(0.1 + math.sqrt(math.log(20) / 400))
    assert hoeffding_tail(0.2, n) == pytest.approx(math.exp(-16))
    assert hoeffding_tail(hoeffding_bound(0, n, delta), n) == pytest.approx(delta)
    assert finite_class_bound(0.1, math.log(64), n, delta) == pytest.approx(0.1 + math.sqrt(math.log(64 * 20) / 400))
    assert occam_bound(0.1, math.log(64), n, delta) == finite_class_bound(0.1, math.log(64), n, delta)
    assert finite_class_bound(0.1, 0, n, delta) == hoeffding_bound(0.1, n, delta)
    margin = margin_rademacher_bound(0.1, 0.02, n, delta, margin=0.5)
    assert margin == pytest.approx(0.1 + 4 * 0.02 + 3 * math.sqrt(math.log(40) / 400))
    printed = pac_bayes_bound(0.1, 3.0, n, delta, printed=True)
    assert printed == pytest.approx(0.1 + math.sqrt((3 + math.log(20)) / 400))
    assert pac_bayes_bound(0.1, 3.0, n, delta) == pytest.approx(
        0.1 + math.sqrt((3 + math.log(2 * math.sqrt(n) / 0.05)) / 400)
    )


@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_the_best_of_many_functions_is_covered_by_the_bound_of_the_class_and_not_by_that_of_one(delta: float) -> None:
    generator, n, functions = torch.Generator().manual_seed(0), 100, 200
    losses = (torch.rand(2000, functions, n, generator=generator) < 0.5).float().mean(2)
    best = losses.min(1).values
    many = torch.tensor([finite_class_bound(float(one), math.log(functions), n, delta) for one in best])
    single = torch.tensor([hoeffding_bound(float(one), n, delta) for one in best])
    first = torch.tensor([hoeffding_bound(float(one), n, delta) for one in losses[:, 0]])
    assert float((many < 0.5).double().mean()) <= delta
    assert float((first < 0.5).double().mean()) <= delta
    assert float((single < 0.5).double().mean()) > delta


@pytest.mark.parametrize("n", [20, 200])
def test_a_gibbs_posterior_is_covered_by_the_bound_of_pac_bayes(n: int) -> None:
    generator, functions, delta = torch.Generator().manual_seed(1), 50, 0.1
    losses = (torch.rand(2000, functions, n, generator=generator) < 0.5).double().mean(2)
    posterior = torch.softmax(-n * losses, 1)
    divergence = (posterior * (posterior * functions).log()).sum(1)
    empirical = (posterior * losses).sum(1)
    bounds = [pac_bayes_bound(float(a), float(k), n, delta) for a, k in zip(empirical, divergence)]
    assert float((torch.tensor(bounds) < 0.5).double().mean()) <= delta


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hoeffding_bound(0.1, 0, 0.1), "n >= 1"),
        (lambda: hoeffding_bound(0.1, 5, 0.0), "delta"),
        (lambda: hoeffding_tail(-0.1, 5), "excess"),
        (lambda: occam_bound(0.1, -1.0, 5, 0.1), "not negative"),
        (lambda: margin_rademacher_bound(0.1, 0.1, 5, 0.1, margin=0.0), "margin is positive"),
        (lambda: pac_bayes_bound(0.1, -2.0, 5, 0.1), "not negative"),
    ],
)
def test_bad_input_is_refused_in_words(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()

"""Functions of one variable: exact kinks, the norm of weight decay, and interpolants of least norm."""

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.implicit_bias import least_line_norm, line_function, path_cost


def network(units: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(units, generator=generator, dtype=torch.float64) for _ in range(3))


def outputs(a, w, b, x, offset=0.0):
    return (a * (w * x[:, None] + b).relu()).sum(1) + offset


@pytest.mark.parametrize("units", [1, 2, 7, 40])
def test_the_function_of_a_network_is_the_network(units):
    a, w, b = network(units)
    x = torch.linspace(-5, 5, 401, dtype=torch.float64)
    torch.testing.assert_close(line_function(a, w, b, 0.3)(x), outputs(a, w, b, x, 0.3))


def test_units_that_cancel_leave_no_kink_and_dead_inputs_are_constants():
    a = torch.tensor([1.0, -1.0, 2.0])
    w = torch.tensor([2.0, 2.0, 0.0])
    b = torch.tensor([1.0, 1.0, 3.0])
    function = line_function(a, w, b)
    assert len(function.kinks) == 0
    torch.testing.assert_close(function(torch.tensor([-1.0, 2.0]).double()), torch.tensor([6.0, 6.0]).double())
    assert function.norm == 0


def test_no_network_is_cheaper_than_the_norm_of_its_function():
    for seed in range(20):
        a, w, b = network(9, seed)
        assert path_cost(a, w) >= line_function(a, w, b).norm - 1e-12


def test_a_network_with_the_cost_of_the_norm_exists():
    """|x| and x: both need slopes at infinity, one by its variation and one by its ends."""
    one, zero = torch.ones(2), torch.zeros(2)
    absolute = line_function(one, torch.tensor([1.0, -1.0]), zero)
    assert absolute.norm == absolute.variation == path_cost(one, torch.tensor([1.0, -1.0])) == 2
    line = line_function(torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0]), zero)
    assert line.variation == 0
    assert line.norm == line.ends == path_cost(one, one) == 2


def test_the_interpolant_of_least_norm_fits_and_no_other_is_smaller():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, generator=generator, dtype=torch.float64)
    y = torch.randn(6, generator=generator, dtype=torch.float64)
    best = least_line_norm(x, y)
    torch.testing.assert_close(best(x), y)
    for seed in range(50):  # other interpolants: random kinks between the data, values fitted by least squares
        kinks = torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        features = torch.stack([(x - kink).relu() for kink in kinks] + [x, torch.ones_like(x)], 1)
        fit = torch.linalg.lstsq(features, y[:, None], driver="gelsd").solution[:, 0]
        if (features @ fit - y).abs().max() > 1e-8:
            continue
        order = kinks.argsort()
        jumps = fit[:12][order]
        ends = (fit[12], fit[12] + jumps.sum())
        assert max(float(jumps.abs().sum()), abs(float(ends[0] + ends[1]))) >= best.norm - 1e-9


def test_weight_decay_trains_a_wide_network_towards_the_least_norm():
    x = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64)
    best = least_line_norm(x, y).norm
    a, w, b = (one.requires_grad_() for one in network(60))
    a.data *= 0.3
    before = path_cost(a.detach(), w.detach())
    steps = 5_000
    optimizer = torch.optim.Adam([a, w, b], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        decay = (a.square() + w.square()).sum() / 2
        ((outputs(a, w, b, x) - y).square().sum() + 1e-2 * decay).backward()
        optimizer.step()
        schedule.step()
    assert float((outputs(a, w, b, x) - y).detach().abs().max()) < 0.03
    assert line_function(a, w, b).norm == pytest.approx(best, rel=0.04)
    assert path_cost(a.detach(), w.detach()) == pytest.approx(best, rel=0.04)
    assert before > 1.4 * best


def test_two_values_at_one_place_are_refused():
    with pytest.raises(InputError, match="distinct"):
        least_line_norm(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 2.0]))


def test_units_need_all_three_numbers():
    with pytest.raises(InputError, match="per unit"):
        line_function(torch.ones(2), torch.ones(3), torch.ones(3))

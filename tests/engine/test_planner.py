"""The plan counts what the kernels do, and results do not depend on it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tangentlab
from tangentlab.engine import planner
from tangentlab.engine.planner import WHAT, calibrate
from tangentlab.errors import InputError, MemoryBudgetError
from tangentlab.models import GPT, LeNet5


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.PReLU(),
        nn.Flatten(),
        nn.Linear(54, 3),
    ).double()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(7, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("what", WHAT)
def test_every_plan_has_a_line_per_group_and_positive_costs(net: nn.Module, images: torch.Tensor, what: str) -> None:
    table = tangentlab.plan(net.eval(), images, n=50, what=what)
    assert [row.name for row in table.rows][1:] == ["0", "1.weight", "1.bias", "3", "4.weight", "6"]
    assert table.examples == 50 and table.outputs == 3
    assert table.operations > 0 and table.seconds > 0 and table.memory > 0
    assert "fits" in str(table)


def test_operations_of_a_linear_kernel_are_those_of_its_two_products() -> None:
    linear = nn.Linear(30, 20)
    table = tangentlab.plan(linear, torch.randn(4, 30), n=10, what="ntk")
    pairs = 10 * 11 / 2
    assert table.rows[1].route == "product"
    assert table.rows[1].operations == pairs * (2 * 30 + 2 * 20**2 * 20)


def test_operations_grow_with_the_square_of_the_examples_and_twice_as_fast_memory_is_refused() -> None:
    net, images = LeNet5(), torch.randn(2, 1, 28, 28)
    small, large = (tangentlab.plan(net, images, n=n, what="ntk") for n in (1000, 2000))
    ratio = sum(r.operations for r in large.rows[1:]) / sum(r.operations for r in small.rows[1:])
    assert 3.9 < ratio < 4.1
    assert large.fits != tangentlab.plan(net, images, n=2000, what="ntk", memory=1e6).fits


def test_a_plan_for_some_outputs_counts_these_only() -> None:
    linear = nn.Linear(30, 20)
    table = tangentlab.plan(linear, torch.randn(4, 30), n=10, what="ntk", outputs=3)
    assert table.outputs == 3 and table.rows[1].operations == 55 * (2 * 30 + 2 * 3**2 * 20)
    assert tangentlab.plan(linear, torch.randn(4, 30), n=10, what="ntk", outputs=50).outputs == 20


def test_an_unknown_question_names_the_known_ones(net: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="ntk_trace"):
        tangentlab.plan(net.eval(), images, what="everything")


def test_calibration_is_measured_once() -> None:
    assert calibrate(torch.float32, 1) is calibrate(torch.float32, 1)
    assert calibrate(torch.float32, 1).seconds(1e9, 0) > 0


@pytest.mark.parametrize(("rate", "largest"), [(1e8, 128), (5e9, 256), (1e15, 1024)])
def test_a_machine_that_is_slow_with_a_type_measures_a_small_product(
    rate: float, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def pretended(work: Callable[[], torch.Tensor]) -> float:
        sizes.append(len(work()))
        return 2 * sizes[-1] ** 3 / rate

    monkeypatch.setattr(planner, "_best", pretended)
    assert calibrate.__wrapped__(torch.float32).operations == pytest.approx(rate)
    assert sizes[-1] == largest


@pytest.mark.parametrize("outputs", ["all", "trace", 1])
@pytest.mark.parametrize("memory", [10**9, 300_000, 40_000])
def test_a_kernel_is_the_same_under_every_memory_budget(
    net: nn.Module, images: torch.Tensor, memory: int, outputs: str | int
) -> None:
    net.eval()
    truth = tangentlab.NTK(net, images, outputs=outputs)
    limited = tangentlab.NTK(net, [(part,) for part in images.split(2)], outputs=outputs, memory=memory)
    torch.testing.assert_close(limited.data, truth.data, rtol=1e-10, atol=1e-12)
    cross = tangentlab.NTK(
        net,
        [(part,) for part in images.split(3)],
        [(part,) for part in images[:4].split(2)],
        outputs=outputs,
        memory=memory,
    )
    torch.testing.assert_close(cross.data, truth.data[..., :4], rtol=1e-10, atol=1e-12)


def test_a_kernel_that_does_not_fit_is_refused_with_a_way_out(net: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(MemoryBudgetError, match="outputs='trace'"):
        tangentlab.NTK(net.eval(), images, memory=1000)


def test_the_memory_limit_ends_with_its_block() -> None:
    before = tangentlab.memory_budget()
    with pytest.raises(RuntimeError, match="on purpose"), tangentlab.memory_limit(123):
        assert tangentlab.memory_budget() == 123
        raise RuntimeError("on purpose")
    assert tangentlab.memory_budget() > 0.5 * before


def test_no_pass_runs_per_pair_of_batches_when_everything_fits(net: nn.Module, images: torch.Tensor) -> None:
    calls = []
    net.eval()
    net[0].register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    tangentlab.NTK(net, [(part,) for part in images.split(1)])
    assert sum(calls) <= len(images) + 2


def test_plans_and_checks_of_a_token_level_language_model_take_a_sample_of_its_outputs() -> None:
    """1,280,000 outputs per example: an identity matrix of them would take terabytes."""
    torch.manual_seed(0)
    model = GPT(10_000, 128, n_layers=1, n_heads=1, width=4).eval()
    tokens = torch.randint(10_000, (2, 128))
    for what in WHAT:
        made = tangentlab.plan(model, tokens, what=what)
        assert made.outputs == 1_280_000 and "1280000 outputs (one of them swept)" in str(made)
    report = tangentlab.check(model, tokens, max_outputs=2)
    assert report.passed and (report.sample, report.outputs) == (2, 1_280_000)
    assert "2 of 1,280,000 outputs row by row" in str(report)

"""Where the examples are: found from shapes where a batch can be cut, from gradients where it cannot."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tangentlab.engine.coverage import coverage
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine
from tangentlab.layers.registry import WHOLE
from tests.engine.truth import dense_jacobian, relative_error
from tests.zoo import by_name


@dataclass
class Sealed:
    """A batch that cannot be cut by examples."""

    x: Tensor


def opened(model: nn.Module, batch: Sealed) -> Tensor:
    return model(batch.x)


def axes(model: nn.Module, batch: Any, **options: Any) -> dict[str, list[int]]:
    """Example axis of every structured use, by group name."""
    sweep = Engine(Network.of(model, **options)).sweep(batch)
    return {route.group.name: [use.axis for use in route.uses] for route in sweep.routes if route.uses}


@pytest.mark.parametrize("form", ["inside-oblong", "inside-square", "outside-oblong", "outside-square"])
def test_sequence_first_layers_have_their_examples_on_the_second_axis(form: str) -> None:
    model, batch = by_name(f"SequenceFirst-{form}").catch()
    assert axes(model, batch) == {"fc": [1], "norm.weight": [1], "norm.bias": [1], "head": [0]}


@pytest.mark.parametrize(
    "name", ["SequenceFirst-inside-square", "ThreeCalls", "PositionEmbedding-square", "TiedEmbedding"]
)
def test_a_sealed_batch_is_searched_for_axes_along_which_gradients_separate(name: str) -> None:
    model, batch = by_name(name).catch()
    sealed = Sealed(batch)
    assert axes(model, sealed, forward=opened) == axes(model, batch)
    sweep = Engine(Network.of(model, forward=opened)).sweep(sealed)
    rows = {group: factor.rows() for group, factor in sweep.factors(sweep.identity_cotangents()).items()}
    flat = torch.cat([rows[group] for group in sweep.engine.groups], -1)
    assert relative_error(flat, dense_jacobian(model, batch)) < 1e-12


def test_layers_of_a_sealed_batch_without_separating_axis_go_to_the_fallback() -> None:
    model, batch = by_name("PositionEmbedding-square").catch()
    rows = {row.names[0]: row for row in coverage(model, Sealed(batch), forward=opened).rows}
    assert rows["position.weight"].route == "fallback"
    assert rows["token.weight"].route == "structured"


def test_a_single_example_is_whole_where_positions_are_alike_and_needs_its_axis_in_a_convolution() -> None:
    class Probed(nn.Sequential):
        """A chain that is not one of torch's own classes."""

    model = Probed(nn.Conv1d(2, 3, 2), nn.Flatten(1), nn.Linear(12, 2)).double()
    x = torch.randn(1, 2, 5, dtype=torch.float64)
    assert axes(model, x) == {"0": [0], "2": [WHOLE]}
    assert axes(nn.Sequential(*model), x) == {"0": [0], "2": [0]}  # known without a probe
    sweep = Engine(Network.of(model)).sweep(x)
    rows = torch.cat([factor.rows() for factor in sweep.factors(sweep.identity_cotangents()).values()], -1)
    assert relative_error(rows, dense_jacobian(model, x)) < 1e-12


def test_a_convolution_that_sees_an_example_as_its_channels_goes_to_the_fallback() -> None:
    """An input (channels, length) without example axis: torch accepts it, and axis 0 is not the examples."""

    class OneByOne(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.conv(one) for one in x])

    model = OneByOne().double()
    for examples in (1, 2, 3):
        x = torch.randn(examples, 2, 5, dtype=torch.float64)
        (row,) = {row.route for row in coverage(model, x).rows}
        assert row == "fallback"
        sweep = Engine(Network.of(model)).sweep(x)
        factors = sweep.factors(sweep.identity_cotangents())
        assert relative_error(torch.cat([f.rows() for f in factors.values()], -1), dense_jacobian(model, x)) < 1e-12


def test_routes_are_decided_anew_when_the_number_of_examples_or_the_calls_change() -> None:
    model, _ = by_name("BatchSizeDependentControlFlow").catch()
    engine = Engine(Network.of(model))
    found = []
    for examples in (3, 5, 3, 2):
        x = torch.randn(examples, 3, dtype=torch.float64)
        sweep = engine.sweep(x)
        found.append(all(route.structured for route in sweep.routes))
        rows = torch.cat([f.rows() for f in sweep.factors(sweep.identity_cotangents()).values()], -1)
        assert relative_error(rows, dense_jacobian(model, x)) < 1e-12
    assert found == [True, False, True, True]


def test_a_known_pattern_of_calls_is_not_probed_again() -> None:
    model, calls = nn.Linear(3, 2), []
    network = Network.of(model, forward=lambda m, batch: calls.append(len(batch)) or m(batch))
    engine = Engine(network)
    for _ in range(3):
        engine.sweep(torch.randn(5, 3))
    assert calls == [5, 2, 2, 5, 5]  # the first two alone, and the last two


def test_outputs_with_the_examples_elsewhere_are_refused_with_the_way_out() -> None:
    from tangentlab.errors import ModelError

    class StepsFirst(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).transpose(0, 1)

    model = StepsFirst(3, 2)
    for examples in (1, 2, 3, 4):
        x = torch.randn(examples, 4, 3)
        with pytest.raises(ModelError, match="example axis first"):
            Engine(Network.of(model)).sweep(x)
        sweep = Engine(Network.of(model, function=lambda out, batch: out.transpose(0, 1))).sweep(x)
        assert sweep.outputs.shape == (examples, 4, 2)


def test_a_model_that_makes_one_example_of_every_token_is_taken_by_its_word() -> None:
    class Tokens(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(0, 1))

    model, x = Tokens(3, 2).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    sweep = Engine(Network.of(model)).sweep(x)
    assert sweep.examples == 20
    rows = torch.cat([f.rows() for f in sweep.factors(sweep.identity_cotangents()).values()], -1)
    assert relative_error(rows, dense_jacobian(model, x)) < 1e-12

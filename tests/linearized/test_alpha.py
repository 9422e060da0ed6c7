"""f0 + alpha (f - f0), and how its training goes over into that of the linearization."""

import warnings
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.errors import InputError, ModelError
from tangentlab.linearized import AlphaModel, linearize
from tangentlab.models import MLP
from tests.linearized.networks import case


def trajectory(model: nn.Module, x: Tensor, y: Tensor, lr: float, steps: int = 100, momentum: float = 0.0) -> Tensor:
    """Outputs after every step of full-batch gradient descent on the squared loss, (steps, n, c)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(x)
        kept.append(outputs.detach())
        (0.5 * (outputs - y).square().sum() / len(x)).backward()
        optimizer.step()
    return torch.stack(kept)


def problem(model: nn.Module) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    return model.double(), x, torch.randn(10, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_whole_trajectory_approaches_that_of_the_linearization_like_one_over_alpha(momentum: float) -> None:
    torch.manual_seed(0)
    model, x, y = problem(MLP((3, 20, 2), "tanh"))
    lr = 0.05
    truth = trajectory(linearize(model), x, y, lr, momentum=momentum)
    gaps = []
    for alpha in (10.0, 100.0, 1000.0):
        knob = AlphaModel(model, alpha)
        found = trajectory(knob, x, y, knob.learning_rate(lr), momentum=momentum)
        gaps.append(float((found - truth).abs().max()))
    assert float((truth[-1] - truth[0]).abs().max()) > 0.5  # the function itself moves by O(1)
    assert gaps[2] < 1e-2
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.3)
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 100.0])
def test_a_network_linear_in_its_parameters_trains_the_same_as_itself_its_linearization_and_with_every_alpha(
    alpha: float, momentum: float
) -> None:
    torch.manual_seed(0)
    model, x, y = problem(nn.Linear(3, 2))
    knob = AlphaModel(model, alpha)
    runs = [
        trajectory(knob, x, y, knob.learning_rate(0.05), momentum=momentum),
        trajectory(linearize(model), x, y, 0.05, momentum=momentum),
        trajectory(deepcopy(model), x, y, 0.05, momentum=momentum),
    ]
    for found in runs[:2]:
        torch.testing.assert_close(found, runs[2], rtol=1e-11, atol=1e-11)


def test_alpha_one_is_the_network_and_every_alpha_starts_at_it() -> None:
    model, x, y = problem(MLP((3, 6, 2), "tanh"))
    for alpha in (0.5, 1.0, 100.0):
        assert torch.equal(AlphaModel(model, alpha)(x), model(x))
        assert torch.equal(AlphaModel(model, alpha, offset=False)(x), torch.zeros(10, 2).double())
    torch.testing.assert_close(
        trajectory(AlphaModel(model, 1.0), x, y, 0.1), trajectory(deepcopy(model), x, y, 0.1), rtol=1e-10, atol=1e-10
    )


def test_values_and_gradients_follow_the_formula_in_both_variants() -> None:
    model, x, _ = problem(MLP((3, 6, 2), "tanh"))
    for offset in (True, False):
        knob = AlphaModel(model, 7.0, offset=offset)
        with torch.no_grad():
            for parameter in knob.model.parameters():
                parameter.add_(0.1)
        change = 7.0 * (knob.model(x) - model(x))
        torch.testing.assert_close(knob(x), change + model(x) if offset else change)
        grads = torch.autograd.grad(knob(x).sum(), list(knob.model.parameters()))
        plain = torch.autograd.grad(knob.model(x).sum(), list(knob.model.parameters()))
        for found, truth in zip(grads, plain):
            torch.testing.assert_close(found, 7.0 * truth)
    assert knob.learning_rate(0.49) == pytest.approx(0.01)
    assert all(not parameter.requires_grad for parameter in knob.start.parameters())


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += len(x)
        return self.layer(x)


def test_stored_initial_outputs_save_the_second_forward_pass() -> None:
    model, x, _ = problem(Counted())
    knob = AlphaModel(model, 10.0)
    with torch.no_grad():
        knob.model.layer.weight.add_(0.1)
    initial = knob.initial_outputs((x, torch.zeros(10)), batch_size=4)
    torch.testing.assert_close(initial, model(x))
    torch.testing.assert_close(knob.initial_outputs([(x[:3],), (x[3:],)]), initial)
    knob.start.calls = knob.model.calls = 0
    found = knob(x[2:5], initial=initial[2:5])
    assert (knob.start.calls, knob.model.calls) == (0, 3)
    torch.testing.assert_close(found, knob(x[2:5]))
    assert (knob.start.calls, knob.model.calls) == (3, 6)
    with pytest.raises(InputError, match="initial="):
        knob(x[:3], initial=initial)


def test_train_mode_batch_norm_and_dropout_are_refused_also_when_switched_on_later() -> None:
    model, x = case("batch norm")
    with pytest.raises(ModelError, match="batch statistics"):
        AlphaModel(model, 2.0)
    knob = AlphaModel(model.eval(), 2.0)
    trained = {name for name, parameter in knob.named_parameters() if parameter.requires_grad}
    assert "model.bn1.weight" in trained and knob(x).requires_grad
    with pytest.raises(ModelError, match="eval"):
        knob.train()(x)
    with pytest.raises(ModelError, match="Dropout"):
        AlphaModel(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), 2.0)


def test_a_large_alpha_is_announced_in_single_precision_only() -> None:
    with pytest.warns(UserWarning, match="double"):
        AlphaModel(MLP((3, 2)), 1001.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AlphaModel(MLP((3, 2)).double(), 1e6)
        AlphaModel(MLP((3, 2)), 1000.0)
    for alpha in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="alpha"):
            AlphaModel(MLP((3, 2)), alpha)


def test_the_given_model_is_not_trained_and_several_alphas_share_its_start() -> None:
    model, x, y = problem(MLP((3, 6, 2), "tanh"))
    before = deepcopy(model.state_dict())
    first = AlphaModel(model, 1.0)
    trajectory(first, x, y, 0.1, steps=5)
    second = AlphaModel(model, 100.0)
    assert all(torch.equal(value, before[key]) for key, value in second.model.state_dict().items())
    assert all(torch.equal(value, before[key]) for key, value in first.start.state_dict().items())
    again = AlphaModel(MLP((3, 6, 2), "tanh").double(), 1.0)
    again.load_state_dict(first.state_dict())
    assert torch.equal(again(x), first(x)) and F.mse_loss(first(x), y) < F.mse_loss(model(x), y)


class Masked(nn.Module):
    """A transformer whose fused kernel writes zeros at padded positions, where its own modules do not."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=mask).mean(1))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_padded_positions_are_the_same_in_f_and_in_f0() -> None:
    torch.manual_seed(0)
    model, x = Masked().double().eval(), torch.randn(4, 5, 8).double()
    mask = torch.arange(5) >= torch.tensor([[5], [3], [4], [1]])
    knob, truth = AlphaModel(model, 100.0), model(x, mask)
    torch.testing.assert_close(knob(x, mask), truth)
    torch.testing.assert_close(knob.initial_outputs([{"x": x, "mask": mask}]), truth.detach())
    with torch.no_grad():
        torch.testing.assert_close(knob(x, mask), truth.detach())


class FunctionalDropout(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, training=self.training)


def test_a_network_that_draws_random_numbers_without_a_module_for_it_is_refused() -> None:
    knob = AlphaModel(FunctionalDropout(3, 2), 10.0)
    with pytest.raises(ModelError, match="not defined .*draws from the random generator of torch"):
        knob(torch.ones(2, 3))
    assert knob.eval()(torch.ones(2, 3)).shape == (2, 2)


@pytest.mark.parametrize(
    ("dtype", "alpha", "warned"),
    [
        (torch.bfloat16, 1.0, False),
        (torch.bfloat16, 100.0, True),
        (torch.float16, 100.0, True),
        (torch.float32, 100.0, False),
        (torch.float32, 1500.0, True),
        (torch.float64, 1e9, False),
    ],
)
def test_rounding_that_alpha_multiplies_is_warned_of(dtype: torch.dtype, alpha: float, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        AlphaModel(MLP((2, 2)).to(dtype), alpha)
    assert bool(seen) == warned


def test_rounding_of_autocast_is_warned_of_once() -> None:
    knob = AlphaModel(MLP((2, 2)), 100.0)
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match="rounding of bfloat16"):
        knob(torch.ones(1, 2))
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        knob(torch.ones(1, 2))


def test_a_network_with_an_argument_of_the_same_name_is_refused() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor, initial: Tensor) -> Tensor:
            return super().forward(x) + initial

    with pytest.raises(ModelError, match="rename"):
        AlphaModel(Own(2, 2), 2.0)

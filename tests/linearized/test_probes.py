"""Linearity probes, step-by-step linearization, and comparisons at equal progress."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.linearized import (
    AlphaModel,
    LinearityProbe,
    StepRecorder,
    at_progress,
    common_thresholds,
    delta_loss,
    first_crossing,
    linearize,
    running_best,
)
from tangentlab.models import MLP
from tests.linearized.networks import case


class Functional(nn.Module):
    """ReLUs as functions, one of them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first(x))
        return self.last(torch.relu_(self.second(hidden)))

    def patterns(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return torch.cat([hidden > 0, self.second(hidden.relu()) > 0], 1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).relu()


def moved(model: nn.Module, size: float) -> nn.Module:
    other = deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return other


def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one * two).sum() / one.norm() / two.norm())


@pytest.mark.parametrize("split", [False, True])
def test_the_three_numbers_are_those_of_their_definitions(split: bool) -> None:
    torch.manual_seed(0)
    model, x = Functional().double(), torch.randn(8, 3, dtype=torch.float64)
    probe = LinearityProbe(model, [(x[:3],), (x[3:],)] if split else x)
    other = moved(model, 0.4)
    found = probe(other)
    same = (model.patterns(x) == other.patterns(x)).double().mean().item()
    assert 0 < same < 1 and found.sign_similarity == pytest.approx(same)
    assert found.ntk_alignment == pytest.approx(cosine(NTK(model, x).matrix(), NTK(other, x).matrix()))
    grams = [one.features(x).detach() @ one.features(x).detach().t() for one in (model, other)]
    assert found.representation_alignment == pytest.approx(cosine(*grams))
    logits = LinearityProbe(model, x, representation="outputs", ntk=False)(other)
    grams = [one(x).detach() @ one(x).detach().t() for one in (model, other)]
    assert logits.representation_alignment == pytest.approx(cosine(*grams)) and math.isnan(logits.ntk_alignment)


def test_they_are_one_at_the_start_whatever_the_mode_and_scaling_the_head_leaves_two_of_them() -> None:
    model, x = case("batch norm")
    probe = LinearityProbe(model, x)
    for mode in (True, False):
        start = probe(model.train(mode))
        assert (start.sign_similarity, start.ntk_alignment, start.representation_alignment) == pytest.approx((1, 1, 1))
        assert model.training is mode and all(module.training is mode for module in model.modules())
    with torch.no_grad():
        model.fc.weight.mul_(3)
    scaled = probe(model)
    assert scaled.sign_similarity == 1 and scaled.representation_alignment == pytest.approx(1)
    assert scaled.ntk_alignment < 1


def test_a_probe_leaves_no_trace_on_the_network() -> None:
    model, x = case("batch norm")
    model.train()
    before, state = deepcopy(model.state_dict()), torch.get_rng_state()
    LinearityProbe(model, x)(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in model.parameters())


def test_a_larger_alpha_keeps_all_three_closer_to_one() -> None:
    torch.manual_seed(0)
    model, x = MLP((3, 40, 40, 2)).double(), torch.randn(20, 3, dtype=torch.float64)
    y = torch.randint(0, 2, (20,))
    probe, rows = LinearityProbe(model, x), []
    for alpha in (1.0, 100.0):
        knob = AlphaModel(model, alpha)
        optimizer = torch.optim.SGD(knob.parameters(), lr=knob.learning_rate(0.3))
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(knob(x), y).backward()
            optimizer.step()
        found = probe(knob.model)
        rows.append((found.sign_similarity, found.ntk_alignment, found.representation_alignment))
    assert all(lazy > 0.99 and lazy > rich for rich, lazy in zip(*rows))
    assert rows[0][1] < 0.95


def test_networks_without_relu_or_linear_layer_and_other_networks() -> None:
    tanh, x = MLP((3, 4, 2), "tanh"), torch.randn(4, 3)
    assert math.isnan(LinearityProbe(tanh, x)(tanh).sign_similarity)
    with pytest.raises(InputError, match="representation="):
        LinearityProbe(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()), torch.ones(2, 1, 2, 2))
    with pytest.raises(InputError, match="names no module"):
        LinearityProbe(tanh, x, representation="head")
    with pytest.raises(InputError, match="another network"):
        LinearityProbe(MLP((3, 4, 2)), x)(MLP((3, 5, 2)))


def train(model: nn.Module, x: torch.Tensor, lr: float, steps: int) -> StepRecorder:
    recorder = StepRecorder(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sin().square().sum().backward()
        with recorder:
            optimizer.step()
    return recorder


def test_the_end_is_the_start_plus_the_sum_of_first_order_steps_with_an_error_that_vanishes_with_the_learning_rate():
    errors, relative = [], []
    for halving in range(3):
        torch.manual_seed(0)
        model, x = MLP((3, 8, 2), "tanh").double(), torch.randn(6, 3, dtype=torch.float64)
        steps = train(model, x, 0.02 / 2**halving, 40 * 2**halving)
        errors.append(float((steps.outputs() - steps.sum_of_steps).norm()))
        relative.append(max(step.relative_error for step in steps.steps))
        assert float(sum(step.change for step in steps.steps)) > 0.1
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2) and errors[1] / errors[2] == pytest.approx(2, rel=0.1)
    assert relative[0] / relative[1] == pytest.approx(2, rel=0.2)


def test_steps_of_a_linearized_network_have_no_error_and_the_numbers_are_those_of_their_definitions() -> None:
    torch.manual_seed(0)
    model, x = MLP((3, 8, 2), "tanh").double(), torch.randn(6, 3, dtype=torch.float64)
    linear = linearize(model)
    steps = train(linear, x, 0.1, 5)
    assert len(steps.steps) == 5 and max(step.relative_error for step in steps.steps) < 1e-9
    torch.testing.assert_close(steps.sum_of_steps, linear(x).detach())
    recorder, before = StepRecorder(model, x), model(x).detach()
    with recorder:
        for parameter in model.parameters():
            parameter.data.add_(0.01)
    after = model(x).detach()
    assert recorder.steps[0].change == pytest.approx(float((after - before).norm()))
    assert recorder.steps[0].length == pytest.approx(0.01 * sum(p.numel() for p in model.parameters()) ** 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.01)
    again = linearize(model)
    for parameter in again.displacements().values():
        parameter.data.fill_(0.01)
    expected = again(x).detach() - before
    assert recorder.steps[0].linear == pytest.approx(float(expected.norm()))
    assert recorder.steps[0].error == pytest.approx(float((after - before - expected).norm()))


def test_an_update_that_fails_is_not_recorded_and_modes_come_back() -> None:
    model, x = case("batch norm")
    recorder = StepRecorder(model, x)
    with pytest.raises(RuntimeError, match="mine"), recorder:
        raise RuntimeError("mine")
    assert not recorder.steps and model.training
    with recorder:
        pass
    assert recorder.steps[0].relative_error == 0 and model.training


def test_quantities_at_equal_progress_are_those_of_the_first_crossing() -> None:
    progress = [2.0, 1.0, 1.5, 0.5, 0.0]
    values = np.stack([np.arange(5.0), 10 * np.arange(5.0)], 1)
    assert [first_crossing(progress, t) for t in (2.0, 1.2, 1.0, 0.3, -1.0)] == [0, 1, 1, 4, None]
    found = at_progress(progress, values, [2.0, 1.5, 1.0, 0.75, 0.25, -1.0, 3.0])
    np.testing.assert_allclose(found[:5, 0], [0, 0.5, 1, 2.75, 3.5])
    np.testing.assert_allclose(found[:5, 1], 10 * found[:5, 0])
    assert np.isnan(found[5]).all()
    rising = at_progress([0.1, 0.4, 0.8], [1.0, 2.0, 3.0], [0.25, 0.8], falling=False)
    np.testing.assert_allclose(rising, [1.5, 3.0])
    np.testing.assert_allclose(running_best(progress), [2, 1, 1, 0.5, 0])
    with pytest.raises(InputError, match="as many records"):
        at_progress(progress, values[:3], [1.0])


def test_common_thresholds_lie_where_all_trainings_have_been() -> None:
    found = common_thresholds([2.3, 1.0, 0.1], [2.2, 1.5, 0.4], count=4)
    np.testing.assert_allclose(found, [2.2, 1.6, 1.0, 0.4])
    np.testing.assert_allclose(common_thresholds([0.1, 0.9], [0.2, 0.7], count=2, falling=False), [0.2, 0.7])
    with pytest.raises(InputError, match="no progress in common"):
        common_thresholds([0.3, 0.2], [2.0, 1.0])


def test_delta_loss_is_positive_where_the_second_network_is_better() -> None:
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 0.0])
    wrong_at_one = delta_loss(lambda t: t[:, 0], lambda t: 0 * t[:, 0], x, y, lambda f, y: (f - y).square())
    assert wrong_at_one.tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match="per example"):
        delta_loss(lambda t: t, lambda t: t, x, y, lambda f, y: f.sum())


def test_relus_inside_a_transformer_layer_are_seen_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(24, 2))
    x, fast = torch.randn(4, 3, 8), torch.backends.mha.get_fastpath_enabled()
    probe = LinearityProbe(model, x, ntk=False)
    assert probe(model).sign_similarity == 1 and torch.backends.mha.get_fastpath_enabled() == fast
    other = deepcopy(model)
    nn.init.normal_(other[0].linear1.weight)
    assert 0 < probe(other).sign_similarity < 1


class HeadFirst(nn.Module):
    """The layer that is called last was registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 2), nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def test_the_last_linear_layer_is_the_one_called_last() -> None:
    torch.manual_seed(0)
    model, x = HeadFirst(), torch.randn(4, 3)
    probe, other = LinearityProbe(model, x, ntk=False), deepcopy(model)
    nn.init.normal_(other.body.weight)
    assert probe(other).representation_alignment < 0.999
    nn.init.normal_(model.head.weight)
    assert probe(model).representation_alignment == pytest.approx(1)


def test_a_module_that_is_never_called_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.add_module("unused", nn.Identity())
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    with pytest.raises(InputError, match="never calls unused"):
        LinearityProbe(model, torch.randn(4, 3), representation="unused", ntk=False)


def test_a_network_against_itself_has_no_delta_loss_and_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    before, random = deepcopy(model.state_dict()), torch.get_rng_state()
    found = delta_loss(model, model, {"input": x}, y, lambda f, t: F.cross_entropy(f, t, reduction="none"))
    assert torch.equal(found, torch.zeros(4)) and model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_steps_are_seen_on_all_batches_of_a_loader() -> None:
    model, x = case("mlp")
    whole, parts = StepRecorder(model, x), StepRecorder(model, [(x[:4],), (x[4:],)])
    with whole, parts, torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    torch.testing.assert_close(parts.sum_of_steps, whole.sum_of_steps)
    assert parts.steps[0].error == pytest.approx(whole.steps[0].error)


def test_a_probe_says_which_network_it_wants() -> None:
    model, x = case("relu")
    probe = LinearityProbe(model, x)
    with pytest.raises(InputError, match="AlphaModel"):
        probe(AlphaModel(model, 2.0))
    with pytest.raises(InputError, match="finite"):
        common_thresholds([1.0, float("nan")], [1.0, 0.5])

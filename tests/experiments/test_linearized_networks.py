"""What the experiments on linearized networks measure with: networks, recipe, rank correlations, groups."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.bench import seeds
from tangentlab.bench.results import Results
from tangentlab.data import Dataset, load
from tangentlab.experiments import Minibatches, find, train
from tangentlab.experiments.lazy import _cue_race, dense, quadratic
from tangentlab.experiments.linearized import _recipe, _tasks_claims, directions, runtimes
from tangentlab.linearized import AlphaModel
from tangentlab.linearized.quadratic_examples import noisy_labels


@pytest.mark.parametrize(("kind", "count"), [("mlp", 317_501), ("lenet", 136_121), ("resnet18", 11_169_345)])
def test_the_networks_have_the_papers_sizes_one_logit_and_lecun_weights_without_biases(seed, kind, count):
    model = _recipe.build(kind, (3, 32, 32), base=64)
    assert sum(p.numel() for p in model.parameters()) == count
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert all(m.bias is None or not m.bias.any() for m in layers)
    for layer in layers[:-1]:
        assert float(layer.weight.detach().var()) * layer.weight[0].numel() == pytest.approx(1.0, rel=0.15)
    assert model.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 1)


def test_the_recipe_drops_partial_batches_and_its_rate_falls_to_zero_in_a_straight_line(seed, monkeypatch):
    recipe = _recipe.Recipe(epochs=3, batch=20, rate=0.1)
    assert recipe.steps(50) == 6 and recipe.steps(10) == 3
    model = nn.Linear(4, 1)
    data = Dataset(torch.randn(50, 4), torch.arange(50) % 2, "toy", classes=2)
    rates = []

    class Watch(_recipe.EpochLoss):
        def __call__(self, training):
            rates.append(training.optimizer.param_groups[0]["lr"])
            super().__call__(training)

    original = _recipe.train
    monkeypatch.setattr(_recipe, "train", lambda *arguments, lab, **options: original(*arguments, **options))
    losses = Watch(10.0)
    _recipe.train_task(SimpleNamespace(seed=0), model, data, recipe, "toy", [losses])
    assert rates == pytest.approx([0.1 * (1 - step / 6) for step in range(7)])
    assert len(losses.losses) == 3 and losses.reached == 2


def test_epoch_losses_are_means_over_the_minibatches_of_an_epoch_and_survive_a_restart(seed):
    data = Dataset(torch.randn(40, 4), torch.arange(40) % 2, "toy", classes=2)
    model = nn.Linear(4, 1)
    seen: list[float] = []

    class Watch(_recipe.EpochLoss):
        def __call__(self, training):
            seen.append(training.loss)
            super().__call__(training)

    losses = Watch(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, Minibatches(data, 10, 0), _recipe.logistic_loss, optimizer, 8, callbacks=[losses])
    assert losses.losses == pytest.approx([sum(seen[1:5]) / 4, sum(seen[5:9]) / 4]) and losses.reached is None
    again = _recipe.EpochLoss(0.0)
    again.load_state_dict(losses.state_dict())
    assert again.losses == losses.losses


def test_binary_accuracy_counts_right_signs_and_gives_the_mode_back():
    model = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Identity()).train()
    data = Dataset(torch.tensor([[1.0], [-1.0], [2.0], [-3.0]]), torch.tensor([1, 0, 0, 0]), "toy", classes=2)
    assert _recipe.binary_accuracy(model, data, batch=3) == 0.75
    assert model.training and float(model[0].num_batches_tracked) == 0


def test_two_classes_are_the_first_five_against_the_last_five():
    data = _recipe.two_classes(load("digits").first(100))
    assert torch.equal(data.targets, (load("digits").first(100).targets < 5).long())


def test_the_share_of_directions_in_a_span_is_one_inside_and_zero_outside():
    eye = torch.eye(6).reshape(6, 1, 2, 3)
    assert directions._shared(eye[:2], eye) == 1.0 and directions._shared(eye[4:], eye) == 0.0
    turned = torch.stack([(eye[0] + eye[5]) / math.sqrt(2)])
    assert directions._shared(turned, eye) == pytest.approx(0.5)


def test_a_spike_stands_out_of_its_neighbours_and_a_smooth_spectrum_has_none():
    smooth = torch.linspace(2, 1, 41)
    assert _tasks_claims.spike(smooth, 20) == pytest.approx(1.0, abs=0.03)
    smooth[20] *= 5
    assert _tasks_claims.spike(smooth, 20) == pytest.approx(5.0, rel=0.03) and _tasks_claims.spike(smooth, 0) > 1


def test_the_crossing_parts_the_lead_of_the_linearization_from_that_of_the_network():
    indices, network = (0, 10, 100, 400, 900), (0.9, 0.8, 0.7, 0.6, 0.55)
    leads = {"late": (0.02, 0.03, 0.01, 0.02, -0.01), "always": (0.1,) * 5, "never": (-0.1,) * 5}
    found = {
        name: _tasks_claims.crossing(indices, network, np.add(network, lead), 10_000_000)
        for name, lead in leads.items()
    }
    assert {name: best for name, (best, _) in found.items()} == pytest.approx(
        {"late": 600.0, "always": 1800.0, "never": 0.5}
    )
    assert all(possible == [best] for best, possible in found.values())
    best, possible = _tasks_claims.crossing(indices, network, np.add(network, leads["late"]), 1_000)
    assert best == pytest.approx(600) and min(possible) < 250 and max(possible) == pytest.approx(1800)


def test_runs_are_compared_at_equal_progress_where_both_have_been():
    def rows(values):
        return [{"with": w, "without": v} for w, v in values]

    fast = rows([(0.5, 0.5), (0.8, 0.2), (1.0, 0.4)])
    slow = rows([(0.5, 0.5), (0.8, 0.3), (1.0, 0.5)])
    assert _cue_race.difference(slow, fast, "with", "without") == pytest.approx(
        np.mean([0.2 / 3, 0.25 / 3, 0.1, 0.1, 0.1])
    )
    assert math.isnan(_cue_race.difference(slow, rows([(0.5, 0.5), (0.6, 0.4)]), "with", "without"))


def test_the_closed_form_error_of_the_quadratic_experiment_sees_a_wrong_rate():
    model = noisy_labels(6, 1, 1.0).model(0.2)
    times = np.linspace(0, 2, 4)
    assert max(quadratic.flow_error(model, times, regime) for regime in quadratic.REGIMES) < 1e-9
    wrong = type(model)(model.inputs, model.targets, model.basis, model.mu / 2, model.start, model.solution)
    assert min(quadratic.flow_error(wrong, times, regime) for regime in quadratic.REGIMES) > 1e-3


def dense_lab():
    """As much of a lab as one training of dense networks needs."""
    return SimpleNamespace(
        seeded=lambda *names: seeds.seeded(0, *names), capped=lambda n: n, loop=lambda items, what: items
    )


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("regime", quadratic.REGIMES)
def test_dense_networks_side_by_side_without_idle_inputs_train_like_plain_networks_with_them(regime, offset):
    experiment = find("dense-regimes").at("smoke", runs=3, records=5, share=0.02)
    example, lab = noisy_labels(5, 1, 2.0, features=9), dense_lab()
    start = experiment._start(lab, "noise", example)
    found = experiment._train(lab, "", "noise", example, start, regime, offset)
    steps = experiment.updates("noise", regime)
    assert found["steps"].tolist() == np.linspace(0, steps, 5).round().astype(int).tolist()
    losses, alignments = [], []
    for run in range(3):
        with lab.seeded("model", "noise", run):
            net = nn.Sequential(nn.Linear(9, 9, bias=False), nn.Linear(9, 1, bias=False)).double()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)
        kernels = [NTK(net, example.inputs).matrix()]
        knob = AlphaModel(net, dense.ALPHAS[regime], offset=offset)
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=1e-3 / dense.ALPHAS[regime] ** 2)
        along = []
        for step in range(steps + 1):
            outputs = knob(example.inputs)[:, 0]
            if step in found["steps"].tolist():
                along.append((outputs - example.targets).square().detach() / 2)
            if step < steps:
                optimizer.zero_grad()
                nn.functional.mse_loss(outputs, example.targets).backward()
                optimizer.step()
        losses.append(torch.stack(along))
        kernels.append(NTK(knob.model, example.inputs).matrix())
        alignments.append(float((kernels[0] * kernels[1]).sum() / (kernels[0].norm() * kernels[1].norm())))
    torch.testing.assert_close(found["losses"], torch.stack(losses).mean(0), rtol=1e-9, atol=1e-12)
    assert found["losses"][-1].mean() < found["losses"][0].mean()
    assert found["alignment"] == pytest.approx(np.mean(alignments), rel=1e-9)


def test_the_order_of_dense_networks_is_minus_one_where_the_regimes_are_reversed_and_nan_where_one_is_unfinished():
    time = np.arange(6.0)

    def falls(at):
        return np.where(time >= at, 0.0, 1.0)

    fast_first = {"time": time, "a": falls(1), "b": falls(2), "c": falls(3)}
    fast_last = {"time": time, "a": falls(3), "b": falls(2), "c": falls(1)}
    order = {"full": fast_first, "linearized": fast_last}
    assert dense._order(order, ["a", "b", "c"]) == -1.0
    order["linearized"] = fast_last | {"b": falls(9)}
    assert math.isnan(dense._order(order, ["a", "b", "c"]))


def test_energy_concentration_scales_k_so_that_chance_stays():
    experiment = find("energy-concentration").at("desk")
    assert experiment.scaled(12_000) == 50 and experiment.scaled(4_000) == 17
    assert experiment._chance(4_000) == pytest.approx(experiment._chance(12_000), rel=0.02)


def test_the_large_kernel_is_refused_before_anything_is_computed_when_it_does_not_fit(bench, monkeypatch):
    monkeypatch.setattr("tangentlab.engine.memory.memory_budget", lambda: 3_500_000_000)
    (message,) = bench("kernel-runtimes", large=True).failures.values()
    assert "The Gram matrix of 30,000 images needs 3.6 GB" in message and "--set large=false" in message


def test_the_large_kernel_is_one_option_and_its_batches_are_told_to_the_progress_bar(bench, monkeypatch):
    monkeypatch.setattr(runtimes, "LARGE_IMAGES", 300)
    monkeypatch.setattr(runtimes, "LARGE_BYTES", 4 * 300**2)
    told = []
    outcome = bench("kernel-runtimes", large=True, nets=("mlp", "lenet"), report=told.append)
    assert not outcome.failures and outcome.complete
    rows = Results(outcome.folder).table("gram", images=300).rows
    assert [row["net"] for row in rows] == ["mlp", "lenet"] and all(row["seconds"] > 0 for row in rows)
    assert any(event.get("what") == "tangent features, 300 images" and event["total"] == 3 for event in told)


def test_cue_races_are_recorded_at_the_start_at_the_end_and_densely_early():
    steps = _cue_race.recorded_steps(400, 50)
    assert steps[:4] == [0, 1, 2, 3] and steps[-1] == 400 and len(steps) <= 51
    ratios = [b / a for a, b in zip(steps[10:], steps[11:], strict=False)]
    assert max(ratios) < 1.25
    assert _cue_race.recorded_steps(1, 50) == [0, 1]

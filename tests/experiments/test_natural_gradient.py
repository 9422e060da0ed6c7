"""Figures 4.1 to 4.6: how races are judged, and measurements against a dense truth."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tangentlab import FIM_Empirical, PMatDense, PMatEKFAC, PMatKFAC, per_example_grads
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.runner import make_config
from tangentlab.experiments import Lab, Minibatches, Training, find
from tangentlab.experiments.natural_gradient import _optimizer_race as race
from tangentlab.experiments.natural_gradient._convolutional_claims import SCHEDULED, measure
from tangentlab.experiments.natural_gradient.amortization import Amortization, pixel_losses, spectrum_distance
from tangentlab.experiments.natural_gradient.convolutional import (
    ConvolutionalRace,
    Resnet34Optimizers,
    Vgg11Optimizers,
)
from tangentlab.experiments.natural_gradient.eigenbasis import chance, correlations, mean_off_diagonal, relative_error
from tangentlab.experiments.natural_gradient.ellipse import axes_of, true_scales
from tangentlab.models import AutoEncoder
from tangentlab.optim import EKFACra


def row(epoch: int, train: float, first: float = 1.0, second: float = 1.0, **more: Any) -> race.Row:
    return {"epoch": epoch, "train": train, "first": first, "second": second, "seconds": 2.0 * epoch, **more}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A bench for one seed."""
    experiment = find("amortization").at("smoke")
    return Lab(experiment, RunFolder.create(tmp_path, make_config(experiment, "smoke")), 0)


def test_the_envelope_takes_the_best_setting_of_each_epoch_and_the_winner_that_of_the_last():
    rows = [row(1, 3.0), row(2, 2.5), row(1, 4.0, 0.1), row(2, 1.0, 0.1)]
    assert race.envelope(rows) == {1: 3.0, 2: 1.0}
    assert race.winner(rows) == (0.1, 1.0)
    assert [found["train"] for found in race.curve(rows, (0.1, 1.0))] == [4.0, 1.0]


def test_the_share_of_epochs_leaves_the_common_start_out():
    assert race.share_below({0: 5.0, 1: 1.0, 2: 3.0}, {0: 6.0, 1: 2.0, 2: 2.0}) == 0.5


def test_a_goal_is_reached_at_its_first_epoch_or_never():
    rows = [row(0, 3.0), row(1, 2.0), row(2, 2.5)]
    assert race.reaches(rows, 2.5) == 1 and race.reaches(rows, 2.5, "seconds") == 2.0
    assert race.reaches(rows, 1.0) == float("inf")


def test_a_training_that_diverged_has_bad_rows_up_to_the_last_epoch():
    rows = race.finished([row(0, 3.0), row(1, 2.0, valid=4.0)], 3)
    assert [found["epoch"] for found in rows] == [0, 1, 2, 3]
    assert [found["train"] for found in rows] == [3.0, 2.0, race.DIVERGED, race.DIVERGED]
    assert [found.get("valid") for found in rows[2:]] == [race.DIVERGED, race.DIVERGED]


def line_field(epochs: int) -> race.Field:
    """A line through noisy points."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, generator=generator)
    data = (x, 2 * x + 0.1 * torch.randn(40, 1, generator=generator))

    def network(norm: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1) if norm else nn.Identity())

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    def score(model: nn.Module) -> dict[str, float]:
        assert not model.training
        with torch.no_grad():
            return {"train": float(loss(model, data)), "valid": 0.0}

    return race.Field(network, loss, score, Minibatches(data, 10, 0), epochs)


def test_competing_logs_an_epoch_per_row_and_a_divergence_as_bad(lab: Lab):
    field = line_field(3)
    sgd = race.Competitor("sgd", "SGD", "rate", "momentum", lambda m, lr, mu: torch.optim.SGD(m.parameters(), lr, mu))
    good = race.compete(lab, field, sgd, (0.1, 0.0), "grid", batch=10)
    assert [found["epoch"] for found in good] == [0, 1, 2, 3] and good[-1]["train"] < 0.1 < good[0]["train"]
    assert {found["batch"] for found in good} == {10} and good[-1]["seconds"] > good[1]["seconds"] > 0
    bad = race.compete(lab, field, sgd, (1e30, 0.0), "grid")
    assert len(bad) == 4 and bad[0]["train"] == good[0]["train"] and bad[-1]["train"] == race.DIVERGED


def test_a_finished_competition_is_not_run_again_and_leaves_no_weights_behind(lab: Lab, tmp_path: Path):
    field = line_field(2)
    made: list[nn.Module] = []

    def make(model: nn.Module, rate: float, momentum: float) -> torch.optim.Optimizer:
        made.append(model)
        return torch.optim.SGD(model.parameters(), rate, momentum)

    method = race.Competitor("sgd", "SGD", "rate", "momentum", make)
    first = race.compete(lab, field, method, (0.1, 0.0), "grid", batch=10)
    again = race.compete(lab, field, method, (0.1, 0.0), "grid", batch=10)
    assert again == first and len(made) == 1
    kept = {path.name.split("-")[0] for path in tmp_path.rglob("*.pt")}
    assert kept == {"stage_race_sgd_0.1_0.0_10"}


def test_axes_rebuild_each_matrix_and_only_kfac_has_wrong_scales():
    random = np.random.default_rng(0)
    inputs, errors = random.normal(size=(50, 2)), random.normal(size=50)
    errors *= inputs[:, 0]
    exact = (inputs * errors[:, None]).T @ (inputs * errors[:, None]) / 50
    kfac = inputs.T @ inputs / 50 * np.square(errors).mean()
    for kind in ("exact", "diagonal", "ekfac"):
        basis, scales = axes_of(kind, exact, kfac)
        np.testing.assert_allclose(scales, true_scales(basis, exact), rtol=1e-12)
    basis, scales = axes_of("kfac", exact, kfac)
    np.testing.assert_allclose(basis @ np.diag(scales) @ basis.T, kfac, atol=1e-12)
    assert np.abs(scales / true_scales(basis, exact) - 1).max() > 0.1


@pytest.mark.parametrize("kind", [PMatKFAC, PMatEKFAC])
def test_the_relative_error_from_gram_matrices_is_that_of_the_dense_ones(kind: Any):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)).double()
        batch = (torch.randn(20, 4, dtype=torch.float64), torch.randint(2, (20,)))
    exact, approximate = (
        FIM_Empirical(model, batch, form, "classification", progress=False) for form in (PMatDense, kind)
    )
    gradients = per_example_grads(model, batch, progress=False).flat
    gram = (gradients @ gradients.T).numpy() / 20
    expected = torch.linalg.norm(exact.to_dense() - approximate.to_dense()) / torch.linalg.norm(exact.to_dense())
    assert relative_error(gram, gradients, approximate) == pytest.approx(float(expected), rel=1e-8)


def test_correlations_of_equal_columns_are_one_and_of_random_signs_at_chance():
    column = np.random.default_rng(0).normal(size=(400, 1))
    assert mean_off_diagonal(correlations(np.hstack([column, -3 * column]))) == pytest.approx(1)
    same = np.repeat(column, 30, axis=1)
    assert mean_off_diagonal(correlations(same)) == pytest.approx(1)
    kurtosis = np.square(np.square(column)).mean() / np.square(np.square(column).mean())
    expected = np.sqrt(2 / np.pi * kurtosis / 400)  # mean size of a normal number with the variance of the cosine
    assert chance(same, np.random.default_rng(1)) == pytest.approx(expected, rel=0.1)


def test_the_distance_of_spectra_is_between_sorted_lists_that_end_in_zeros():
    assert spectrum_distance(np.array([3.0, 4.0]), torch.tensor([[4.0, 0.0], [3.0, 0.0]])) == 0
    assert spectrum_distance(np.array([3.0, 4.0]), torch.tensor([4.0])) == pytest.approx(3 / 5)


def test_spectra_of_a_fresh_basis_are_those_of_the_matrices_written_out():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoEncoder((9, 5, 3)).double()
        pixels = torch.rand(30, 9, dtype=torch.float64)
    name, seen = "encoder.2", {}
    precond = EKFACra(model, damping=1e-2)
    watch = model.get_submodule(name).register_forward_hook(lambda _, args, out: seen.update(inputs=args[0], out=out))
    losses = pixel_losses(model(pixels), pixels)
    (deltas,) = torch.autograd.grad(losses.sum(), seen["out"], retain_graph=True)
    losses.mean().backward()
    precond.step()
    watch.remove()
    block = next(found for group, found in precond.blocks.items() if group.name == name)
    found = Amortization(layer=name)._distances(model, block, pixels, pixels)
    precond.remove()

    inputs = torch.cat([seen["inputs"], torch.ones(30, 1)], 1).detach()
    (values_in, basis_in), (values_out, basis_out) = (torch.linalg.eigh(x.T @ x / 30) for x in (inputs, deltas))
    rows = torch.einsum("no,ni->noi", deltas, inputs).flatten(1)
    exact = torch.linalg.eigvalsh(rows.T @ rows / 30).numpy()
    kronecker = torch.outer(values_out, values_in)
    scales = torch.einsum("no,ni->noi", deltas @ basis_out, inputs @ basis_in).square().mean(0)
    assert found["kfac"] == pytest.approx(spectrum_distance(exact, kronecker), rel=1e-8)
    assert found["ekfac"] == pytest.approx(spectrum_distance(exact, scales), rel=1e-8)
    assert found["ekfac-ra"] == pytest.approx(spectrum_distance(exact, block.scale), rel=1e-8)


def test_losses_at_equal_times_are_the_best_ones_before_the_first_training_ends():
    one = [row(0, 3.0), row(1, 2.0), row(2, 1.0)]
    slow = [{**row(epoch, train), "seconds": 3.0 * epoch} for epoch, train in ((0, 3.0), (1, 1.5), (2, 0.5))]
    assert race.equal_time(one, slow) == (1.0, 1.5)
    assert race.best_at(one, -1.0) == race.DIVERGED


def test_halving_is_a_function_of_the_updates_that_are_done():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.8)
    halve, rates = race.halving(0.8, 3), []
    state = Training(
        model=nn.Linear(1, 1), optimizer=optimizer, batches=Minibatches((torch.zeros(4, 1),), 2, 0), steps=7
    )
    for step in range(7):  # the hook runs before the update is counted
        state.step = step
        rates.append(optimizer.param_groups[0]["lr"])
        halve(optimizer, state)
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]


def image_rows(experiment: ConvolutionalRace, key: str, batch: int, losses: list[float], pace: float) -> list[race.Row]:
    """A training whose losses are given, with ``pace`` seconds per epoch."""
    own = {"method": key, "batch": batch, "first": 0.1, "second": 0.1}
    per_epoch = experiment.images // batch
    return [
        {
            **own,
            "epoch": e,
            "updates": e * per_epoch,
            "seconds": e * pace,
            "train": loss,
            "valid": loss,
            "error": 0.1 * loss,
        }
        for e, loss in enumerate(losses)
    ]


def vgg_rows(experiment: ConvolutionalRace) -> list[race.Row]:
    """EKFAC-ra first, then EKFAC, which is slow, KFAC, and the others behind."""
    losses = {"ekfac-ra": [2.0, 0.8, 0.4], "ekfac": [2.0, 1.0, 0.5], "kfac": [2.0, 1.5, 1.0]}
    rows = [image_rows(experiment, key, 500, found, 4.0 if key == "ekfac" else 1.0) for key, found in losses.items()]
    rows += [image_rows(experiment, key, 200, [2.0, 1.8, 1.6], 1.0) for key in experiment.rivals]
    rows += [image_rows(experiment, key, size, [2.0, 1.0, 0.5], 1.0) for key in losses for size in (50, 200)]
    return [found for part in rows for found in part]


def test_every_claim_of_the_convolutional_races_is_measured_and_one_that_was_made_true_holds():
    experiment = Vgg11Optimizers(epochs=2)
    rows = vgg_rows(experiment)
    halved = [
        found
        for found in rows
        if found["method"] in SCHEDULED and found["batch"] == experiment.batch_of(found["method"])
    ]
    values = measure(experiment, rows, halved)
    assert set(values) == {claim.id for claim in experiment.claims}
    assert values["4.5-ekfac-kfac"] == 1.0 and values["4.5-ra-sgd-bn"] == 1.0
    assert values["4.5-ra-kfac-time"] == pytest.approx(0.4 / 1.0)
    assert values["4.5-ekfac-kfac-time"] == pytest.approx(2.0 / 1.0)  # EKFAC's first epoch ends after KFAC's second
    assert values["4.5-kfac-catches-ekfac"] == pytest.approx(2.0 / 8.0)
    assert values["4.5-kfac-catches-ra"] == float("inf")
    assert values["4.5-ekfac-kfac-validation"] == pytest.approx(0.05 - 0.1)
    gain = (np.log(1.5 / 1.0) + np.log(1.0 / 0.5)) / 2
    assert values["A.1-batch"] == pytest.approx(-gain) and values["A.2-updates"] == pytest.approx(gain)
    assert values["A.2-time"] == pytest.approx(np.log(1.0 / 2.0))


def test_the_gain_of_a_residual_network_is_the_smallest_over_batch_sizes():
    experiment = Resnet34Optimizers(epochs=2)
    rows = [found for found in vgg_rows(Vgg11Optimizers(epochs=2)) if found["method"] not in ("ekfac", "sgd")]
    values = measure(experiment, rows, [found for found in rows if found["batch"] != 50])
    assert set(values) == {claim.id for claim in experiment.claims}
    assert values["A.3-batch"] == 0 and values["4.6-ra-kfac"] == 1.0


def test_every_method_has_as_many_settings_and_networks_of_natural_gradients_have_no_norm():
    for kind in (Vgg11Optimizers, Resnet34Optimizers):
        experiment = kind()
        methods = experiment.methods()
        assert {method.key for method in methods} == {*experiment.family, *experiment.rivals}
        assert {len(experiment.grid(method.key)) for method in methods} == {4}
        norms = {method.key: method.norm for method in methods}
        assert not any(norms[key] for key in (*experiment.family, "soap")) and norms["adam"] and norms["sgd-bn"]
        for norm in (False, True):
            net = experiment.network(3, norm)
            assert any(isinstance(module, nn.BatchNorm2d) for module in net.modules()) == norm


def test_epochs_at_which_all_trainings_diverged_do_not_enter_a_gain():
    from tangentlab.experiments.natural_gradient._convolutional_claims import gain

    def rows(*losses: float) -> list[dict]:
        return [{"epoch": epoch, "updates": epoch, "train": loss} for epoch, loss in enumerate(losses)]

    one, other = rows(9.0, 4.0, 4.0, race.DIVERGED), rows(9.0, 2.0, race.DIVERGED, 1.0)
    assert gain(one, other) == pytest.approx(math.log(2))
    assert math.isnan(gain(rows(9.0, race.DIVERGED), rows(9.0, 1.0)))

"""The pieces that the alignment experiments measure with, against plain definitions."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.alignment import label_alignment
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.lab import Lab
from tangentlab.bench.runner import make_config
from tangentlab.data import Dataset, disk_labels, grid
from tangentlab.experiments import find
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.alignment import _groups as groups
from tangentlab.experiments.alignment._kernels import kernel_rows
from tangentlab.experiments.alignment.complexity import follows, measured_training
from tangentlab.experiments.alignment.disk import label_share, top_modes
from tangentlab.experiments.alignment.norm_capacity import random_features
from tangentlab.experiments.alignment.supernat import noisy_regression
from tangentlab.experiments.alignment.trained_kernel import kernel_regression
from tangentlab.models import MLP


def lab_of(name, tmp_path):
    experiment = find(name).at("smoke")
    return Lab(experiment, RunFolder.create(tmp_path, make_config(experiment, "smoke")), 0)


def rows_of(values, steps=(0, 10, 100, 1000)):
    return [{"step": step, "cka": value} for step, value in zip(steps, values)]


def test_a_curve_is_summarized_by_its_half_rise_its_steepest_part_and_its_duration():
    rows = rows_of((0.0, 0.1, 0.9, 1.0))
    assert groups.half_rise(rows, "cka") == 100
    assert groups.half_rise(rows_of((0.3, 0.2, 0.1, 0.1)), "cka") == 1  # it never rises: the start, counted as step 1
    slow = [{**row, "other": 0.1 * row["cka"]} for row in rows]
    assert groups.half_rise(slow, "other", "cka") == rows[-1]["step"]  # it never comes to half of the other's rise
    assert groups.steepest(rows, "cka") == pytest.approx(0.8 / np.log(10))
    assert groups.duration(rows, "cka") == 900
    assert groups.duration(rows_of((0.0, 1.0, 0.2, 0.1)), "cka") == 90


@pytest.mark.parametrize("kind", ["random labels", "kmnist"])
def test_a_mixture_has_both_groups_and_probes_of_each_with_the_labels_of_training(tmp_path, kind):
    lab = lab_of("easy-difficult", tmp_path)
    parts = groups.mixture(lab, "digits", kind, 100, 40, 15)
    assert len(parts.data) == 140 and len(parts.easy) == len(parts.difficult) == 15
    assert torch.equal(parts.easy.inputs, parts.data.inputs[:15])
    assert torch.equal(parts.difficult.targets, parts.data.targets[100:115])
    true = lab.dataset("digits").targets[:140]
    assert torch.equal(parts.data.targets[:100], true[:100])
    same = float((parts.data.targets[100:] == true[100:]).float().mean())
    assert same < 0.4 if kind == "random labels" else same == 1


def test_hierarchies_are_label_alignments_of_the_two_probes(tmp_path):
    parts = groups.mixture(lab_of("easy-difficult", tmp_path), "digits", "random labels", 100, 40, 12)
    torch.manual_seed(0)
    model = MLP((64, 8, 10))
    centred, raw = groups.hierarchies(model, parts, ("per_output", None))
    kernel = NTK(model, parts.difficult.inputs)
    assert centred.difficult == pytest.approx(label_alignment(kernel, parts.difficult.targets, "per_output"), rel=1e-6)
    assert raw.difficult == pytest.approx(label_alignment(kernel, parts.difficult.targets, None), rel=1e-6)


def test_top_modes_and_their_share_of_the_labels_are_those_of_the_dense_decomposition():
    points = grid(8).double()
    labels = disk_labels(points)
    kernel = torch.exp(-torch.cdist(points, points).square())
    values, vectors = top_modes(kernel, 4)
    exact, basis = torch.linalg.eigh(kernel)
    assert torch.allclose(values, exact.flip(0)[:4], rtol=1e-8)
    centred = labels.double() - labels.double().mean()
    expected = (basis[:, -4:].t() @ centred).square().sum() / centred.square().sum()
    assert label_share(vectors, labels) == pytest.approx(float(expected), rel=1e-6)
    assert label_share(torch.eye(64, dtype=torch.float64), labels) == pytest.approx(1)


def test_rows_of_a_kernel_hold_centred_numbers_and_their_uncentred_twins():
    torch.manual_seed(0)
    model, inputs, labels = MLP((4, 6, 3)).double(), torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    whole = NTK(model, inputs)
    row, layers = kernel_rows(model, Dataset(inputs, labels, "toy", classes=3))
    assert row["trace_raw"] == pytest.approx(float(whole.trace()), rel=1e-9)
    assert row["trace"] == pytest.approx(float(whole.center("per_output").trace()), rel=1e-9)
    for key, center in (("ka", None), ("cka", "per_output"), ("cka_global", "global")):
        assert row[key] == pytest.approx(label_alignment(whole, labels, center))
    assert [part["layer"] for part in layers] == [0, 1]
    assert layers[1]["cka"] == pytest.approx(
        label_alignment(NTK(model, inputs, layers=model.layers[2]), labels, "per_output"), rel=1e-4
    )


def test_rank_correlations_of_short_or_constant_series_are_zero():
    assert rank_correlation([1, 2, 3], [5, 6, 9]) == pytest.approx(1) == rank_correlation([1, 2], [1, 2])
    assert rank_correlation([1, 2, 3], [9, 6, 5]) == pytest.approx(-1)
    assert rank_correlation([1, 2], [1, 2], least=3) == rank_correlation([1, 2, 3], [4, 4, 4]) == 0
    assert follows([{"C": 1, "gap": 3}, {"C": 2, "gap": 2}, {"C": 3, "gap": 1}], "C") == pytest.approx(-1)


def test_random_features_approximate_the_gaussian_kernel():
    features = random_features(30, 20_000, 2.0, np.random.RandomState(0))
    where = torch.linspace(-2, 2, 30, dtype=torch.float64)
    exact = torch.exp(-(where[:, None] - where).square())
    assert float((features @ features.t() - exact).abs().max()) < 0.05


def test_noisy_targets_differ_from_the_signal_only_along_the_noise_features():
    features, targets = noisy_regression(50, 10, 0.1, torch.Generator().manual_seed(0))
    rest = targets - features[:, 0]
    noise = features[:, 1:]
    fitted = noise @ torch.linalg.lstsq(noise, rest[:, None]).solution[:, 0]
    assert torch.allclose(fitted, rest, atol=1e-10)
    assert float(rest.norm()) > 0.1


def test_kernel_regression_separates_what_its_kernel_separates():
    torch.manual_seed(0)
    labels = torch.arange(40) % 2
    inputs = torch.randn(40, 3) + 6 * labels[:, None]
    data = Dataset(inputs, labels, "two", classes=2)
    model = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, 2))
    assert kernel_regression(model, data.first(20), data.take(torch.arange(20, 40)), 0.01) == 1


def test_a_measured_training_stops_at_its_goal_and_tells_all_measures(tmp_path):
    lab = lab_of("complexity-mnist", tmp_path)
    data = lab.dataset("digits")
    torch.manual_seed(0)
    options = find("complexity-mnist").at("smoke", goal=2.0, cap=200, check=5, rate=0.1)
    row = measured_training(lab, MLP((64, 16, 10)), data.first(200), data.first(300), options)
    assert row["loss"] <= 2.0 and 0 < row["steps"] < 200 and row["steps"] % 5 == 0 and lab.steps == row["steps"]
    assert 0 < row["C between logs"] <= row["C"] and row["path length"] > 0
    assert {"Neyshabur et al.", "path norm", "Fisher-Rao norm", "gap"} <= set(row)

"""The error split by the first kernel: closed forms of linear training, true labels and corruption, and what has none."""

import pytest
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.recorder import TangentRecorder, View
from tangentlab.recorder.information import information
from tests.recorder.trainings import STEADY


def digits(n=30, d=8, classes=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=dtype)
    return x, torch.randint(classes, (n,), generator=generator), torch.randint(classes, (n,), generator=generator)


def test_parts_of_the_error_are_projections_on_the_leading_vectors_of_the_first_kernel():
    x, noisy, _ = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    with torch.no_grad():
        residual = (model(x).softmax(1) - torch.eye(3, dtype=torch.float64)[noisy]).T.flatten()
    vectors = torch.linalg.eigh(NTK(model, x).matrix())[1][:, -round(0.05 * 90) :]
    inside = vectors @ (vectors.T @ residual)
    found = information(View.of(model, (x, noisy)))
    assert found["residual/total"] == pytest.approx(float(residual.norm()))
    assert found["residual/information"] == pytest.approx(float(inside.norm()))
    assert found["residual/nuisance"] == pytest.approx(float((residual - inside).norm()))
    assert "residual/true" not in found


def test_with_true_labels_the_error_is_that_of_the_truth_and_the_corruption():
    x, noisy, true = digits()
    model = nn.Linear(8, 3).double()
    found = information(View.of(model, (x, noisy, true)))
    eye = torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        clean = model(x).softmax(1) - eye[true]
    assert found["residual/true"] == pytest.approx(float(clean.norm()))
    assert found["residual/corruption"] == pytest.approx(float((eye[true] - eye[noisy]).norm()))
    assert 0 < found["residual/corruption/information"] < found["residual/corruption"]


def test_along_a_linear_training_the_information_part_falls_first():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 40, generator=generator, dtype=torch.float64) * torch.logspace(0, -2, 40, dtype=torch.float64)
    y = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(40, 1, bias=False).double()
    rate = 1 / float(torch.linalg.matrix_norm(x, 2)) ** 2
    recorder = TangentRecorder(model, {"p": (x, y)}, measures=["information"], schedule=10, size=(40, None), **STEADY)
    with recorder:
        for _ in range(30):
            model.zero_grad()
            (0.5 * (model(x) - y).square().sum()).backward()
            with torch.no_grad():
                model.weight -= rate * model.weight.grad
            recorder.step()
    first, last = (recorder.snapshots[place]["values"] for place in (0, -1))
    left = {name: last[f"p/residual/{name}"] / first[f"p/residual/{name}"] for name in ("information", "nuisance")}
    assert left["information"] < 0.1 < 0.5 < left["nuisance"]


def test_without_labels_there_is_nothing():
    assert information(View.of(nn.Linear(3, 2), torch.randn(5, 3))) == {}

"""The learnt shares of bands: closed forms of linear training, the drive by hand, and what has none."""

from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tangentlab import NTK
from tangentlab.recorder import TangentRecorder, View
from tangentlab.recorder.frequencies import frequencies
from tests.recorder.trainings import STEADY


def recorded(model, batch, update, steps, **options):
    recorder = TangentRecorder(model, {"p": batch}, measures=["frequencies"], schedule=1, **{**STEADY, **options})
    with recorder:
        for _ in range(steps):
            update()
            recorder.step()
    return recorder


def features(n=20, d=6, seed=0):
    """Rows of mean 0 whose Gram matrix has well separated eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(rows - rows.mean(0)).Q
    return basis * torch.tensor([4.0, 3.0, 2.0, 1.5, 1.0, 0.5], dtype=torch.float64)


def test_a_linear_model_learns_every_band_at_the_speed_of_its_eigenvalues():
    x = features()
    y = torch.randn(20, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(6, 1, bias=False).double()
    rate, steps = 0.05, 7
    values, vectors = torch.linalg.eigh(x @ x.T)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    start = vectors.T @ (y - y.mean() - model(x).detach())[:, 0]

    def update():
        model.zero_grad()
        (0.5 * (model(x) - y).square().sum()).backward()
        with torch.no_grad():
            model.weight -= rate * model.weight.grad

    recorder = recorded(model, (x, y), update, steps, size=(20, None))
    found = recorder.snapshots[-1]["values"]
    left = start * (1 - rate * values) ** steps
    for name, band in {"1": slice(0, 1), "2-4": slice(1, 4), "17-20": slice(16, 20)}.items():
        share = 1 - float(left[band].norm() / start[band].norm())
        assert found[f"p/learnt/{name}"] == pytest.approx(share, abs=1e-9)
    assert found["p/learnt/1"] > found["p/learnt/2-4"] > found["p/learnt/5-16"] > abs(found["p/learnt/17-20"])
    assert all(value == 0 for value in recorder.snapshots[0]["values"].values())


@pytest.mark.parametrize("kind", ["classes", "binary"])
def test_the_error_is_label_minus_probability_for_classes(kind: str):
    torch.manual_seed(0)
    classes = 3 if kind == "classes" else 1
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, classes)).double()
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.randint(0, 3 if kind == "classes" else 2, (10,))
    labels = y if kind == "classes" else y[:, None]
    view = View.of(model, (x, labels))
    kernel = NTK(model, x, center="per_output", progress=False).matrix()
    vectors = torch.linalg.eigh((kernel + kernel.T) / 2).eigenvectors.flip(1)

    def errors():
        logits = model(x).detach()
        wrong = F.one_hot(y, 3) - logits.softmax(1) if kind == "classes" else y[:, None] - logits.sigmoid()
        return vectors.T @ (wrong - wrong.mean(0)).T.flatten()

    first = errors()
    frequencies(view)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    now = errors()
    later = View.of(model, (x, labels))
    later.memory = view.memory
    found = frequencies(later)
    assert found["learnt/5-16" if kind == "classes" else "learnt/5-10"] == pytest.approx(
        1 - float(now[4:16].norm() / first[4:16].norm()), abs=1e-9
    )


def test_a_smaller_probe_is_compared_with_the_same_part_of_the_first():
    x, y = features(), torch.randn(20, 1, dtype=torch.float64)
    model = nn.Linear(6, 1).double()
    whole = View.of(model, (x, y))
    frequencies(whole)
    part = View.of(model, (x[:10], y[:10]))
    part.memory = whole.memory
    assert frequencies(part) == {"learnt/1": 0, "learnt/2-4": 0, "learnt/5-10": 0}
    with torch.no_grad():
        model.weight += 0.1
    fresh = View.of(model, (x[:10], y[:10]))
    fresh.memory = whole.memory
    alone = View.of(model, (x[:10], y[:10] + 0.1 * x[:10].sum(1, keepdim=True)))
    frequencies(alone)
    alone.batch = (x[:10], y[:10])
    assert frequencies(fresh) == pytest.approx(frequencies(alone), abs=1e-9)


def test_without_labels_there_is_nothing_and_a_band_without_an_error_has_no_share():
    x = features()
    model = nn.Linear(6, 1, bias=False).double()
    assert frequencies(View.of(model, x)) == {}
    exact = View.of(model, (x, model(x).detach()))
    assert all(isnan(value) for value in frequencies(exact).values())


def test_the_recording_draws_the_bands_of_every_probe():
    x, y = features(), torch.randn(20, 1, dtype=torch.float64)
    model = nn.Linear(6, 1).double()
    recorder = recorded(model, (x, y), lambda: None, 3)
    pictures = {picture.name: picture for picture in recorder.plot()}
    assert "frequencies" in pictures
    (axes,) = pictures["frequencies"].figure.axes
    assert [line.get_label() for line in axes.get_lines()][:4] == ["1", "2-4", "5-16", "17-20"]

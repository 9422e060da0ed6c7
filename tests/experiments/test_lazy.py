"""Pieces of the experiments on lazy training against plain computations."""

import pytest
import torch

from tangentlab.data import grid, yin_yang_labels
from tangentlab.experiments.lazy import _race as race
from tangentlab.experiments.lazy._ensemble import Ensemble
from tangentlab.experiments.lazy.yin_yang import region_masks
from tangentlab.models import MLP


def test_an_ensemble_computes_and_trains_as_its_networks_do_one_by_one() -> None:
    torch.manual_seed(0)
    networks = [MLP((2, 5, 4, 1)).double() for _ in range(3)]
    ensemble, x = Ensemble(networks), torch.randn(3, 7, 2, dtype=torch.float64)
    y = torch.randn(3, 7, dtype=torch.float64)
    torch.testing.assert_close(ensemble(x), torch.stack([net(one)[:, 0] for net, one in zip(networks, x)]))

    def step(model, loss) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss().backward()
        optimizer.step()

    step(ensemble, lambda: (ensemble(x) - y).square().mean(1).sum())
    ensemble.keep(torch.tensor([2, 0]))
    rows = [2, 0]
    step(ensemble, lambda: (ensemble(x[rows]) - y[rows]).square().mean(1).sum())
    for row in rows:
        for _ in range(2):
            net = networks[row]
            net.zero_grad()
            step(net, lambda net=net, row=row: (net(x[row])[:, 0] - y[row]).square().mean())
    truth = torch.stack([networks[row](x[row])[:, 0] for row in rows])
    torch.testing.assert_close(ensemble(x[rows]), truth)


def test_the_regions_of_the_yin_yang_map() -> None:
    points = grid(400)
    masks, labels = region_masks(points), yin_yang_labels(points)
    area = {name: float(mask.float().mean()) * 4 for name, mask in masks.items()}
    assert area["areas"] == pytest.approx(2, rel=0.02)
    assert area["disks"] == pytest.approx(2 * 3.14159 * 0.09, rel=0.02)
    assert area["straits"] == pytest.approx(2 * (0.6 * 0.5 - 3.14159 * 0.09 / 2), rel=0.02)
    upper = points[:, 1] > 0
    assert (labels[masks["disks"]] != upper[masks["disks"]]).all()
    for name in ("areas", "straits"):
        assert (labels[masks[name]] == upper[masks[name]]).all()
    assert not (masks["areas"] & masks["disks"]).any() and not (masks["straits"] & masks["areas"]).any()
    near = points[masks["straits"]]
    assert (near[:, 0] * near[:, 1] < 0).all() and near[:, 1].abs().max() < 0.5


def test_records_count_from_where_something_was_learnt():
    rows = [{"loss": value} for value in (3.6, 2.9, 2.35, 2.4, 2.0)]
    assert race.begun(rows, "loss") == rows[2:]
    assert race.begun(rows[:2], "loss") == []
    assert race.begun(rows[2:], "loss") == rows[2:]

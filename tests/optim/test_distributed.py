"""Two gloo processes with half a batch each walk the trajectory of one process with the joint batch.

The batch has more examples than any layer has inputs: in the null space of a singular second moment the eigenbasis is
arbitrary, and rounding would decide. Thin bases leave nothing arbitrary: there the linear layer is wider than the batch.
"""

import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tangentlab.optim import LevenbergMarquardt, NaturalSGD
from tests.optim.truth import data
from tests.processes import leave_group

SETTINGS: dict[str, dict] = {
    "kfac": {"preconditioner": "kfac", "period": 2, "factor_decay": 0.5},
    "ekfac": {"preconditioner": "ekfac", "period": 2, "sua": True},
    "ekfac-ra": {"preconditioner": "ekfac-ra", "period": 2, "refresh": "qr"},
    "diagonal": {"preconditioner": "diagonal"},
    "thin": {"preconditioner": "ekfac-ra", "period": 2, "thin": True},
    "sum": {"preconditioner": "ekfac-ra", "loss_reduction": "sum"},
    "exact": {"preconditioner": "kfac", "curvature": "exact", "likelihood": "classification"},
    "cg": {"preconditioner": "cg", "rtol": 1e-12, "iterations": 100},
    "adaptive": {"preconditioner": "ekfac", "damping": "adaptive", "period": 2},
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 3, 2, padding=1), nn.GroupNorm(1, 3)
    pool, features = (nn.Identity(), 75) if name == "thin" else (nn.AdaptiveAvgPool2d(2), 12)
    return nn.Sequential(conv, nn.ReLU(inplace=True), norm, pool, nn.Flatten(), nn.Linear(features, 3)).double()


def train(model: nn.Module, settings: dict, share: slice) -> torch.Tensor:
    settings = {"damping": 0.05, **settings}
    if settings["damping"] == "adaptive":
        settings["damping"] = LevenbergMarquardt(0.05, period=1)
    total = settings.get("loss_reduction") == "sum"
    # DistributedDataParallel averages gradients: of sums over half batches, to half of the sum over the batch.
    lr = 0.2 if total and isinstance(model, DistributedDataParallel) else 0.1
    optimizer = NaturalSGD(model, lr=lr / 40 if total else lr, momentum=0.9, **settings)
    for step in range(5):
        x, y = (tensor[share] for tensor in data(40, 2, 4, 4, seed=step))
        for part in (slice(0, 8), slice(8, None)):  # gradient accumulation, in unequal parts
            weight = 1.0 if total else len(x[part]) / len(x)
            (weight * F.cross_entropy(model(x[part]), y[part], reduction="sum" if total else "mean")).backward()
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        optimizer.step(evaluate=lambda m=inner, x=x, y=y: F.cross_entropy(m(x), y, reduction="none"))
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name, settings in SETTINGS.items():
        found[name] = train(DistributedDataParallel(network(name)), settings, slice(rank, None, 2))
    torch.save(found, f"{folder}/{rank}.pt")
    leave_group()


@pytest.fixture(scope="module")
def trajectories() -> list[dict[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder,), nprocs=2)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_walk_the_trajectory_of_the_joint_batch(name: str, trajectories) -> None:
    alone = train(network(name), SETTINGS[name], slice(None))
    first, second = trajectories[0][name], trajectories[1][name]
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, rtol=1e-6 if name == "cg" else 1e-8, atol=1e-10)
    assert float((alone - torch.cat([p.detach().flatten() for p in network(name).parameters()])).norm()) > 0.01

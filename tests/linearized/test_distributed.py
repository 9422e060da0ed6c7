"""Two gloo processes with half a batch each train a linearized network as one process does with the joint batch."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tangentlab.linearized import AlphaModel, linearize
from tests.linearized.networks import Attention, with_norm
from tests.processes import leave_group


def network(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "alpha":
        return AlphaModel(with_norm().double().eval(), 10.0)
    return linearize((with_norm() if kind == "batch norm" else Attention()).double())


def data(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (8, 3, 4) if kind == "attention" else (8, 3, 8, 8)
    return torch.randn(shape, generator=generator, dtype=torch.float64), torch.arange(8) % 2


def train(model: nn.Module, kind: str, share: slice) -> torch.Tensor:
    x, y = (tensor[share] for tensor in data(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return model(data(kind)[0])


KINDS = ("batch norm", "attention", "alpha")


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    # the start of the second process is another one: that of the first is sent to it
    found = {
        kind: train(DistributedDataParallel(network(kind, seed=rank)), kind, slice(rank, None, 2)) for kind in KINDS
    }
    torch.save(found, f"{folder}/{rank}.pt")
    leave_group()


def test_two_processes_train_as_one_does_with_the_joint_batch() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder,), nprocs=2)
        both = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    for kind in KINDS:
        alone = train(network(kind), kind, slice(None))
        for found in both:
            torch.testing.assert_close(found[kind], alone, rtol=1e-9, atol=1e-9)

"""Parameters that are spread over processes (FSDP2, tensor parallelism) are refused by name, with the way out."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from tangentlab.optim import PRECONDITIONERS, SOAP, NaturalSGD, make_preconditioner


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def attempt(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def work(rank: int, folder: str) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, found = init_device_mesh("cpu", (1,)), {}
    for whole in (True, False):
        model = network()
        fully_shard(model if whole else model[2], mesh=mesh)
        for name in PRECONDITIONERS:
            found[name, whole] = attempt(lambda name=name, model=model: make_preconditioner(name, model))
        found["natural", whole] = attempt(lambda model=model: NaturalSGD(model))
        found["soap", whole] = attempt(lambda model=model: SOAP(model.parameters()))
        found["hooks", whole] = [len(m._forward_pre_hooks) for m in (fully_shard(network(), mesh=mesh), model)]
    torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder,), nprocs=1)
        return torch.load(Path(folder) / "found.pt")


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", [*PRECONDITIONERS, "natural"])
def test_preconditioners_refuse_sharded_parameters_by_name(found: dict, name: str, whole: bool) -> None:
    parameter = "0.weight" if whole else "2.weight"
    assert f"ModelError: Parameter '{parameter}' is a DTensor" in found[name, whole]
    assert "DistributedDataParallel" in found[name, whole]


@pytest.mark.parametrize("whole", [True, False])
def test_soap_refuses_sharded_parameters(found: dict, whole: bool) -> None:
    told = "InputError: 4 of the parameters are DTensors, the first of shape (3, 4)"
    other = "InputError: 2 of the parameters are DTensors, the first of shape (2, 3)"
    assert (told if whole else other) in found["soap", whole]


def test_no_hook_is_left_on_a_model_that_is_refused(found: dict) -> None:
    fresh, refused = found["hooks", True]
    assert fresh == refused

"""Models of which every process holds a part are refused by name, from every entry point, and left working."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import tangentlab as tl
from tangentlab import linearized
from tangentlab.alignment import TangentRecorder
from tangentlab.errors import ModelError
from tangentlab.optim import NaturalSGD

ENTRIES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "FIM": tl.FIM,
    "FIM KFAC": lambda m, x: tl.FIM(m, x, tl.PMatKFAC),
    "FIM implicit": lambda m, x: tl.FIM(m, x, tl.PMatImplicit),
    "FIM of a layout": lambda m, x: tl.FIM(m, x, layers=tl.LayerCollection.from_model(network())),
    "FIM_MonteCarlo": tl.FIM_MonteCarlo,
    "Hessian": lambda m, x: tl.Hessian(m, (x, torch.zeros(len(x), 2)), loss=nn.MSELoss(reduction="none")),
    "NTK": tl.NTK,
    "NTK implicit": lambda m, x: tl.NTK(m, x, representation=tl.FMatImplicit),
    "Jacobian": tl.Jacobian,
    "per_example_grads": tl.per_example_grads,
    "fisher_eigenpairs": tl.fisher_eigenpairs,
    "PVector": lambda m, x: tl.PVector.from_model(m),
    "coverage": tl.coverage,
    "check": tl.check,
    "plan": tl.plan,
    "linearize": lambda m, x: linearized.linearize(m),
    "AlphaModel": lambda m, x: linearized.AlphaModel(m, 2.0),
    "recorder": lambda m, x: TangentRecorder(m, {"train": x}),
    "NaturalSGD": lambda m, x: NaturalSGD(m, lr=0.1, preconditioner="kfac"),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def by_fully_shard(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(network(), mesh=mesh)


def by_fully_shard_of_a_layer(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model[2], mesh=mesh)
    return model


def gathered_for_the_moment(mesh: Any) -> nn.Module:
    model: Any = by_fully_shard(mesh)
    model.unshard()
    return model


def by_tensor_parallelism(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def by_flat_parameters(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(network(), device_id=torch.device("cpu"))


KINDS: dict[str, tuple[Callable[[Any], nn.Module], str]] = {
    "fully_shard": (by_fully_shard, "Parameter '0.weight' is a DTensor, spread over processes as (Shard(dim=0),)"),
    "one layer": (by_fully_shard_of_a_layer, "Parameter '2.weight' is a DTensor"),
    "gathered": (gathered_for_the_moment, "FSDPSequential (the model) are sharded over processes by FSDP"),
    "tensor parallel": (by_tensor_parallelism, "Parameter '0.weight' is a DTensor"),
    "flat parameters": (by_flat_parameters, "FullyShardedDataParallel (the model) are sharded"),
}


@contextmanager
def processes(folder: str, rank: int, size: int) -> Iterator[Any]:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    from torch.distributed.device_mesh import init_device_mesh

    yield init_device_mesh("cpu", (size,))
    dist.barrier()
    dist.destroy_process_group()


def work(rank: int, folder: str, size: int) -> None:
    """What every entry says about every kind, whether the model still gives its outputs, and the way out at work."""
    found: dict[str, Any] = {}
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    with processes(folder, rank, size) as mesh:
        for kind, (make, _) in KINDS.items():
            for entry, call in ENTRIES.items():
                model = make(mesh)
                try:
                    call(model, x)
                    found[f"{kind}: {entry}"] = "accepted"
                except Exception as error:
                    found[f"{kind}: {entry}"] = (type(error), str(error))
                if kind != "gathered":  # `unshard` is undone by the backward of a training step only
                    found[f"{kind}: outputs after {entry}"] = model(x).detach()
        found["way out"] = tl.NTK(plain_copy(by_fully_shard(mesh)), x).matrix()
    torch.save(found, f"{folder}/{rank}.pt")


def plain_copy(model: nn.Module) -> nn.Module:
    """What the message says."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    plain.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    return plain


def spawned(size: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, size), nprocs=size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sharded_models_are_refused_by_name_from_every_entry_point_and_keep_working(size: int) -> None:
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    for found in spawned(size):
        for kind, (_, message) in KINDS.items():
            for entry in ENTRIES:
                assert found[f"{kind}: {entry}"] != "accepted", (kind, entry)
                error, text = found[f"{kind}: {entry}"]
                assert error is ModelError, (kind, entry, error, text)
                way_out = "DistributedDataParallel" if entry == "NaturalSGD" else "get_model_state_dict"
                assert message in text and way_out in text, (kind, entry, text)
                if kind != "gathered":
                    torch.testing.assert_close(found[f"{kind}: outputs after {entry}"], network()(x).detach())
        torch.testing.assert_close(found["way out"], tl.NTK(network(), x).matrix())

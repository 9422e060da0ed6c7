"""Sums over the processes of a DistributedDataParallel training, and work shared between them.

Without a process group everything here does nothing, so that the callers need not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Processes:
    """The processes that train one model together; `group=None` means this one alone.

    device: where the tensors of a collective have to be (a backend for accelerators takes no others).
    """

    def __init__(self, group: Any = None, device: torch.device | None = None) -> None:
        self.group, self.device = group, device
        self.size = dist.get_world_size(group) if group is not None else 1
        self.rank = dist.get_rank(group) if group is not None else 0

    def sum_(self, *tensors: Tensor) -> None:
        """Replace every tensor by its sum over the processes: one collective per dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            own = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in own])
            dist.all_reduce(flat, group=self.group)
            for tensor, total in zip(own, flat.split([tensor.numel() for tensor in own]), strict=True):
                tensor.copy_(total.reshape(tensor.shape))

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Sums of numbers over the processes."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, group=self.group)
        return [float(total) for total in tensor]

    def all_agree(self, flag: bool) -> bool:
        """Whether the flag is true in every process."""
        return self.totals([float(not flag)]) == [0.0]

    def share(
        self, jobs: Sequence[Any], work: Callable[[Sequence[Any]], list[Any]], tensors: Callable[[Any], list[Tensor]]
    ) -> list[Any]:
        """`work(jobs)`, every process doing its part; all end with bit-identical results.

        Args:
            jobs: the same list in every process.
            work: from some of the jobs to their results; must not raise, since the others would wait for ever.
            tensors: the tensors of one job's result, of which the other processes have placeholders of equal shape.
        """
        if self.size == 1:
            return work(jobs)
        own = list(range(self.rank, len(jobs), self.size))
        done = dict(zip(own, work([jobs[index] for index in own]), strict=True))
        results = []
        for index, job in enumerate(jobs):
            result = done[index] if index in done else job.placeholder()
            source = index % self.size
            for tensor in tensors(result):
                dist.broadcast(tensor, group=self.group, group_src=source)
            results.append(result)
        return results


def unwrap(model: nn.Module, group: Any = None) -> tuple[nn.Module, Processes]:
    """The module inside a DistributedDataParallel wrapper with its processes, or the model itself and one process."""
    device = next((p.device for p in model.parameters()), None)
    if isinstance(model, DistributedDataParallel):
        return model.module, Processes(group if group is not None else model.process_group, device)
    return model, Processes(group, device)

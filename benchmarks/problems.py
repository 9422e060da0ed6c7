"""The shared data of a job: weights, inputs and labels, written once and read by every system."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks import nets
from benchmarks.environments import cache_folder
from benchmarks.jobs import Job


def write(job: Job, seed: int = 0) -> tuple[Path, int]:
    """Write the job's problem as npz; return the path and the number of parameters.

    Contains `weight/<name>` in parameter order, the inputs `x`, random labels `y`, and labels `drawn` from the model's
    own distribution, so that every system computes the one-sample Fisher of the same sample.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nets.build(job.net, job.options)
    x = nets.draw_inputs(job.net, job.options, job.n, generator)
    with torch.no_grad():
        logits = model(x)
    arrays = {f"weight/{name}": parameter.detach().numpy() for name, parameter in model.named_parameters()}
    drawn = torch.multinomial(logits.softmax(-1).flatten(0, -2), 1, generator=generator).reshape(logits.shape[:-1])
    y = torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator)
    key = hashlib.sha256(json.dumps(job.message(), sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "problems"
    folder.mkdir(exist_ok=True)
    path = folder / f"{job.name}-{key}.npz"
    np.savez(path, x=x.numpy(), y=y.numpy(), drawn=drawn.numpy(), **arrays)
    return path, sum(parameter.numel() for parameter in model.parameters())

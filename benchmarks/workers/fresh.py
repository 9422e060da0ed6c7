"""The first call in a fresh process: an interpreter starts, imports, computes one kernel and ends; all of that is timed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.environments import ROOT, cache_folder
from benchmarks.workers.base import Prepared, Task

_BEGINNING = """
import sys
import torch
from torch import nn
torch.set_num_threads({threads})
inputs = torch.load(sys.argv[1])
x, y = inputs.pop("x"), inputs.pop("y")
width, size = inputs["0.weight"].shape
model = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, len(inputs["2.bias"]))).eval()
model.load_state_dict(inputs)
"""
_END = """
torch.save(kernel.detach(), sys.argv[2])
"""


def fresh_process(task: Task, code: str) -> Prepared:
    """A process that computes `kernel` from `model`, `x` and `y` by some code, byte code compiled beforehand."""
    import torch

    folder = Path(tempfile.mkdtemp(prefix="first-", dir=cache_folder()))
    arrays = {**task.weights, "x": task.x, "y": task.y}
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "inputs.pt")
    script = folder / "first.py"
    script.write_text(_BEGINNING.format(threads=task.threads) + code + _END)
    command = [sys.executable, str(script), str(folder / "inputs.pt"), str(folder / "kernel.pt")]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run() -> Path:
        subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True)
        return folder / "kernel.pt"

    def values(path: Path) -> dict[str, np.ndarray]:
        return {"kernel": torch.load(path).numpy()}

    run()
    return Prepared(run, values)

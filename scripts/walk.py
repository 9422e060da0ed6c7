"""The walk of a call: which files of the package have functions that run in it. `python scripts/walk.py` prints it.

Whoever wants to understand `NTK` or `FIM` reads these files. Counted are functions that were executed, on a small network
of linear layers and on a small convolutional one, after one call of each kind that loads what is imported on first use.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import tangentlab
from tangentlab import FIM, NTK, PMatDiag, PMatEKFAC, PMatKFAC

HOME = Path(tangentlab.__file__).parent


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Small networks with their inputs."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    cnn = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    return {"MLP": (mlp, torch.randn(16, 32)), "CNN": (cnn, torch.randn(16, 1, 8, 8))}


CALLS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "NTK": NTK,
    "FIM diagonal": lambda model, x: FIM(model, x, PMatDiag),
    "FIM KFAC": lambda model, x: FIM(model, x, PMatKFAC),
    "FIM EKFAC": lambda model, x: FIM(model, x, PMatEKFAC),
}


def walk(call: Callable[[], Any]) -> Counter[str]:
    """File below the package -> calls of its functions (comprehensions and generator steps among them)."""
    found: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(HOME)):
            found[str(Path(frame.f_code.co_filename).relative_to(HOME))] += 1

    call()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def main(details: bool) -> None:
    """Print the number of files and of calls, with `--files` also which."""
    for name, (model, x) in networks().items():
        for what, call in CALLS.items():
            found = walk(lambda call=call, model=model, x=x: call(model, x))  # type: ignore[misc]
            print(f"{what:13} {name}: {len(found)} files, {sum(found.values())} calls")
            if details:
                print("".join(f"    {count:5} {file}\n" for file, count in sorted(found.items())), end="")


if __name__ == "__main__":
    main("--files" in sys.argv)

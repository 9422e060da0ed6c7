"""A ResNet50 through Implicit, KFAC and EKFAC in one process; prints seconds and the peak memory as JSON.

Run as a module with the folder of the project in PYTHONPATH: `python -m tests.large.resnet50`.
"""

import json
import resource
import time
from collections.abc import Callable
from typing import Any

import torch

import tangentlab as tl
from tangentlab.errors import MemoryBudgetError
from tangentlab.models import ResNet50

EXAMPLES, CLASSES, PIXELS, SAMPLES = 32, 200, 64, 5
RELATIVE_DAMPING = 1e-3
"""Of the exact trace; the matrix has rank 160 at most."""


def peak_gib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def normalized(model: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    """Give batch norms the statistics of the data: with those of an untrained model its logits are saturated and F = 0."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def main() -> None:
    torch.manual_seed(0)
    tl.set_memory_budget(2 << 30)
    x = torch.randn(EXAMPLES, 3, PIXELS, PIXELS)
    model = normalized(ResNet50(CLASSES, stem="imagenet"), x)
    v = tl.PVector.random_unit(model)
    result: dict[str, Any] = {"parameters": v.flat.numel(), "start_gib": peak_gib(), "seconds": {}, "values": {}}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = work()
        result["seconds"][name] = round(time.perf_counter() - start, 2)
        return value

    try:
        tl.FIM(model, x, tl.PMatDense)
    except MemoryBudgetError as error:
        result["dense"] = str(error)
    labels, damping = None, 0.0
    kinds = {
        "implicit": tl.PMatImplicit,
        "kfac": tl.PMatMixed.default(kronecker=tl.PMatKFAC),
        "ekfac": tl.PMatMixed.default(kronecker=tl.PMatEKFAC),
    }
    for name, kind in kinds.items():
        F = timed(
            f"{name} build",
            lambda kind=kind, labels=labels: tl.FIM_MonteCarlo(model, x, kind, samples=SAMPLES, labels=labels),
        )
        labels = F.labels
        values = {
            "vTMv": float(timed(f"{name} vTMv", lambda F=F: F.vTMv(v))),
            "mv": float(timed(f"{name} mv", lambda F=F: F @ v).norm()),
            "trace": float(timed(f"{name} trace", F.trace)),
        }
        damping = damping or RELATIVE_DAMPING * values["trace"]
        step = timed(f"{name} solve", lambda F=F, damping=damping: F.solve(v, damping))
        values["solve"] = float(step.norm())
        values["residual"] = float((F @ step + damping * step - v).norm() / v.norm())
        result["values"][name] = values
        result[f"{name}_gib"] = peak_gib()
        result[f"{name}_stored_gib"] = F.nbytes() / 2**30
        print(name, json.dumps(values), f"{peak_gib():.2f} GiB", flush=True)
        del F
    result["damping"], result["peak_gib"] = damping, peak_gib()
    print(json.dumps(result))


if __name__ == "__main__":
    main()

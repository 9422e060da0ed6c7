"""One contender of `optim_overhead.py` in a process of its own: seconds per step, next to plain SGD in alternation.

Needs torch and the contender's library only, so that it runs in the peers' environment.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.nets import ResNet18

Step = Callable[[Tensor, Tensor], None]
LR, DAMPING = 1e-3, 1e-1


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Forward, backward, optimizer step."""

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def sgd(model: nn.Module, every: int) -> Step:
    return plain(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9))


def tangentlab(name: str, **options: object) -> Callable[[nn.Module, int], Step]:
    def make(model: nn.Module, every: int) -> Step:
        from tangentlab.optim import NaturalSGD

        optimizer = NaturalSGD(
            model, lr=LR, preconditioner=name, damping=DAMPING, period=every, warm_up=False, **options
        )
        make.preconditioner = optimizer.preconditioner  # type: ignore[attr-defined]
        return plain(model, optimizer)

    return make


def own_soap(model: nn.Module, every: int) -> Step:
    from tangentlab.optim import SOAP

    return plain(model, SOAP(model.parameters(), lr=LR, period=every))


def peer_soap(model: nn.Module, every: int) -> Step:
    from pytorch_optimizer import SOAP

    options = {"precondition_frequency": every, "max_precondition_dim": 10_000}
    return plain(model, SOAP(model.parameters(), lr=LR, **options))


def singd(model: nn.Module, every: int) -> Step:
    from singd.optim.optimizer import SINGD

    return plain(model, SINGD(model, lr=LR, damping=DAMPING, T=every, structures=("dense", "dense")))


def asdl(model: nn.Module, every: int) -> Step:
    from asdl.precondition import KfacGradientMaker, PreconditioningConfig

    intervals = {"preconditioner_upd_interval": every, "curvature_upd_interval": every}
    maker = KfacGradientMaker(model, PreconditioningConfig(data_size=1, damping=DAMPING, **intervals), "fisher_emp")
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        outputs = maker.setup_model_call(model, x)
        maker.setup_loss_call(F.cross_entropy, outputs, y)
        maker.forward_and_backward()
        optimizer.step()

    return step


CONTENDERS: dict[str, Callable[[nn.Module, int], Step]] = {
    "sgd": sgd,
    "ekfac-ra": tangentlab("ekfac-ra"),
    "ekfac-ra-thin": tangentlab("ekfac-ra", thin=True),
    "ekfac-ra-sua": tangentlab("ekfac-ra", sua=True),
    "ekfac-ra-qr": tangentlab("ekfac-ra", refresh="qr", eigh_every=100),
    "kfac": tangentlab("kfac"),
    "kfac-sua": tangentlab("kfac", sua=True),
    "soap": own_soap,
    "peer-soap": peer_soap,
    "peer-singd": singd,
    "peer-asdl": asdl,
}
PARTS = {"statistics": ("_fold", "_measure"), "eigh": ("_refresh",), "rotation": ("_natural",)}


def split_clock(preconditioner: object) -> dict[str, float]:
    """Seconds spent in the parts of a preconditioner's step, summed up from now on."""
    spent: dict[str, float] = defaultdict(float)
    for part, names in PARTS.items():
        for name in names:
            original = getattr(preconditioner, name)

            def timed(*args: object, part: str = part, original: Callable = original, **options: object) -> object:
                start = time.perf_counter()
                try:
                    return original(*args, **options)
                finally:
                    spent[part] += time.perf_counter() - start

            setattr(preconditioner, name, timed)
    return spent


def seconds(step: Step, x: Tensor, y: Tensor) -> float:
    start = time.perf_counter()
    step(x, y)
    return time.perf_counter() - start


def measure(name: str, batch: int, pixels: int, width: int, reps: int) -> dict[str, object]:
    """Best ordinary step, best refresh step and best SGD step, in alternation, in seconds; parts where known."""
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(10, (batch,))
    rival, model = ResNet18(width), ResNet18(width)
    every = reps + 1
    reference, step = sgd(rival, every), CONTENDERS[name](model, every)
    spent = split_clock(getattr(CONTENDERS[name], "preconditioner", None) or object) if _has_parts(name) else {}
    seconds(reference, x, y)
    seconds(step, x, y)
    result: dict[str, list[float]] = {"sgd": [], "ordinary": [], "refresh": []}
    parts: dict[str, list[dict[str, float]]] = {"ordinary": [], "refresh": []}
    for number in range(1, every + 1):
        kind = "refresh" if number == every else "ordinary"
        result["sgd"].append(seconds(reference, x, y))
        spent.clear()
        result[kind].append(seconds(step, x, y))
        parts[kind].append(dict(spent))
    best = {kind: min(times) for kind, times in result.items()}
    split = {kind: found[result[kind].index(best[kind])] for kind, found in parts.items()}
    return {"seconds": best, "parts": split if _has_parts(name) else None}


def _has_parts(name: str) -> bool:
    return hasattr(CONTENDERS[name], "preconditioner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=CONTENDERS)
    for option, default in (("batch", 128), ("pixels", 32), ("width", 64), ("reps", 4), ("threads", 2)):
        parser.add_argument(f"--{option}", type=int, default=default)
    arguments = vars(parser.parse_args())
    torch.set_num_threads(arguments.pop("threads"))
    print(json.dumps(measure(arguments.pop("contender"), **arguments)))


if __name__ == "__main__":
    main()

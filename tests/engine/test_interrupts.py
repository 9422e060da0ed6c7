"""Ctrl-C at any line leaves the model, the process and the locks as they were: every line is tried."""

import contextlib
import linecache
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tangentlab as tl
from tangentlab.bench import seeds
from tangentlab.engine import capture, forward_mode, functional, memory, snapshot
from tangentlab.engine.certificate import verifies
from tangentlab.engine.frozen import Keepsakes
from tangentlab.engine.network import Network
from tangentlab.engine.progress_bar import progress_told_to
from tangentlab.engine.snapshot import TURN
from tangentlab.experiments import _images
from tangentlab.linearized import linearity, steps
from tangentlab.parallel.threads import num_threads
from tangentlab.recorder import isolation, loaders
from tests.engine.state import model_state

SOURCE = str(Path(tl.__file__).parent)
Work = Callable[[], Any]


def traced(work: Work, stop: int | None = None) -> int:
    """How many lines of the package run; with `stop`, Ctrl-C comes at that one.

    The line of a `with` statement comes up once more at its end: there the interpreter goes on to the exit of the block
    without looking for signals, so nothing can come.
    """
    count, entered = 0, set()

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        file = frame.f_code.co_filename
        if not file.startswith(SOURCE):
            return None
        block = event == "line" and linecache.getline(file, frame.f_lineno).strip().startswith("with ")
        if block and (frame, frame.f_lineno) in entered:
            return step
        if block:
            entered.add((frame, frame.f_lineno))
        count += event in ("call", "line")
        if count == stop:
            raise KeyboardInterrupt
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def swept(work: Work, state: Callable[[], Any], points: int | None = None) -> int:
    """Interrupt the work at every line, or at some points, and compare the state afterwards; how many times it came to that
    (a look at the free memory that is due or not makes some lines more or less)."""
    work()  # imports on first use, and what is measured once
    total = traced(work)
    stops = range(1, total + 1) if points is None else sorted(random.Random(0).sample(range(1, total + 1), points))
    before, interrupted = state(), 0
    for stop in stops:
        try:
            traced(work, stop)
        except KeyboardInterrupt:
            interrupted += 1
        assert state() == before, f"interrupted at line {stop} of {total}"
    return interrupted


class Net(nn.Module):
    """Buffers, containers, a mode per module, hooks on modules and on gradients, what a forward writes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.calls, self.seen = 0, [torch.zeros(2)]
        self.last.register_forward_hook(lambda module, inputs, output: None)
        self.first.weight.register_hook(lambda grad: 2 * grad)
        self.eval()
        self.first.train()
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x.detach())
        return self.last(torch.tanh(self.norm(self.first(x))))


NET = Net()
X = torch.linspace(-1, 1, 12).reshape(4, 3)
LOADER: Any = DataLoader(TensorDataset(X), 2, shuffle=True, generator=torch.Generator().manual_seed(3))


def process() -> dict[str, Any]:
    """The state of the model, and of whatever else the managers touch."""
    return model_state(NET) | {
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),
        "loader": LOADER.generator.get_state().numpy().tobytes(),
        "iterator": LOADER._iterator,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "budget": memory._budget,
        "verify": verifies(Network.of(NET)),
        "convert": nn.Module._apply,
        "kept": KEPT.open,
        "lock": TURN._is_owned(),  # type: ignore[attr-defined]
    }


@contextmanager
def frozen() -> Iterator[None]:
    with KEPT.scope():
        yield
    assert not KEPT.open


KEPT = Keepsakes(NET)
OTHER = {name: torch.randn_like(value) for name, value in NET.named_parameters()}
OWN = {name: value.detach().clone() for name, value in NET.named_parameters()}
MANAGERS: dict[str, Callable[[], Any]] = {
    "untouched": lambda: snapshot.untouched(NET),
    "evaluation mode": lambda: snapshot.evaluation_mode(NET),
    "random state": snapshot.same_random_state,
    "silent gradients": lambda: capture.without_hooks(NET.parameters()),
    "plain kernels": forward_mode.plain_kernels,
    "no conversion": functional._no_conversion,
    "memory limit": lambda: tl.memory_limit(1000),
    "verify": lambda: tl.verify(False),
    "progress": lambda: progress_told_to(lambda *_: None),
    "threads": lambda: num_threads(1 + torch.get_num_threads()),
    "single thread": seeds.single_thread,
    "undisturbed": lambda: isolation.undisturbed(NET),
    "loaders": lambda: loaders.unmoved([LOADER]),
    "representation": lambda: contextlib.nullcontext(linearity.observed(NET, X, ["last"])),
    "other values": lambda: steps._placed(Network.of(NET), OTHER, OWN),
    "frozen": frozen,
}


def inside(name: str) -> None:
    """What a block may do to the process."""
    with MANAGERS[name]():
        if name in ("untouched", "undisturbed"):
            NET.calls, NET.seen[0] = NET.calls + 1, torch.ones(2)
            NET.seen.append(torch.ones(2))
            NET.norm.running_mean.add_(1)  # type: ignore[union-attr, operator]
            NET.extra = 3
            NET.norm._forward_hooks[1000] = print
        if name in ("untouched", "undisturbed", "random state", "loaders"):
            torch.rand(1)
        if name in ("undisturbed", "loaders"):
            random.random()
            np.random.rand()
        if name == "loaders":
            next(iter(LOADER))


@pytest.mark.parametrize("name", MANAGERS)
def test_an_interrupt_at_any_line_of_a_context_manager_leaves_everything_as_it_was(name: str) -> None:
    def state() -> dict[str, Any]:
        found = process()
        if name != "other values":
            return found
        values = {key: value.detach().tolist() for key, value in NET.named_parameters()}  # of another version
        return {k: v for k, v in found.items() if not (k.startswith("parameter") or "_parameters" in k)} | values

    assert swept(lambda: inside(name), state) >= 5


def test_batch_statistics_of_an_experiment_come_back() -> None:
    norms = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    class Batches:
        @staticmethod
        def at(step: int) -> tuple[Tensor]:
            return (X + step,)

    def work() -> None:
        with _images.evaluation(norms, Batches(), 2):  # type: ignore[arg-type]
            pass

    def state() -> Any:
        facts = norms[1].momentum, norms.training, norms[1].training  # type: ignore[union-attr]
        return facts, {key: value.tolist() for key, value in norms.state_dict().items()}

    assert swept(work, state) > 10


def implicit(x: Tensor) -> Any:
    return tl.FIM(NET, x, tl.PMatImplicit, "regression") @ tl.PVector.ones(NET)


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "NTK": lambda x: tl.NTK(NET, x),
    "FIM": lambda x: tl.FIM(NET, x, tl.PMatDense, "regression"),
    "EKFAC": lambda x: tl.FIM(NET, x, tl.PMatEKFAC, "regression", layers=["first", "last"]),
    "implicit": implicit,
    "push": lambda x: tl.Jacobian(NET, x, tl.PushForwardImplicit) @ tl.PVector.ones(NET),
    "Hessian": lambda x: tl.Hessian(
        NET, (x, torch.zeros(len(x), 2)), tl.PMatImplicit, loss=lambda f, y: (f - y).pow(4).sum(1)
    ).mv(tl.PVector.ones(NET)),
    "coverage": lambda x: tl.coverage(NET, x),
    "plan": lambda x: tl.plan(NET, x),
    "check": lambda x: tl.check(NET, x),
    "loader": lambda x: tl.FIM(NET, DataLoader(TensorDataset(x), 2), tl.PMatDiag, "regression"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("points", [10, pytest.param(1500, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_of_a_call_leaves_everything_as_it_was(name: str, points: int) -> None:
    assert swept(lambda: CALLS[name](X), process, points) > 0.8 * points


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_signals_at_any_time_leave_everything_as_it_was(name: str) -> None:
    """Ctrl-C as it comes: a signal after a random time."""
    generator, before = random.Random(0), process()
    start = time.perf_counter()
    CALLS[name](X)
    duration, interrupted = time.perf_counter() - start, 0
    for trial in range(150):
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, duration))
            CALLS[name](X)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert process() == before, f"signal {trial}"
    assert interrupted > 30

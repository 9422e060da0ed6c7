"""The recorder: tangent kernels, alignment, linearity, complexity and curvature of a network while it trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

import torch
from torch import nn

import tangentlab
from tangentlab.alignment.flow import Flow
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.network import Options, spelled_out
from tangentlab.errors import DiskError, InputError
from tangentlab.files import FULL
from tangentlab.recorder.budget import Budget, Size
from tangentlab.recorder.isolation import unwrapped
from tangentlab.recorder.ledger import Ledger
from tangentlab.recorder.likelihoods import classes_last
from tangentlab.recorder.measures import DEFAULT, Measure, measures_of
from tangentlab.recorder.observer import TrainingObserver, check_model
from tangentlab.recorder.planning import Course, choose_size
from tangentlab.recorder.probes import make_probes
from tangentlab.recorder.recording import Recording
from tangentlab.recorder.scalars import plain_number, require_number
from tangentlab.recorder.storage import Row, ScalarWriter, until
from tangentlab.recorder.words import announcement, warn_of, warn_of_disk, why_not_running
from tangentlab.schedule import schedule_of

if TYPE_CHECKING:
    from tangentlab.figures.picture import Picture

DEFAULT_SIZE = Size(examples=50, outputs=4)
DEFAULT_OVERHEAD = 0.1


class TangentRecorder:
    """Records a training without changing it.

    By hand, `step()` after every update:

        with TangentRecorder(model, {"train": (x, y), "test": (x_test, y_test)}, folder="runs/1") as recorder:
            for batch in loader:
                ...
                optimizer.step()
                recorder.step(loss=loss)
        recorder.report()

    `lightning_callback()` and `hugging_face_callback()` do this inside those trainers.

    Args:
        model: the network in training; wrappers of compilation and of data-parallel training are taken off.
        probes: data by name; a batch or a dataset, or a loader whose first batches are taken. C(f) and curvature are those of
            the first.
        schedule: a `Schedule`; a number k: every k steps; a list of steps; a function of the step. By default 5 x 1.7^k.
            The first and the last step are always recorded.
        size: (examples, outputs) per probe, e.g. (100, 10); all outputs: (100, None). By default (50, 4), the outputs
            drawn by chance, and `max_overhead` may shrink it. A size that is given stays, unless `max_overhead` is, too.
        max_overhead: share of the training time that the recorder may take, 0.1 by default.
        free_seconds: what it may take in any case.
        total_steps: length of the training, where known: it makes the plan of the snapshots exact.
        measures: names (see `tangentlab.recorder.measures`) and functions of a `View`.
        folder: for `recording.jsonl`; without it rows are only in memory (and in `state_dict`).
        tensorboard: a SummaryWriter, or a folder for a new one.
        likelihood: of the labels, as in `FIM`; by default guessed from them: two classes where every output has a label 0 or 1
            or an integer belongs to a single output, real targets where they are floating point otherwise, else classes.
        options: `layers`, `forward` and `function`, as in `NTK`.
        seed: of the probes and of all estimates.
        strict: raise what goes wrong in a snapshot. By default a failing measure is noted and warned of, and training goes
            on; the first snapshot is always strict. A disk that fails switches the recorder off, with a warning.
        verbose: say on stderr what the recorder will cost and when it shrinks.
    """

    @spelled_out
    def __init__(
        self,
        model: nn.Module,
        probes: Any,
        schedule: Any = None,
        *,
        size: tuple[int, int | None] | None = None,
        max_overhead: float | None = None,
        free_seconds: float = 5.0,
        total_steps: int | None = None,
        measures: Iterable[str | Measure] | None = None,
        folder: str | Path | None = None,
        tensorboard: ScalarWriter | str | Path | None = None,
        likelihood: str | Likelihood | None = None,
        seed: int = 0,
        strict: bool = False,
        verbose: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        **options: Unpack[Options],
    ) -> None:
        check_model(model)
        model = unwrapped(model)
        self.model, self.schedule, self.total_steps = model, schedule_of(schedule), total_steps
        self.strict, self.verbose, self.folder = strict, verbose, None if folder is None else Path(folder)
        largest = DEFAULT_SIZE if size is None else Size.of(size)
        limit = max_overhead if max_overhead is not None else DEFAULT_OVERHEAD if size is None else inf
        self._budget = Budget(limit, free_seconds)
        chosen = tuple(DEFAULT if measures is None else measures)
        self._flow = Flow(options.get("layers")) if "complexity" in chosen else None
        kind, options["function"] = classes_last(likelihood, options.get("function"))
        options.setdefault("progress", False)
        found = make_probes(probes, largest.examples, seed)
        self._observer = TrainingObserver(model, options, found, measures_of(chosen), largest, seed, kind)
        self.size = self._observer.largest
        self._ledger = Ledger(tensorboard)
        self._clock = clock
        self.steps = 0
        self._scalars: dict[str, Any] = {}
        self._running = self.off = False

    # ------------------------------------------------------------------ life

    def start(self, total_steps: int | None = None, first_step: int = 0) -> None:
        """Take the first snapshot, after `first_step` updates without a recorder (or go on after `load_state_dict`)."""
        if self._running:
            raise InputError("This recorder is running already.")
        self.total_steps = total_steps if total_steps is not None else self.total_steps
        resumed = bool(self.snapshots) and not self.off
        before = list(self.rows) if resumed else []
        first_step = first_step or (self.steps if self.off else 0)
        self._running, self.off = True, False
        self._budget.begin(self._clock())
        try:
            self._ledger.open(self.folder, resume=resumed)
            if resumed:
                self._ledger.write({"kind": "resumed", "step": self.steps})
            else:
                self._first_snapshot(first_step)
        except BaseException as error:
            self.close()
            if isinstance(error, DiskError) and error.errno in FULL and not self.strict:
                self._switch_off(error)
                return
            self._ledger.rows = before
            raise
        self._budget.recorder_until(self._clock())

    def _first_snapshot(self, step: int) -> None:
        self.steps = step
        self._announce()
        if step:
            self._event("joined", f"joined at step {step}: similarities and C(f) start here, not at step 0")
        self._observer.forget()
        if self._flow is not None:
            self._flow.begin(self.model)
        self._snapshot(self.size, strict=True)

    def step(self, loss: Any = None, **scalars: Any) -> None:
        """Count one update that was just made; the loss and other numbers go into the next snapshot's row."""
        if self.off:
            self.steps += 1
            return
        if not self._running:
            raise InputError(why_not_running(self.rows, self.steps))
        told = scalars if loss is None else {"loss": loss, **scalars}
        for name, value in told.items():
            require_number(name, value)
        due = self.schedule.due(self.steps + 1) or self.steps + 1 == self.total_steps
        if due and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._budget.training_until(self._clock())
        self.steps += 1
        self._scalars = told
        if self._flow is not None:
            self._flow.step(self.model)
        if due:
            with self.surviving_the_disk():
                self._take(last=self.steps == self.total_steps)
        self._budget.recorder_until(self._clock())

    def finish(self) -> None:
        """Take the last snapshot, if it is not there yet, and close the files."""
        if not self._running:
            return
        self._budget.begin(self._clock())
        try:
            with self.surviving_the_disk():
                if not self.snapshots or self.snapshots[-1]["step"] != self.steps:
                    self._take(last=True)
                self._budget.recorder_until(self._clock())
                overhead = {"overhead": self._budget.overhead, "seconds": self._budget.spent}
                self._ledger.write({"kind": "finished", "step": self.steps, **overhead})
        finally:
            self.close()

    def close(self) -> None:
        """Close the files without a last snapshot; `start` goes on."""
        self._running = False
        self._ledger.close()

    @contextmanager
    def surviving_the_disk(self) -> Iterator[None]:
        """A disk that takes nothing more does not end a training: the recorder warns and records nothing from here on."""
        try:
            yield
        except DiskError as error:
            if self.strict:
                raise
            self._switch_off(error)

    def _switch_off(self, error: DiskError) -> None:
        self.close()
        self.off = True
        text = f"nothing is recorded after step {self.steps}: {str(error).rstrip('.')}"
        self.rows.append({"kind": "off", "step": self.steps, "text": text})
        warn_of_disk(error, self.steps)

    def __enter__(self) -> TangentRecorder:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish() if kind is None else self.close()

    # ------------------------------------------------------------------ snapshots

    @property
    def rows(self) -> list[Row]:
        """All that was taken down so far."""
        return self._ledger.rows

    @property
    def snapshots(self) -> list[Row]:
        """The rows with measurements."""
        return [row for row in self.rows if row["kind"] == "snapshot"]

    @property
    def overhead(self) -> float:
        """Seconds of the recorder over seconds of training, so far."""
        return self._budget.overhead

    @property
    def _course(self) -> Course:
        return Course(self.schedule, self.steps, self.total_steps)

    def _take(self, *, last: bool) -> None:
        choice = choose_size(self._course, self._budget, self.size, self._observer.planned_seconds, last=last)
        if choice.size is None:
            self._event("skipped", f"no snapshot at step {self.steps}: {choice.why}", cost=choice.cost)
            return
        if choice.size != self.size:
            before, self.size = self.size, choice.size
            sizes = {"from": [before.examples, before.outputs], "to": [self.size.examples, self.size.outputs]}
            self._event("resized", f"from {before} to {self.size} at step {self.steps}: {choice.why}", **sizes)
        self._snapshot(self.size, strict=self.strict)

    def _snapshot(self, size: Size, *, strict: bool) -> None:
        way = {} if self._flow is None else self._flow.log(self.model)
        started = self._clock()
        sight = self._observer.look(self.steps, size, trace=self._flow is not None, strict=strict)
        seconds = self._clock() - started
        self._budget.cost = sight.cost
        if self._flow is not None and sight.feature_norm is not None:
            self._flow.feature_norm = way["feature_norm"] = sight.feature_norm
        warn_of(sight.problems, self.rows, self.steps)
        row = {
            "kind": "snapshot",
            "step": self.steps,
            "seconds": seconds,
            "overhead": (self._budget.spent + seconds) / self._budget.training if self._budget.training else 0.0,
            "examples": size.examples,
            "outputs": size.outputs,
            "scalars": {name: plain_number(value) for name, value in self._scalars.items()},
            "values": {**way, **sight.values},
            "parts": sight.seconds,
            "problems": sight.problems,
        }
        self._ledger.write(row)

    # ------------------------------------------------------------------ words

    def _announce(self) -> None:
        """What is recorded, and what it will cost by the plan, before it costs anything."""
        observer, share = self._observer, self._budget.share
        planned = observer.planned_seconds(self.size)
        text = announcement(self._course, share, self.size, list(observer.probes), planned, observer.left_out)
        plans = {"schedule": repr(self.schedule), "max_overhead": share, "total_steps": self.total_steps}
        facts = {**observer.about(), **plans, "planned_seconds": planned, "version": tangentlab.__version__}
        self._event("start", text, run=uuid4().hex, **facts)

    def _event(self, kind: str, text: str, **facts: Any) -> None:
        self._ledger.write({"kind": kind, "step": self.steps, "text": text, **facts})
        if self.verbose:
            print(f"tangentlab recorder: {text}", file=sys.stderr)

    # ------------------------------------------------------------------ checkpoints and results

    def state_dict(self) -> dict[str, Any]:
        """All that a recorder of the same arguments needs to go on: tensors, numbers and texts only."""
        return {
            "steps": self.steps,
            "off": self.off,
            "rows": list(self.rows),
            "size": (self.size.examples, self.size.outputs),
            "budget": self._budget.state_dict(),
            "memory": {name: dict(kept) for name, kept in self._observer.memory.items()},
            "flow": None if self._flow is None else self._flow.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; load the model's first, then this, then `start`."""
        if self._running:
            raise InputError("Load the state of a recorder before it starts.")
        self.steps, self.off = state["steps"], state.get("off", False)
        if self.off:  # steps were missed since, so that `start` joins the training anew
            return
        self._ledger.rows = until(state["rows"], self.steps)
        self.size = Size(*state["size"])
        self._budget.load_state_dict(state["budget"])
        self._observer.memory = {name: dict(kept) for name, kept in state["memory"].items()}
        if self._flow is not None and state["flow"] is not None:
            self._flow.load_state_dict(state["flow"], self.model)

    @property
    def recording(self) -> Recording:
        """The rows so far, with curves, figures and the page."""
        return Recording(self.rows)

    def plot(self, folder: str | Path | None = None) -> list[Picture]:
        """The house figures; also written to `folder` as SVG and PNG if it is given."""
        return self.recording.plot(folder)

    def report(self, path: str | Path | None = None) -> Path:
        """Write one self-contained HTML page, by default `report.html` in the recorder's folder."""
        if path is None and self.folder is None:
            raise InputError("Where should the page go? Give report(path), or the recorder a folder.")
        return self.recording.report(path if path is not None else self.folder / "report.html")  # type: ignore[operator]

    def lightning_callback(self) -> Any:
        """A `lightning.pytorch.Callback` that records the fit of a LightningModule."""
        from tangentlab.recorder.lightning import lightning_callback

        return lightning_callback(self)

    def hugging_face_callback(self) -> Any:
        """A `transformers.TrainerCallback` that records a Trainer."""
        from tangentlab.recorder.hugging_face import hugging_face_callback

        return hugging_face_callback(self)

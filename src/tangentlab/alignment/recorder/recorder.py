"""The recorder: tangent kernels, alignment, linearity, complexity and curvature of a network while it trains."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import tangentlab
from tangentlab.alignment.recorder.budget import Budget, Size, horizon, ladder
from tangentlab.alignment.recorder.flow import Flow
from tangentlab.alignment.recorder.isolation import unwrapped
from tangentlab.alignment.recorder.measures import DEFAULT, Measure, measures_of, plain_number
from tangentlab.alignment.recorder.observer import Observer, Sight, check_model
from tangentlab.alignment.recorder.probes import Call, make_probes
from tangentlab.alignment.recorder.recording import Recording
from tangentlab.alignment.recorder.schedule import schedule_of
from tangentlab.alignment.recorder.storage import Journal, Row, ScalarWriter, scalar_writer, until, write_scalars
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.network import Forward, OutputFunction
from tangentlab.errors import InputError
from tangentlab.report.format import duration

if TYPE_CHECKING:
    from tangentlab.experiments import Picture

DEFAULT_SIZE = Size(examples=50, outputs=4)
DEFAULT_OVERHEAD = 0.1


class TangentRecorder:
    """Records a training without changing it.

    By hand, `step()` after every update::

        with TangentRecorder(model, {"train": (x, y), "test": (x_test, y_test)}, folder="runs/1") as recorder:
            for batch in loader:
                ...
                optimizer.step()
                recorder.step(loss=loss)
        recorder.report()

    `lightning_callback()` and `hugging_face_callback()` do this inside those trainers.

    Args:
        model: the network in training; wrappers of compilation and of data-parallel training are taken off.
        probes: data by name; a batch, or a loader whose first batches are taken. C(f) and curvature are those of the first.
        schedule: a `Schedule`; a number k: every k steps; a list of steps; a function of the step. By default 5 x 1.7^k.
            The first and the last step are always recorded.
        size: (examples, outputs) per probe, e.g. (100, 10); "all" outputs: (100, None). By default (50, 4), the outputs
            drawn by chance, and `max_overhead` may shrink it. A size that is given stays, unless `max_overhead` is, too.
        max_overhead: share of the training time that the recorder may take, 0.1 by default.
        free_seconds: what it may take in any case.
        total_steps: length of the training, where known: it makes the plan of the snapshots exact.
        measures: names (see `tangentlab.alignment.recorder.measures`) and functions of a `View`.
        folder: for ``recording.jsonl``; without it rows are only in memory (and in `state_dict`).
        tensorboard: a SummaryWriter, or a folder for a new one.
        likelihood: of the labels, as in `FIM`; by default guessed from them.
        layers, forward, function: as in `NTK`.
        seed: of the probes and of all estimates.
        strict: raise what goes wrong in a snapshot. By default a failing measure is noted and warned of, and training goes
            on; the first snapshot is always strict.
        verbose: say on stderr what the recorder will cost and when it shrinks.
    """

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
        layers: Any = None,
        forward: Forward | None = None,
        function: OutputFunction | None = None,
        seed: int = 0,
        strict: bool = False,
        verbose: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_model(model)
        model = unwrapped(model)
        self.model, self.schedule, self.total_steps = model, schedule_of(schedule), total_steps
        self.strict, self.verbose, self.folder = strict, verbose, None if folder is None else Path(folder)
        largest = DEFAULT_SIZE if size is None else Size(size[0], sys.maxsize if size[1] is None else size[1])
        limit = max_overhead if max_overhead is not None else DEFAULT_OVERHEAD if size is None else inf
        self._budget = Budget(limit, free_seconds)
        chosen = tuple(DEFAULT if measures is None else measures)
        self._flow = Flow() if "complexity" in chosen else None
        found, call = make_probes(probes, largest.examples, seed), Call(layers, forward, function)
        self._observer = Observer(model, call, found, measures_of(chosen, likelihood), largest, seed)
        self.size = self._observer.largest
        self._tensorboard = scalar_writer(tensorboard)
        self._journal: Journal | None = None
        self._clock, self._left = clock, 0.0
        self.rows: list[Row] = []
        self.steps = 0
        self._scalars: dict[str, Any] = {}
        self._running = False

    # ------------------------------------------------------------------ life

    def start(self, total_steps: int | None = None, first_step: int = 0) -> None:
        """Take the first snapshot, after ``first_step`` updates without a recorder (or go on after `load_state_dict`)."""
        if self._running:
            raise InputError("This recorder is running already.")
        self.total_steps = total_steps if total_steps is not None else self.total_steps
        self._running, self._left = True, self._clock()
        resumed = bool(self.rows)
        if self.folder is not None:
            self._journal = Journal(self.folder, resume=resumed)
            for row in self.rows if self._journal.new else ():  # the folder did not come along with the checkpoint
                self._journal.append(row)
        if resumed:
            self._write({"kind": "resumed", "step": self.steps})
        else:
            self.steps = first_step
            self._announce()
            if first_step:
                self._event("joined", f"joined at step {first_step}: similarities and C(f) start here, not at step 0")
            if self._flow is not None:
                self._flow.begin(self.model)
            self._snapshot(self.size, strict=True)
        self._leave()

    def step(self, loss: Any = None, **scalars: Any) -> None:
        """Count one update that was just made; the loss and other numbers go into the next snapshot's row."""
        if not self._running:
            raise InputError(
                "The recorder has not seen the network before its first update: use it as a context, `with recorder:`, "
                "or call recorder.start() before training."
            )
        due = self.schedule.due(self.steps + 1) or self.steps + 1 == self.total_steps
        if due and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._arrive()
        self.steps += 1
        self._scalars = {**({} if loss is None else {"loss": loss}), **scalars}
        if self._flow is not None:
            self._flow.step(self.model)
        if due:
            self._take(last=self.steps == self.total_steps)
        self._leave()

    def finish(self) -> None:
        """Take the last snapshot, if it is not there yet, and close the files."""
        if not self._running:
            return
        self._left = self._clock()
        if not self.snapshots or self.snapshots[-1]["step"] != self.steps:
            self._take(last=True)
        self._leave()
        overhead = {"overhead": self._budget.overhead, "seconds": self._budget.spent}
        self._write({"kind": "finished", "step": self.steps, **overhead})
        self.close()

    def close(self) -> None:
        """Close the files without a last snapshot; `start` goes on."""
        self._running = False
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __enter__(self) -> TangentRecorder:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish() if kind is None else self.close()

    # ------------------------------------------------------------------ snapshots

    @property
    def snapshots(self) -> list[Row]:
        """The rows with measurements."""
        return [row for row in self.rows if row["kind"] == "snapshot"]

    @property
    def overhead(self) -> float:
        """Seconds of the recorder over seconds of training, so far."""
        return self._budget.overhead

    def _take(self, *, last: bool) -> None:
        size = self._affordable(last)
        if size is not None:
            self._snapshot(size, strict=self.strict)

    def _affordable(self, last: bool) -> Size | None:
        """The present size, a smaller one, or None where even the smallest costs too much; the last one is always taken."""
        budget, planned = self._budget, self._observer.planned_seconds
        cost = budget.predicted(self.size, planned)
        free = self.total_steps is None and budget.spent + cost <= budget.free_seconds
        if budget.share == inf or free:
            return self.size
        end = horizon(self.steps, self.total_steps)
        later = self.schedule.between(self.steps, end)
        count = 1 if last else 1 + len(later) + (not later or later[-1] != end)
        sizes = ladder(self.size)
        found = budget.choose(sizes, budget.allowance(self.steps, self.total_steps, count), planned)
        if found == self.size:
            return found
        why = f"{count} more of {duration(cost)} would pass {budget.share:.0%} of the training time"
        smallest = sizes[-1]
        if found is None and not last and not budget.earned(budget.predicted(smallest, planned)):
            self._event("skipped", f"no snapshot at step {self.steps}: {why}", cost=cost)
            return None
        found = found or smallest
        if found != self.size:
            sizes_then = {"from": [self.size.examples, self.size.outputs], "to": [found.examples, found.outputs]}
            self._event("resized", f"from {self.size} to {found} at step {self.steps}: {why}", **sizes_then)
        self.size = found
        return found

    def _snapshot(self, size: Size, *, strict: bool) -> None:
        way = {} if self._flow is None else self._flow.log(self.model)
        started = self._clock()
        sight = self._observer.look(self.steps, size, trace=self._flow is not None, strict=strict)
        seconds = self._clock() - started
        self._budget.cost = sight.cost
        if self._flow is not None and sight.feature_norm is not None:
            self._flow.feature_norm = way["feature_norm"] = sight.feature_norm
        self._warn_of(sight)
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
        self._write(row)
        if self._tensorboard is not None:
            write_scalars(self._tensorboard, row)

    def _warn_of(self, sight: Sight) -> None:
        seen = {text for row in self.snapshots for text in row["problems"].values()}
        for what, text in sight.problems.items():
            if text not in seen:
                warnings.warn(f"tangentlab recorder, step {self.steps}, {what}: {text}", RuntimeWarning, stacklevel=5)

    # ------------------------------------------------------------------ time and words

    def _arrive(self) -> None:
        moment = self._clock()
        self._budget.lap(moment - self._left)
        self._left = moment

    def _leave(self) -> None:
        moment = self._clock()
        self._budget.spent += moment - self._left
        self._left = moment

    def _announce(self) -> None:
        """What is recorded, and what it will cost by the plan, before it costs anything."""
        names = ", ".join(self._observer.probes)
        planned = self._observer.planned_seconds(self.size)
        end = horizon(self.steps, self.total_steps)
        count = 2 + len([step for step in self.schedule.between(self.steps, end) if step < end])
        share = self._budget.share
        limit = "no limit of time" if share == inf else f"at most {share:.0%} of the training time"
        text = (
            f"{names}: {self.size} each, all layers, about {duration(planned)} for the kernels of a snapshot by the plan, "
            f"{count} snapshots in {end:,} steps; {limit}"
        )
        plans = {"schedule": repr(self.schedule), "max_overhead": share, "total_steps": self.total_steps}
        facts = {**self._observer.about(), **plans, "planned_seconds": planned, "version": tangentlab.__version__}
        self._event("start", text, **facts)

    def _event(self, kind: str, text: str, **facts: Any) -> None:
        self._write({"kind": kind, "step": self.steps, "text": text, **facts})
        self._say(text)

    def _say(self, text: str) -> None:
        if self.verbose:
            print(f"tangentlab recorder: {text}", file=sys.stderr)

    def _write(self, row: Row) -> None:
        self.rows.append(row)
        if self._journal is not None:
            self._journal.append(row)

    # ------------------------------------------------------------------ checkpoints and results

    def state_dict(self) -> dict[str, Any]:
        """All that a recorder of the same arguments needs to go on: tensors, numbers and texts only."""
        return {
            "steps": self.steps,
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
        self.steps = state["steps"]
        self.rows = until(state["rows"], self.steps)
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
        """The house figures; also written to ``folder`` as SVG and PNG if it is given."""
        return self.recording.plot(folder)

    def report(self, path: str | Path | None = None) -> Path:
        """Write one self-contained HTML page, by default ``report.html`` in the recorder's folder."""
        if path is None and self.folder is None:
            raise InputError("Where should the page go? Give report(path), or the recorder a folder.")
        return self.recording.report(path if path is not None else self.folder / "report.html")  # type: ignore[operator]

    def lightning_callback(self) -> Any:
        """A `lightning.pytorch.Callback` that records the fit of a LightningModule."""
        from tangentlab.alignment.recorder.lightning import lightning_callback

        return lightning_callback(self)

    def hugging_face_callback(self) -> Any:
        """A `transformers.TrainerCallback` that records a Trainer."""
        from tangentlab.alignment.recorder.hugging_face import hugging_face_callback

        return hugging_face_callback(self)

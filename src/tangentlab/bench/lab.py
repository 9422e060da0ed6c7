"""`Lab`: what an experiment holds in its hands while one seed runs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import torch

from tangentlab.bench import seeds
from tangentlab.bench.checkpoints import CheckpointStore
from tangentlab.bench.claims import preconditions
from tangentlab.bench.errors import RunStopped
from tangentlab.bench.experiment import Experiment
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.provenance import peak_memory_mb
from tangentlab.bench.row_files import RowWriter, count_rows, read_rows
from tangentlab.data import Dataset, load, stand_in
from tangentlab.errors import DataFileError
from tangentlab.files import make_folder, write_sealed
from tangentlab.plain import plain

Event = dict[str, Any]
Item = TypeVar("Item")

CLAIM_TABLE, SKIP_TABLE, DATA_TABLE, END_TABLE = "claim", "not-tested", "data", "end"
BENCH_TABLES = (CLAIM_TABLE, SKIP_TABLE, DATA_TABLE, END_TABLE)
EVENT_SECONDS = 0.1


class Lab:
    """One seed of a run: its random streams, its log, its claims, its checkpoints and its progress.

    An experiment keeps nothing outside of it, so that a seed which was killed can start `run` again and be carried, by
    `stage` and by the training loop, to where it was.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        seed: int,
        *,
        max_steps: int | None = None,
        report: Callable[[Event], None] = lambda event: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.seed, self.max_steps = seed, max_steps
        self.steps = 0
        self._experiment, self._folder, self._report, self._stopping = experiment, folder, report, stopping
        self._claim_ids = {claim.id for claim in experiment.claims} | preconditions(experiment.claims).keys()
        self._writer = RowWriter(folder.metrics_file, seed, count_rows(read_rows(folder.metrics_file), seed))
        self._store = CheckpointStore(folder.seed_folder(seed) / "checkpoints")
        self._started, self._seconds_before = time.monotonic(), 0.0
        self._last_event, self._last_what = -1.0, ""
        self._live: dict[str, Any] = {}

    def generator(self, *names: str | int) -> torch.Generator:
        """A torch generator for the stream with these names; streams do not disturb each other."""
        return seeds.torch_generator(self.seed, *names)

    def numpy_generator(self, *names: str | int) -> np.random.Generator:
        """A numpy generator for the stream with these names."""
        return seeds.numpy_generator(self.seed, *names)

    def seeded(self, *names: str | int) -> AbstractContextManager[None]:
        """`with lab.seeded("model"): net = MLP(...)`: layer initialization draws from the named stream."""
        return seeds.seeded(self.seed, *names)

    def log(self, table: str, **values: Any) -> None:
        """Append one row to `table` of `metrics.jsonl`; it is on its way to the disk when this returns."""
        if table in BENCH_TABLES:
            raise ValueError(f"The table '{table}' belongs to the bench.")
        self._writer.append(table, values)

    def measure(self, claim: str, value: float) -> None:
        """Record the number that decides `claim`, or a precondition of claims, for this seed."""
        self._check_claim(claim)
        self._writer.append(CLAIM_TABLE, {"id": claim, "value": float(value)})

    def not_tested(self, claim: str, reason: str) -> None:
        """Say why `claim` cannot be decided by this seed; the others still decide it."""
        self._check_claim(claim)
        self._writer.append(SKIP_TABLE, {"id": claim, "reason": reason})

    def save_array(self, name: str, array: Any) -> None:
        """Keep an array that is too large for a row; `Results.array` reads it when drawing."""
        path = self._folder.array_file(self.seed, name)
        make_folder(path.parent)
        values = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        buffer = io.BytesIO()
        np.save(buffer, values, allow_pickle=False)
        write_sealed(path, buffer.getvalue())

    def dataset(self, name: str, split: str = "train") -> Dataset:
        """The data set; where it is absent and `--max-steps` cuts the run, noise of its shape, marked as such."""
        try:
            data = load(name, split)
        except DataFileError:
            if self.max_steps is None:
                raise
            data = stand_in(name, split)
        return self.uses(data)

    def uses(self, data: Dataset) -> Dataset:
        """Write down that the run is about `data`, which came from elsewhere than `dataset`; what stands in is marked."""
        what = {"examples": len(data), "note": data.note, "stand_in": data.stand_in}
        self._writer.append(DATA_TABLE, {"data": data.name, "split": data.split, **what})
        return data

    def stage(self, name: str, compute: Callable[[], Item]) -> Item:
        """The result of `compute`, kept on disk: a resumed run does not compute it again.

        The result must be made of tensors, numbers, texts, lists and dictionaries; what it logs is kept as well.
        """
        found = self.restore(f"stage {name}")
        if found is not None:
            result: Item = found["result"]
            return result
        result = compute()
        self.keep(f"stage {name}", {"result": result})
        return result

    def loop(self, items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
        """Iterate with progress; at most `max_steps` items when the run is cut short."""
        size = len(items) if total is None and isinstance(items, Sized) else total
        size = self.capped(size) if size is not None else self.max_steps
        for number, item in enumerate(items):
            if self.max_steps is not None and number >= self.max_steps:
                return
            self.progress(what, number, size)
            yield item
            self.steps += 1
        self.progress(what, size or 0, size, now=True)

    def capped(self, steps: int) -> int:
        """`steps`, or fewer when the run is cut short."""
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def live(self, **numbers: Any) -> None:
        """Numbers to show next to the progress bar; they are not stored."""
        self._live.update(numbers)

    def progress(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """Tell what is happening, and stop here when the run was asked to."""
        if self._stopping():
            raise RunStopped("The run was asked to stop.")
        moment = time.monotonic()
        if now or what != self._last_what or moment - self._last_event >= EVENT_SECONDS:
            self._last_event, self._last_what = moment, what
            live = plain(self._live)
            self._report({"what": what, "done": done, "total": total, "steps": self.steps, "live": live})

    @property
    def stop_requested(self) -> bool:
        """Whether the run was asked to stop; `progress` will raise."""
        return self._stopping()

    @property
    def seconds(self) -> float:
        """Time spent on this seed, earlier parts of a resumed run included."""
        return self._seconds_before + time.monotonic() - self._started

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Write a checkpoint: `state`, and how far the log and the step count are."""
        self._writer.sync()
        mark = {"rows": self._writer.count, "steps": self.steps, "seconds": self.seconds}
        self._store.save(name, {"state": state, "mark": mark})

    def restore(self, name: str) -> dict[str, Any] | None:
        """The state of a checkpoint, with the log set back to where it was; None when there is no usable one."""
        found = self._store.load(name)
        if found is None or found["mark"]["rows"] > self._writer.on_disk:
            return None
        mark = found["mark"]
        self._writer.count, self.steps = mark["rows"], mark["steps"]
        self._seconds_before, self._started = mark["seconds"], time.monotonic()
        state: dict[str, Any] = found["state"]
        return state

    def forget(self, name: str) -> None:
        """Remove a checkpoint that will not be needed again: a training inside a finished stage is `train <its name>`."""
        self._store.discard(name)

    def finish(self) -> None:
        """Write the row that says that this seed has come to its end."""
        values = {"steps": self.steps, "seconds": round(self.seconds, 3), "memory_mb": peak_memory_mb()}
        self._writer.append(END_TABLE, values)
        self._writer.sync()
        self._store.clear()

    def close(self) -> None:
        """Close the log."""
        self._writer.close()

    def _check_claim(self, claim: str) -> None:
        if claim not in self._claim_ids:
            raise KeyError(f"{self._experiment.name} declares no claim '{claim}' (it has {sorted(self._claim_ids)}).")

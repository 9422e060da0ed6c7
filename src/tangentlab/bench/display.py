"""The live display of a run: what every seed is doing, how long it will take, and its numbers of the moment."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tangentlab.figures.format import number

if TYPE_CHECKING:
    from tangentlab.bench.folder import Config, RunFolder
    from tangentlab.bench.lab import Event

QUIET_SECONDS = 30.0


class ProgressDisplay:
    """One line per seed in a terminal; elsewhere (a log file, CI) a sentence now and then.

    The bar shows the whole seed where the experiment states its number of steps, else the loop that is running.
    """

    def __init__(self, config: Config, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._config = config
        steps = config.build().cost().steps
        self._steps = steps if steps and config.max_steps is None else None
        self._tasks: dict[int, TaskID] = {}
        self._last_sentence: dict[int, float] = {}
        self._progress = Progress(
            TextColumn("seed {task.fields[seed]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("[bright_black]left[/]"),
            TimeRemainingColumn(),
            TextColumn("[bright_black]after[/]"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
        )

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def announce(self, folder: RunFolder) -> None:
        """Say where the run is written, and when it was begun by another version than this one."""
        what = f"{self._config.experiment} at scale {self._config.scale}"
        seeds = ", ".join(map(str, self._config.seeds))
        word = "seed" if len(self._config.seeds) == 1 else "seeds"
        self._console.print(f"{escape(what)}, {word} {seeds}, in {escape(str(folder.path))}", soft_wrap=True)
        before, now = (config.provenance.get("commit") for config in (folder.config(), self._config))
        if before != now:
            self._console.print(f"[yellow]begun at commit {before}, going on at {now}[/]", soft_wrap=True)

    def event(self, event: Event) -> None:
        """Show one event of one seed."""
        if event.get("ended"):
            self._ended(event)
        elif self._console.is_terminal:
            self._draw(event)
        elif time.monotonic() - self._last_sentence.get(event["seed"], -QUIET_SECONDS) >= QUIET_SECONDS:
            self._last_sentence[event["seed"]] = time.monotonic()
            self._console.print(f"seed {event['seed']}: {escape(describe(event))}", soft_wrap=True)

    def _draw(self, event: Event) -> None:
        seed = event["seed"]
        if seed not in self._tasks:
            self._tasks[seed] = self._progress.add_task("", total=None, seed=seed)
        total = self._steps if self._steps is not None else event["total"]
        done = event["steps"] if self._steps is not None else event["done"]
        self._progress.update(self._tasks[seed], total=total, completed=done, description=escape(describe(event)))

    def _ended(self, event: Event) -> None:
        seed = event["seed"]
        if seed in self._tasks:
            task = self._progress.tasks[self._progress.task_ids.index(self._tasks[seed])]
            done = task.total if task.total and not event["code"] else task.completed
            text = "done" if not event["code"] else "[red]failed[/]"
            self._progress.update(self._tasks[seed], description=text, completed=done)
        elif not self._console.is_terminal:
            self._console.print(f"seed {seed}: {'done' if not event['code'] else 'failed'}")


def describe(event: Event) -> str:
    """`training the net 120/400, loss 0.31`."""
    place = "" if event["total"] is None else f" {event['done']}/{event['total']}"
    numbers = "".join(f", {name} {_short(value)}" for name, value in event.get("live", {}).items())
    return f"{event['what']}{place}{numbers}"


def _short(value: Any) -> str:
    try:
        return number(value, 3)
    except (TypeError, ValueError):
        return str(value)

"""`Results`: what all seeds of a run logged, in the shape in which figures want it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangentlab.bench.claims import preconditions
from tangentlab.bench.errors import RunError
from tangentlab.bench.experiment import Experiment
from tangentlab.bench.folder import Config, RunFolder
from tangentlab.bench.kept import Kept, array_is_dropped, kept_array, kept_rows
from tangentlab.bench.lab import CLAIM_TABLE, DATA_TABLE, END_TABLE, SKIP_TABLE
from tangentlab.bench.row_files import Row, read_rows
from tangentlab.bench.verdicts import Measured, Verdict
from tangentlab.errors import DataFileError
from tangentlab.figures.curves import Curves
from tangentlab.files import read_sealed

Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """The rows of one table, of all seeds, in the order in which they were logged."""

    name: str
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> Array:
        """One column as an array; a missing entry is NaN."""
        if not any(column in row for row in self.rows):
            known = sorted({key for row in self.rows for key in row} - {"table"})
            raise RunError(
                f"The table '{self.name}' has no column '{column}' (it has {', '.join(known) or 'no rows'})."
            )
        return np.array([row.get(column, np.nan) for row in self.rows])

    def where(self, **conditions: Any) -> Table:
        """The rows in which every named column has the given value."""
        kept = (row for row in self.rows if all(row.get(key) == value for key, value in conditions.items()))
        return Table(self.name, tuple(kept))

    def distinct(self, column: str) -> list[Any]:
        """The different values of a column, in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))


class Results:
    """The log of a run and what follows from it: tables, curves, arrays, verdicts.

    Numbers are as a published result keeps them (`tangentlab.bench.kept`), and what it does not keep is not there, so a run
    and the result that is published of it are judged and drawn alike.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.config = folder, folder.config()
        self.experiment: Experiment = self.config.build()
        self._kept = None if folder.metrics_file.exists() else Kept.of(folder.path)
        rows = read_rows(folder.metrics_file) if self._kept is None else self._kept.rows
        self._rows = kept_rows(rows, self.experiment.dropped)

    @property
    def scale(self) -> str:
        """The scale of the run."""
        return self.config.scale

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have logged anything."""
        present = {row["seed"] for row in self._rows}
        return tuple(seed for seed in self.config.seeds if seed in present)

    @property
    def ended(self) -> tuple[int, ...]:
        """The seeds that came to their end."""
        done = set(self.table(END_TABLE)["seed"].tolist()) if len(self.table(END_TABLE)) else set()
        return tuple(seed for seed in self.config.seeds if seed in done)

    @property
    def complete(self) -> bool:
        """Whether every seed came to its end."""
        return self.ended == self.config.seeds

    def table(self, name: str, **conditions: Any) -> Table:
        """The rows of a table (an empty one when nothing was logged to it), optionally filtered."""
        return Table(name, tuple(row for row in self._rows if row["table"] == name)).where(**conditions)

    def curves(self, table: str, x: str, y: str, **conditions: Any) -> Curves:
        """`y` against `x`, one curve per seed, at the places that all seeds have."""
        rows = self.table(table, **conditions)
        by_seed = [
            {row[x]: row[y] for row in rows.where(seed=seed).rows if x in row and y in row} for seed in self.seeds
        ]
        by_seed = [points for points in by_seed if points]
        if not by_seed:
            raise RunError(
                f"The table '{table}' has no rows with '{x}' and '{y}' where {conditions or 'anything holds'}."
            )
        common = sorted(set.intersection(*(set(points) for points in by_seed)))
        values = np.array([[points[place] for place in common] for points in by_seed], dtype=float)
        return Curves(np.array(common, dtype=float), values.reshape(len(by_seed), len(common)))

    def array(self, name: str, seed: int | None = None) -> Array:
        """An array that a seed (the first one by default) saved."""
        seed = self.seeds[0] if seed is None else seed
        if self._is_dropped(name, seed):
            raise RunError(f"The array '{name}' of seed {seed} is named in `dropped`: nothing may need it.")
        if self._kept is not None and f"{seed}/{name}" in self._kept.arrays:
            return self._kept.arrays[f"{seed}/{name}"]
        path = self.folder.array_file(seed, name)
        if not path.exists():
            raise RunError(f"No array '{name}' was saved by this seed: {path.name} is not there.")
        try:
            array: Array = np.load(io.BytesIO(read_sealed(path)), allow_pickle=False)
        except (DataFileError, ValueError) as error:
            raise RunError(f"The array '{name}' cannot be read ({error}). Its run has to be made again.") from error
        return kept_array(array)

    def has_arrays(self, name: str) -> bool:
        """Whether every seed saved the array: a run that was cut short may not have come to it."""
        kept = self._kept.arrays if self._kept is not None else {}
        return all(
            not self._is_dropped(name, seed)
            and (f"{seed}/{name}" in kept or self.folder.array_file(seed, name).exists())
            for seed in self.seeds
        )

    def _is_dropped(self, name: str, seed: int) -> bool:
        return array_is_dropped(name, seed == self.config.seeds[0], self.experiment.dropped)

    def arrays(self, name: str) -> Array:
        """An array of all seeds, stacked along a new first axis."""
        return np.stack([self.array(name, seed) for seed in self.seeds])

    def verdicts(self) -> list[Verdict]:
        """The verdict on every claim of the experiment that is not retired."""
        measured = self._measured()
        reason = _untestable(self.config, self.stand_ins())
        claims = [claim for claim in self.experiment.claims if not claim.retired]
        options = {"reason": reason, "ended": self.complete, "random": self.experiment.random}
        return [measured.verdict(claim, self.scale, self.config.seeds, **options) for claim in claims]

    def conditions(self) -> dict[str, dict[int, float]]:
        """What was measured of every precondition, by seed."""
        measured = self._measured()
        return {one: dict(measured.values.get(one, {})) for one in preconditions(self.experiment.claims)}

    def seconds(self) -> list[float]:
        """The run time of every seed that came to its end."""
        return [float(row["seconds"]) for row in self.table(END_TABLE).rows]

    def memory_mb(self) -> float | None:
        """The largest memory of any seed that came to its end."""
        peaks = [row["memory_mb"] for row in self.table(END_TABLE).rows if row.get("memory_mb") is not None]
        return max(peaks, default=None)

    def stand_ins(self) -> list[str]:
        """The data sets for which noise stood in."""
        return self.table(DATA_TABLE, stand_in=True).distinct("data")

    def data(self) -> list[str]:
        """The data that were used, one text each: name, split, number of examples, and what is special about them."""
        rows = self.table(DATA_TABLE).rows
        texts = (
            f"{row['data']} {row['split']}, {row['note'] or format(row['examples'], ',') + ' examples'}" for row in rows
        )
        return list(dict.fromkeys(texts))

    def _measured(self) -> Measured:
        """What the seeds measured while they ran, and what follows from their logs now (it counts where there are both)."""
        found = Measured()
        for row in self.table(CLAIM_TABLE).rows:
            found.add(row["id"], row["seed"], float(row["value"]))
        for row in self.table(SKIP_TABLE).rows:
            found.add(row["id"], row["seed"], row["reason"])
        for seed in self.ended:
            for name, value in self.experiment.measure(self, seed).items():
                found.add(name, seed, value)
        return found


def _untestable(config: Config, stand_ins: Sequence[str]) -> str:
    """Why no claim of a run can be tested, empty when they can."""
    if config.max_steps is not None:
        return f"the run was cut short after {config.max_steps} step{'s' if config.max_steps > 1 else ''} per loop"
    return f"noise stood in for {', '.join(stand_ins)}" if stand_ins else ""

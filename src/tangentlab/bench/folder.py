"""`RunFolder`: the one place on disk that belongs to a run, and the lock that keeps others out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EEXIST
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from tangentlab.bench.errors import RunError, SettingError
from tangentlab.bench.experiment import SCALES, Experiment
from tangentlab.bench.registry import find
from tangentlab.bench.settings import check_values, suggestion
from tangentlab.errors import DiskError
from tangentlab.files import disk_errors, make_folder, write_atomically
from tangentlab.plain import plain


@dataclass(frozen=True)
class Config:
    """All that a run depends on; `config.yaml` is this, and replaying it gives the same numbers."""

    experiment: str
    scale: str
    seeds: tuple[int, ...]
    parameters: dict[str, Any]
    max_steps: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Experiment:
        """The experiment with these parameters."""
        kind = find(self.experiment)
        return kind(**check_values(kind, self.parameters))

    def same_run(self, other: Config) -> bool:
        """Whether both describe the same computation (whenever and by whichever version it was started)."""
        return self._identity() == other._identity()

    def dump(self) -> str:
        """The text of `config.yaml`."""
        content = {key: value for key, value in self.__dict__.items() if value is not None}
        return yaml.safe_dump(plain(content), sort_keys=False, allow_unicode=True)

    def _identity(self) -> tuple[Any, ...]:
        return self.experiment, self.scale, self.seeds, plain(self.parameters), self.max_steps


def read_config(path: Path) -> Config:
    """A config from YAML; unknown keys and wrong types are errors, and nothing in it is executed."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read as a run's config: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is not the config of a run: it holds no keys.")
    known = {"experiment": str, "scale": str, "seeds": list, "parameters": dict, "max_steps": int, "provenance": dict}
    for key, value in content.items():
        if key not in known:
            raise SettingError(f"{path}: unknown key '{key}'{suggestion(str(key), known)}.")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise SettingError(f"{path}: '{key}' must be a {known[key].__name__}, not {value!r}.")
    if lacking := [key for key in ("experiment", "scale", "seeds", "parameters") if key not in content]:
        raise SettingError(f"{path}: the keys {', '.join(lacking)} are missing.")
    if content["scale"] not in SCALES:
        raise SettingError(f"{path}: unknown scale '{content['scale']}'{suggestion(content['scale'], SCALES)}")
    seeds = content["seeds"]
    if not seeds or not all(type(seed) is int for seed in seeds) or len(set(seeds)) != len(seeds):
        raise SettingError(f"{path}: seeds must be a list of different whole numbers, not {seeds!r}.")
    return Config(**{**content, "seeds": tuple(seeds)})


@dataclass(frozen=True)
class RunFolder:
    """The files of one run. See the package's documentation for what each of them holds."""

    path: Path

    config_file = property(lambda self: self.path / "config.yaml")
    metrics_file = property(lambda self: self.path / "metrics.jsonl")
    claims_file = property(lambda self: self.path / "claims.json")
    report_file = property(lambda self: self.path / "report.html")
    figures = property(lambda self: self.path / "figures")
    kept_file = property(lambda self: self.path / "metrics.jsonl.xz")
    published = property(lambda self: self.kept_file.exists() and not self.metrics_file.exists())

    @classmethod
    def create(cls, parent: Path, config: Config) -> RunFolder:
        """A new folder `<experiment>-<scale>-<number>` below `parent` with the config in it."""
        make_folder(parent)
        number = 1
        while True:
            path = parent / f"{config.experiment}-{config.scale}-{number}"
            try:
                with disk_errors(path):
                    path.mkdir()
                break
            except DiskError as error:
                if error.errno != EEXIST:
                    raise
                number += 1
        folder = cls(path)
        write_atomically(folder.config_file, config.dump())
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing folder of a run, given by itself or by a file in it."""
        folder = cls(path if path.is_dir() else path.parent)
        if not folder.config_file.exists():
            raise RunError(f"{path} is not a run's folder: there is no config.yaml in it.")
        return folder

    def config(self) -> Config:
        """The config that the folder was made with."""
        return read_config(self.config_file)

    def seed_folder(self, seed: int) -> Path:
        """Where one seed keeps its checkpoints and its log."""
        return make_folder(self.path / "seeds" / str(seed))

    def array_file(self, seed: int, name: str) -> Path:
        """Where an array that a seed saved is kept."""
        return self.path / "arrays" / str(seed) / f"{name}.npy"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; a second run that wants it gets an error at once."""
        with held(
            self.path / ".lock", 0.0, f"{self.path} is in use by another run; wait for it or choose another --out"
        ):
            yield

    @contextmanager
    def seed_lock(self, seed: int) -> Iterator[None]:
        """Hold one seed of the folder: a process left over from a killed run is waited for, since it ends by itself."""
        message = (
            f"seed {seed} of {self.path} is still held by a process of an earlier run; try again when it has ended"
        )
        with held(self.seed_folder(seed) / ".lock", 30.0, message):
            yield


@contextmanager
def held(file: Path, seconds: float, message: str) -> Iterator[None]:
    """Hold a file lock, waiting at most `seconds` for it; the system frees it when the process dies."""
    lock = FileLock(file)
    with disk_errors(file):
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            raise RunError(message) from None
    try:
        yield
    finally:
        lock.release()


def runs_below(parent: Path) -> list[RunFolder]:
    """Every run folder at or below `parent`, oldest first."""
    if not parent.is_dir():
        return []
    configs = [*parent.glob("config.yaml"), *parent.glob("*/config.yaml"), *parent.glob("*/*/config.yaml")]
    return [RunFolder(path.parent) for path in sorted(configs, key=lambda path: (path.stat().st_mtime, str(path)))]

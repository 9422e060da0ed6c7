"""Which experiments exist: those of `tangentlab.experiments`, and the modules named in `$TANGENTLAB_EXPERIMENTS`.

What the command lists of the package's own experiments stands in `experiments/index.json`, so that a list imports none of
them and a run only its own: `python -m tangentlab.bench.registry` writes it anew after an experiment was added or changed.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, dataclass_transform

from tangentlab.bench.errors import SettingError
from tangentlab.bench.experiment import Chapter, Experiment
from tangentlab.bench.history import refuse_silent_changes
from tangentlab.bench.settings import suggestion
from tangentlab.figures.format import ORIGINS
from tangentlab.files import write_atomically

ENVIRONMENT = "TANGENTLAB_EXPERIMENTS"
PACKAGE = "tangentlab.experiments"
_KNOWN: dict[str, type[Experiment]] = {}
Kind = TypeVar("Kind", bound=Experiment)


@dataclass(frozen=True)
class Entry:
    """What a list shows of an experiment."""

    name: str
    module: str
    title: str
    chapter: str
    place: str
    claims: dict[str, int]
    minutes: dict[str, float]

    @classmethod
    def of(cls, kind: type[Experiment]) -> Entry:
        """The entry of an experiment."""
        origins: Counter[str] = Counter(claim.origin for claim in kind.claims if not claim.retired)
        numbers = {origin: origins[origin] for origin in ORIGINS}, dict(kind.minutes)
        return cls(kind.name, kind.__module__, kind.title, kind.chapter.value, kind.place, *numbers)


@dataclass_transform(frozen_default=True)
def experiment(kind: type[Kind]) -> type[Kind]:
    """Class decorator: makes the class a frozen dataclass of its parameters, checks its description, registers it."""
    made = dataclass(frozen=True)(kind)
    made.validate()
    if made.__module__.startswith(f"{PACKAGE}."):
        refuse_silent_changes(made.name, made.claims)
    other = _KNOWN.get(made.name)
    if other is not None and (other.__module__, other.__qualname__) != (made.__module__, made.__qualname__):
        raise TypeError(f"Two experiments are called '{made.name}': {other.__module__} and {made.__module__}.")
    _KNOWN[made.name] = made
    return made


def entries() -> list[Entry]:
    """Every experiment as a list shows it, by chapter and then by name; nothing of the package's own is imported."""
    _import(_own_modules())
    found = {name: Entry.of(kind) for name, kind in _KNOWN.items()}
    order = [chapter.value for chapter in Chapter]
    return sorted({**_index(), **found}.values(), key=lambda entry: (order.index(entry.chapter), entry.name))


def all_experiments() -> list[type[Experiment]]:
    """Every experiment, by chapter and then by name; imports them all."""
    _import([*_modules_of_the_package(), *_own_modules()])
    order = list(Chapter)
    return sorted(_KNOWN.values(), key=lambda kind: (order.index(kind.chapter), kind.name))


def find(name: str) -> type[Experiment]:
    """The experiment called `name`, or an error that suggests the nearest one; imports that one and the user's own."""
    index = _index()
    _import([*([index[name].module] if name in index else []), *_own_modules()])
    if name not in _KNOWN:
        all_experiments()  # one that was added and is not in the index yet
    if name not in _KNOWN:
        raise SettingError(
            f"There is no experiment '{name}'{suggestion(name, _KNOWN)}\n`tangentlab list` shows them all; "
            f"one of your own is found when its module is named in ${ENVIRONMENT}."
        )
    return _KNOWN[name]


def write_index() -> Path:
    """Write down what lists tell of the package's own experiments."""
    own = [Entry.of(kind) for kind in all_experiments() if kind.__module__.startswith(f"{PACKAGE}.")]
    write_atomically(_index_file(), json.dumps([asdict(entry) for entry in own], indent=1, ensure_ascii=False) + "\n")
    return _index_file()


def _index() -> dict[str, Entry]:
    return {one["name"]: Entry(**one) for one in json.loads(_index_file().read_text(encoding="utf-8"))}


def _index_file() -> Path:
    return _folder() / "index.json"


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _import(modules: Iterator[str] | list[str]) -> None:
    if os.environ.get(ENVIRONMENT) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # one's own experiment is mostly a file in the current folder
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if module.startswith(f"{PACKAGE}.") or error.name is None:
                raise
            raise SettingError(_not_found(module, error.name)) from error


def _not_found(module: str, missing: str) -> str:
    """What is not there: the module of one's own (or a package that it should be in), or something that it imports."""
    named = f"${ENVIRONMENT} names the module '{module}', which"
    if f"{module}.".startswith(f"{missing}."):
        return f"{named} cannot be found"
    return f"{named} imports '{missing}', and there is no such module: install it, or correct the import"


def _modules_of_the_package() -> Iterator[str]:
    for module in pkgutil.walk_packages([str(_folder())], f"{PACKAGE}."):
        if not module.name.rpartition(".")[2].startswith("_"):
            yield module.name


def _own_modules() -> Iterator[str]:
    yield from filter(None, (name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",")))


if __name__ == "__main__":
    from tangentlab.bench import registry  # the module that experiments register with, not this copy of it

    print(registry.write_index())

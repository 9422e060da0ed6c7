"""Which experiments exist: the modules of `tangentlab.experiments`, and those named in ``$TANGENTLAB_EXPERIMENTS``."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

import tangentlab.experiments
from tangentlab.experiments.bench.errors import SettingError
from tangentlab.experiments.bench.experiment import Chapter, Experiment
from tangentlab.experiments.bench.settings import suggestion

ENVIRONMENT = "TANGENTLAB_EXPERIMENTS"
_KNOWN: dict[str, type[Experiment]] = {}
Kind = TypeVar("Kind", bound=Experiment)


@dataclass_transform(frozen_default=True)
def experiment(kind: type[Kind]) -> type[Kind]:
    """Class decorator: makes the class a frozen dataclass of its parameters, checks its description, registers it."""
    made = dataclass(frozen=True)(kind)
    made.validate()
    other = _KNOWN.get(made.name)
    if other is not None and (other.__module__, other.__qualname__) != (made.__module__, made.__qualname__):
        raise TypeError(f"two experiments are called '{made.name}': {other.__module__} and {made.__module__}")
    _KNOWN[made.name] = made
    return made


def load_all() -> None:
    """Import every module that defines experiments."""
    if os.environ.get(ENVIRONMENT) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # one's own experiment is mostly a file in the current folder
    for module in _module_names():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if module.startswith(f"{tangentlab.experiments.__name__}.") or error.name is None:
                raise
            raise SettingError(_not_found(module, error.name)) from error


def all_experiments() -> list[type[Experiment]]:
    """Every experiment, by chapter and then by name."""
    load_all()
    order = list(Chapter)
    return sorted(_KNOWN.values(), key=lambda kind: (order.index(kind.chapter), kind.name))


def find(name: str) -> type[Experiment]:
    """The experiment called ``name``, or an error that suggests the nearest one."""
    load_all()
    if name not in _KNOWN:
        raise SettingError(
            f"there is no experiment '{name}'{suggestion(name, _KNOWN)}\n`tangentlab list` shows them all; "
            f"one of your own is found when its module is named in ${ENVIRONMENT}"
        )
    return _KNOWN[name]


def _not_found(module: str, missing: str) -> str:
    """What is not there: the module of one's own (or a package that it should be in), or something that it imports."""
    named = f"${ENVIRONMENT} names the module '{module}', which"
    if f"{module}.".startswith(f"{missing}."):
        return f"{named} cannot be found"
    return f"{named} imports '{missing}', and there is no such module: install it, or correct the import"


def _module_names() -> Iterator[str]:
    package = tangentlab.experiments
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "bench" and not module.name.startswith("_"):
            yield f"{package.__name__}.{module.name}"
    yield from filter(None, (name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",")))

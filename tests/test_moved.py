"""Modules and names that have moved are found at their old places, with a warning, and are the same objects."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

import tangentlab
from tangentlab import moved

OLD = {
    "tangentlab.report.style": "tangentlab.figures.style",
    "tangentlab.report.page": "tangentlab.bench.page",
    "tangentlab.report.progress": "tangentlab.bench.display",
    "tangentlab.report.console": "tangentlab.cli.console",
    "tangentlab.experiments.bench.claims": "tangentlab.bench.claims",
    "tangentlab.alignment.recorder.ledger": "tangentlab.recorder.ledger",
    "tangentlab.recorder.schedule": "tangentlab.schedule",
    "tangentlab.alignment.similarity": "tangentlab.kernels.similarity",
    "tangentlab.bench.batches": "tangentlab.bench.minibatches",
    "tangentlab.linearized.modes": "tangentlab.kernels.mode_dynamics",
    "tangentlab.alignment.recorder": "tangentlab.recorder",
    "tangentlab.report": "tangentlab.bench",
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_module_is_the_new_one_and_leaves_it_as_it_is(old: str) -> None:
    for name in [name for name in sys.modules if moved.new_home(name)]:
        del sys.modules[name]
    new = import_module(OLD[old])
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} has moved to {OLD[old]}")):
        assert import_module(old) is new
    assert new.__name__ == OLD[old] and new.__spec__ is not None and new.__spec__.name == OLD[old]


def test_old_names_are_found_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="alignment.TangentRecorder has moved to tangentlab.recorder"):
        from tangentlab.alignment import TangentRecorder
    assert TangentRecorder is tangentlab.TangentRecorder


def test_every_old_name_is_an_object_of_today() -> None:
    for package, names in moved._NAMES.items():
        for name, home in names.items():
            with pytest.warns(DeprecationWarning, match=re.escape(f"{package}.{name} has moved to tangentlab.{home}")):
                found = getattr(import_module(f"tangentlab.{package}"), name)
            assert found.__name__ == home.rpartition(".")[2]


def test_every_new_home_exists() -> None:
    for old in moved._MODULES:
        assert import_module(moved.new_home(f"tangentlab.{old}") or "")


@pytest.mark.parametrize("name", ["tangentlab.report.nothing", "tangentlab.experiments.bench.nothing", "tangentlab.no"])
def test_what_never_was_is_not_found(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
        import_module(name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        tangentlab.alignment.nothing  # noqa: B018


def test_old_commands_run() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tangentlab.report.publish", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "usage" in (done.stdout + done.stderr).lower()

"""One layout for all experiments: a folder per chapter, a module per family of figures, and lists that cannot go stale."""

import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

import tangentlab.experiments
from tangentlab.bench import registry
from tangentlab.experiments import Chapter, Experiment, all_experiments
from tests.test_package import loaded_by

FOLDER = Path(inspect.getfile(tangentlab.experiments)).parent
MODULES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.py") if path.name != "__init__.py")
PARTS = ("claims", "figures", "measures")
LIST = """
import sys
sys.argv = ["tangentlab", "list"]
try:
    import tangentlab.cli.__main__
except SystemExit:
    pass"""


def built_in() -> list[type[Experiment]]:
    return [kind for kind in all_experiments() if kind.__module__.startswith("tangentlab.")]


@pytest.mark.parametrize("kind", built_in(), ids=lambda kind: kind.name)
def test_an_experiment_stands_in_the_folder_of_its_chapter(kind: type[Experiment]):
    package, _, _ = kind.__module__.rpartition(".")
    assert package == f"tangentlab.experiments.{kind.chapter.name.lower()}"
    assert getattr(import_module(package), kind.__name__) is kind


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_public_modules_hold_experiments_and_private_ones_their_parts(path: Path):
    name = ".".join(("tangentlab.experiments", *path.with_suffix("").parts))
    holds = any(kind.__module__ == name for kind in built_in())
    assert holds != path.name.startswith("_")
    owner, _, part = path.stem.removeprefix("_").rpartition("_")
    if owner and part in PARTS and not holds:
        here = {other.stem for other in MODULES if other.parent == path.parent}
        assert {owner, f"_{owner}"} & here, f"{path} is a part of no module"


def test_folders_are_chapters():
    folders = {path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {chapter.name.lower() for chapter in Chapter}


def test_the_index_tells_what_the_experiments_say():
    written = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    told = [registry.Entry.of(kind) for kind in built_in()]
    assert [registry.Entry(**one) for one in written] == told, "run python -m tangentlab.bench.registry"


def test_a_list_imports_no_experiment_and_no_torch_and_a_search_imports_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(registry.ENVIRONMENT)
    listed = loaded_by(LIST)
    assert "kl-expansion" in listed and not {"torch", "numpy", "matplotlib"} & listed
    found = loaded_by("from tangentlab.bench.registry import find; find('kl-expansion')")
    own = {name for name in found if name.startswith("tangentlab.experiments.") and "._" not in name}
    chapter = "tangentlab.experiments.geometry"
    assert own == {chapter, f"{chapter}.kl_expansion", f"{chapter}.parameter_distance"}

"""DEVELOPERS.md names files, tests and targets that exist, and every known mistake."""

import re
import shutil
from pathlib import Path

import pytest

from scripts import house
from tests.docs.pages import ROOT, without_fences

SOURCE = ROOT / "src" / "tangentlab"
TEXT = without_fences((ROOT / "DEVELOPERS.md").read_text(encoding="utf-8"))
CODE = re.findall(r"`([^`]+)`", TEXT)
TESTS = {
    name
    for file in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
}


def names_of(pattern: str) -> list[str]:
    return sorted({name for name in CODE if re.fullmatch(pattern, name)})


@pytest.mark.parametrize("path", names_of(r"[\w/]+(\.py|\.md|/)"))
def test_a_file_or_folder_that_is_named_is_there(path: str) -> None:
    assert any((folder / path).exists() for folder in (ROOT, ROOT / "src" / "tangentlab"))


@pytest.mark.parametrize("name", names_of(r"test_\w+"))
def test_a_test_that_is_named_exists(name: str) -> None:
    assert name in TESTS


def test_every_known_mistake_is_listed() -> None:
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests" / "test_known_mistakes.py").read_text(), re.MULTILINE)
    assert [name for name in CODE if name in tests] == tests
    assert "first fifteen" in TEXT and len(tests) == 15


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name.removeprefix("make ") for name in names_of(r"make [\w-]+")} <= set(targets)


def test_nothing_imports_what_is_built_on_it() -> None:
    assert house.faults(SOURCE) == []


PLANTED = {
    "at the top": "from tangentlab.engine.rows import Rows\n",
    "inside a function": "def f():\n    from tangentlab.engine import rows\n",
    "for type checkers": "if TYPE_CHECKING:\n    from tangentlab.engine.rows import Rows\n",
    "as a module": "import tangentlab.engine.rows\n",
    "through the root": "from tangentlab import check\n",
    "as an attribute of the root": "import tangentlab\n\ndef f():\n    return tangentlab.check\n",
    "with another name": "def f():\n    import tangentlab.engine as e\n",
}


@pytest.mark.parametrize("how", PLANTED)
def test_an_import_of_what_is_built_on_the_importer_is_seen(how: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "tangentlab", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "tangentlab" / "layers" / "linear.py"
    file.write_text(file.read_text() + PLANTED[how])
    (fault,) = house.faults(tmp_path / "tangentlab")
    assert re.fullmatch(r"layers/linear.py:\d+ imports engine", fault)


def test_a_room_without_a_place_in_the_order_and_neighbours_that_import_each_other_are_seen(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "tangentlab", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tangentlab" / "attic.py").write_text("")
    (tmp_path / "tangentlab" / "alignment" / "new.py").write_text("from tangentlab.linearized import linearize\n")
    assert house.faults(tmp_path / "tangentlab") == [
        "attic has no place in the order",
        "alignment/new.py:1 imports linearized",
    ]


def test_the_map_is_the_one_of_the_code() -> None:
    assert house.page_with_map() == house.PAGE.read_text(encoding="utf-8"), "run python scripts/house.py"

"""DEVELOPERS.md names files, tests and targets that exist, and every known mistake."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, without_fences

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
    # layers know nothing of the engine, the engine nothing of the objects, and so on
    order = ("layers", "engine", "objects", "metrics", "optim", "experiments", "report")
    package = ROOT / "src" / "tangentlab"
    for position, step in enumerate(order[:4]):
        files = (
            [package / f"{step}.py"] if (package / f"{step}.py").exists() else sorted((package / step).rglob("*.py"))
        )
        for file in files:
            imported = set(re.findall(r"^(?:from|import) tangentlab\.(\w+)", file.read_text(encoding="utf-8"), re.M))
            assert not imported & set(order[position + 1 :]), f"{Path(file).relative_to(package)} imports {imported}"

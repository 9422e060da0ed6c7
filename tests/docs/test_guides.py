"""The guides of DEVELOPERS.md, carried out: a layer, a representation and an experiment are added to a copy of the project."""

import re
from pathlib import Path

import pytest

from tangentlab.layers.registry import _RULES
from tests.docs.guides import Step, copy_of_the_project, guides, run
from tests.docs.pages import ROOT

GUIDES = {title: steps for title, steps in guides().items() if steps}


def test_there_is_a_guide_for_each_thing_that_is_added_often() -> None:
    assert set(GUIDES) == {"A layer", "A representation", "An experiment"}
    for steps in GUIDES.values():
        assert steps[-1].language == "console" and "pytest" in steps[-1].text


@pytest.mark.parametrize("title", GUIDES)
def test_every_edit_of_a_guide_finds_its_place(title: str, tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path)
    for step in GUIDES[title]:
        if step.language != "console":
            step.carry_out(project)


SLOW = pytest.mark.slow
LONG = ("A representation", "An experiment")


@pytest.mark.parametrize("title", [pytest.param(title, marks=SLOW if title in LONG else ()) for title in GUIDES])
def test_whoever_follows_a_guide_has_green_tests(title: str, tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path)
    for step in GUIDES[title]:
        step.carry_out(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "left_out"), [(title, step) for title in GUIDES for step in GUIDES[title][:-1]], ids=str
)
def test_without_any_one_of_its_steps_a_guide_ends_in_an_error(title: str, left_out: Step, tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path)
    with pytest.raises(AssertionError):
        for step in GUIDES[title]:
            if step is not left_out:
                step.carry_out(project)


REGISTERED = {kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}" for kind in _RULES}
OWN = sorted({name.rpartition(".")[2] for name in REGISTERED if not name.startswith("tests.")})


@pytest.mark.parametrize("kind", OWN)
def test_every_layer_with_a_closed_form_is_in_the_documentation(kind: str) -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"`{kind}`" in text.partition("\nClosed forms:")[2].partition("\n\n")[0]


def test_the_layer_and_the_representation_of_the_page_on_testing_pass_their_contracts(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (tmp_path / "test_page.py").write_text(code)
    printed = run("python -m pytest -q -p no:cacheprovider test_page.py", tmp_path)
    assert re.search(r"^\d{3,} passed", printed, re.MULTILINE), printed

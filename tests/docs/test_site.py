"""The site as a whole: every page is in the navigation, every link leads somewhere, every public name is in the reference."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import tangentlab
from tangentlab import alignment, experiments, implicit_bias, information, limits, linalg, linearized, optim, spectral
from tangentlab.information import tasks
from tests.docs.pages import ROOT, without_fences

DOCS = ROOT / "docs"
TEXTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "DEVELOPERS.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]


def navigation() -> list[str]:
    def leaves(node: Any) -> list[str]:
        if isinstance(node, str):
            return [node]
        return [leaf for part in (node.values() if isinstance(node, dict) else node) for leaf in leaves(part)]

    return leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_anchors_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", without_fences(page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_there(page: Path) -> None:
    targets = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", without_fences(page.read_text(encoding="utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", without_fences(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def documented() -> set[str]:
    """Modules and objects that the reference names, and the members that it lists."""
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md")]
    named = {name for text in pages for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    return named | {name for text in pages for name in re.findall(r"^ {8}- (\w+)$", text, re.MULTILINE)}


SECTIONS = {
    *("args", "arguments", "attributes", "classes", "examples", "exceptions", "functions", "methods", "modules"),
    *("parameters", "params", "raises", "receives", "returns", "warnings", "warns", "yields"),
}
"""Words that begin a section of a docstring for the site's generator; a warning there stops the build."""


def test_no_argument_is_described_in_a_line_that_the_generator_takes_for_a_section() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for line in (ast.get_docstring(node) or "").splitlines():
                word, colon, rest = line.partition(":")
                assert not (colon and rest.strip() and word.lower() in SECTIONS), f"{path.relative_to(ROOT)}: {line}"


def test_what_builds_the_site_is_pinned_and_the_workflow_builds_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    for wanted in extras["docs"]:
        assert re.match(r"[\w-]+", wanted)[0] in pinned  # type: ignore[index]
    assert {"griffelib", "mkdocstrings-python"} <= pinned
    (workflow,) = (ROOT / ".github" / "workflows").glob("*.yml")
    steps = [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]
    assert "make docs" in [step.get("run") for step in steps]


@pytest.mark.parametrize(
    "package",
    [
        tangentlab,
        linalg,
        optim,
        alignment,
        linearized,
        implicit_bias,
        information,
        tasks,
        limits,
        spectral,
        experiments,
    ],
    ids=lambda package: package.__name__,
)
def test_every_public_name_is_in_the_reference(package: Any) -> None:
    known = documented()
    for name in package.__all__:
        value = getattr(package, name)
        home = getattr(value, "__module__", None)
        if not isinstance(home, str) or not home.startswith("tangentlab"):
            continue  # a version, a type alias, a constant
        assert {name, home, f"{home}.{getattr(value, '__name__', name)}"} & known, (
            f"{package.__name__}.{name} is missing"
        )


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_formula_becomes_mathml(page: Path) -> None:
    pytest.importorskip("latex2mathml", reason="formulas are translated where the site is built")
    from scripts.mathml import mathml

    text = re.sub(r"`[^`\n]*`", "", without_fences(page.read_text(encoding="utf-8")))
    blocks, inline = r"\$\$(.+?)\$\$", r"(?<![\\$])\$([^$]+?)\$"
    for tex in re.findall(blocks, text, re.DOTALL) + re.findall(inline, re.sub(blocks, "", text, flags=re.DOTALL)):
        assert "\\" not in mathml(tex), f"a command is not known: {tex}"

"""Every Python snippet, stated result and table of calls of the documentation, run as a reader would run it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tangentlab import memory_limit
from tangentlab.bench import registry
from tests.docs.pages import PAGES, ROOT, assert_shown, blocks_of, run

WITH_CODE = [page for page in PAGES if blocks_of(page.read_text(encoding="utf-8"))]


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Pages may seed, write files, set a memory budget and register experiments; nothing of it outlives them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    with torch.random.fork_rng(devices=[]), memory_limit(4 << 30):
        yield


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_in_order_and_give_what_the_page_states(page: Path) -> None:
    assert run(page) > 0


def test_the_readme_and_every_guide_have_snippets() -> None:
    names = {page.name for page in WITH_CODE}
    assert names >= {"README.md", "quickstart.md", "choosing.md", "memory.md", "models.md", "likelihoods.md"}
    assert names >= {"kernels.md", "natural-gradient.md", "experiments.md", "coming-from.md"}


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("tensor(7.33)", "tensor(7.3342)"),
        ("a  b\n1,210", "a b 1,210"),
        ("about ... s of 9.4 GB", "about 0.2 s, more or less, s of 9.38 GB"),
        ("...", "anything at all"),
        ("ends ...", "ends somehow"),
    ],
)
def test_equal_to_the_digits_shown(expected: str, found: str) -> None:
    assert_shown(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [("tensor(7.33)", "tensor(7.36)"), ("10 outputs", "11 outputs"), ("a b", "a b c"), ("a ... c", "a b"), ("x", "")],
)
def test_different_from_what_is_shown(expected: str, found: str) -> None:
    with pytest.raises(AssertionError, match="the page shows"):
        assert_shown(expected, found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nprint(1)\n```\n", "prints something that the page does not show"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page shows"),
        ("```python\n1 + 1  # -> 3\n```\n", "the page shows"),
        ("```python\nx = 1\n```\n\n| theirs | tangentlab |\n|---|---|\n| `a` | `y` |\n", "name 'y' is not defined"),
    ],
)
def test_a_page_that_is_wrong_fails(text: str, problem: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((AssertionError, NameError), match=problem):
        run(page)


def test_blocks_output_and_cells_are_found_in_order() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n| x | tangentlab |\n|---|---|\n| `a` | `1 \\| 2`, `3` |\n"
    found = [(block.code, block.prints, block.cell) for block in blocks_of(text)]
    assert found == [("print(1)\n", "1\n", False), ("1 | 2", None, True), ("3", None, True)]

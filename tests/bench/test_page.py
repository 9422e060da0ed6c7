"""The page of a run and the gallery: complete, self-contained, and escaped."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tangentlab.bench.folder import RunFolder
from tangentlab.bench.gallery import asked, newest, write_gallery
from tangentlab.bench.page import commands, render_report

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checker(HTMLParser):
    """Collects tags, text and addresses, and finds tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text())
    assert checker.open == []
    return checker


def test_the_page_shows_question_figures_claims_configuration_and_how_to_repeat(runs: dict[str, RunFolder]):
    page = parsed(runs["parameter-distance"].report_file)
    for part in ("Do two models", "Figure 1.", "Figure 2.", "A and B are nearly the same function", "config.yaml"):
        assert part in page.text
    assert "tangentlab run parameter-distance --scale smoke" in page.text and "tangentlab replay" in page.text
    assert page.tags.count("figure") == 2 and page.text.count("✓ held") == 6


def test_a_page_needs_nothing_from_outside(runs: dict[str, RunFolder], gallery: Path):
    for file in (*(folder.report_file for folder in runs.values()), gallery):
        page = parsed(file)
        allowed = ("#", "data:", "toy-", "parameter-distance")
        assert all(address.startswith(allowed) for address in page.addresses), page.addresses
        assert "script" not in page.tags or file == gallery
        content = re.sub(r'xmlns(:\w+)?="[^"]*"', "", file.read_text())
        assert not re.search(r"https?://|@import|url\((?!#)", content)


def test_text_of_an_experiment_is_text_and_never_markup(runs: dict[str, RunFolder], gallery: Path):
    for file in (runs["toy-training"].report_file, gallery):
        page = parsed(file)
        assert "A toy <b>that trains</b>" in page.text
        assert "<script>alert('no')</script>" in page.text
        assert "<script>alert" not in file.read_text()
    assert "nowhere & everywhere" in parsed(runs["toy-training"].report_file).text


def test_a_mixed_claim_stays_visible_with_every_seed(runs: dict[str, RunFolder]):
    text = parsed(runs["toy-claims"].report_file).text
    assert "≈ mixed" in text and "seeds: 2, 0, 2" in text and "needs the scale paper" in text


def test_changed_parameters_are_marked_and_are_in_the_command(runs: dict[str, RunFolder]):
    text = parsed(runs["toy-claims"].report_file).text
    assert "changed; the scale has [2.0, 2.0, 2.0]" in text and "--set 'values=[2.0, 0.0, 2.0]'" in text


def test_the_page_is_made_from_the_folder_alone_and_repeats(runs: dict[str, RunFolder], tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["parameter-distance"].path, copy)
    assert render_report(copy) == runs["parameter-distance"].report_file.read_text()
    (copy / "claims.json").unlink()
    with pytest.raises(FileNotFoundError, match="claims.json"):
        render_report(copy)


def test_a_page_says_whether_its_metrics_were_kept(runs: dict[str, RunFolder], tmp_path: Path):
    folder = tmp_path / "old"
    shutil.copytree(runs["toy-claims"].path, folder)
    assert "metrics not kept" not in render_report(folder) and "tangentlab judge" in render_report(folder)
    content = json.loads((folder / "claims.json").read_text())
    (folder / "claims.json").write_text(json.dumps({**content, "metrics": "not kept"}))
    assert "metrics not kept" in render_report(folder) and "tangentlab judge" not in render_report(folder)


def test_commands_name_the_seed_and_the_commit(runs: dict[str, RunFolder]):
    summary = json.loads(runs["toy-claims"].claims_file.read_text())
    words = dict(commands({**summary, "seeds": [5, 6], "max_steps": 2, "provenance": {"commit": "abc+changes"}}))
    assert words["the same version"] == "git checkout abc"
    assert "--seed 5 --seeds 2 --max-steps 2" in words["run it again"]
    assert "the same version" not in dict(commands({**summary, "provenance": {"commit": "unknown"}}))


def test_the_gallery_shows_every_experiment_once_with_its_verdicts_and_a_link(gallery: Path):
    page = parsed(gallery)
    assert page.tags.count("article") == 3
    for part in ("4 held", "3 held", "1 mixed", "1 not tested", "2 Geometry of function space (2)", "10 Limits"):
        assert part in page.text
    links = [address for address in page.addresses if address.endswith(".html")]
    assert len(links) == 3 and all((gallery.parent / address).exists() for address in links)


def test_runs_without_a_page_get_one_beside_the_gallery_and_are_left_alone(runs: dict[str, RunFolder], tmp_path: Path):
    published, target = tmp_path / "results" / "a-result", tmp_path / "elsewhere" / "index.html"
    shutil.copytree(runs["toy-training"].path, published)
    for name in ("report.html", "metrics.jsonl", "config.yaml"):
        (published / name).unlink()
    before = sorted(path.name for path in published.iterdir())
    target.parent.mkdir()
    assert write_gallery([published], target) == 1
    assert [address for address in parsed(target).addresses if address.endswith(".html")] == ["toy-training.html"]
    page = parsed(target.parent / "toy-training.html")
    assert "Figure 1." in page.text and "A toy <b>that trains</b>" in page.text
    assert sorted(path.name for path in published.iterdir()) == before


def test_a_name_from_a_file_cannot_lead_out_of_the_gallerys_folder(runs: dict[str, RunFolder], tmp_path: Path):
    published = tmp_path / "in" / "result"
    shutil.copytree(runs["toy-claims"].path, published)
    (published / "report.html").unlink()
    claims = published / "claims.json"
    claims.write_text(json.dumps({**json.loads(claims.read_text()), "experiment": "../../escaped"}))
    write_gallery([published], tmp_path / "in" / "gallery.html")
    assert (tmp_path / "in" / "escaped.html").exists() and not (tmp_path / "escaped.html").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Networks are large. Which one is\nbest? It is measured.", "Which one is best?"),
        ("They differ. So it is measured.", "They differ."),
        ("Why?", "Why?"),
    ],
)
def test_a_card_shows_the_sentence_that_asks(text: str, sentence: str):
    assert asked(text) == sentence


def test_the_gallery_prefers_the_newest_complete_run(runs: dict[str, RunFolder], tmp_path: Path):
    def copy(name: str, **changes: object) -> Path:
        shutil.copytree(runs["toy-claims"].path, tmp_path / name)
        file = tmp_path / name / "claims.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        return tmp_path / name

    old, new, partial = copy("old"), copy("new"), copy("partial", status="partial")
    assert [folder for folder, _ in newest([old, new, partial])] == [new]
    assert [folder for folder, _ in newest([partial])] == [partial]
    (new / "claims.json").write_text("{ half of it")
    assert [folder for folder, _ in newest([old, new])] == [old]


def test_an_empty_gallery_says_how_to_fill_it(tmp_path: Path):
    assert write_gallery([], tmp_path / "gallery.html") == 0
    assert "tangentlab run --all" in parsed(tmp_path / "gallery.html").text

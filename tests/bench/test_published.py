"""What is committed: desk results fit to be shown, and the page of claims made from them."""

import json
import shutil
from pathlib import Path

import pytest

from tangentlab.bench.claims_page import cell, render_claims_page
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.publish import publish, unfit
from tangentlab.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fit(runs: dict[str, RunFolder], tmp_path: Path) -> Path:
    """A run that looks like a clean desk run."""
    folder = tmp_path / "run"
    shutil.copytree(runs["parameter-distance"].path, folder)
    return change(folder, scale="desk", changed={}, provenance={"commit": "0123456789ab"})


def change(folder: Path, **changes: object) -> Path:
    file = folder / "claims.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def test_the_page_of_claims_is_up_to_date():
    page = ROOT / "docs" / "claims.md"
    assert page.read_text() == render_claims_page(ROOT / "results" / "desk"), (
        "run `python -m tangentlab.bench.publish` in the project's folder"
    )


def test_every_committed_result_is_fit_to_be_shown():
    summaries = sorted((ROOT / "results" / "desk").glob("*/claims.json"))
    assert summaries
    for file in summaries:
        assert unfit(json.loads(file.read_text())) == [], file
        assert (file.parent / "config.yaml").exists() and list((file.parent / "figures").glob("*.svg"))


def test_publishing_copies_claims_config_and_svg_figures_only(fit: Path, tmp_path: Path):
    target = publish(fit, tmp_path / "results")
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {
        "claims.json",
        "config.yaml",
        "figures/index.json",
        "figures/figure-2.1.svg",
        "figures/unit-distance.svg",
    }
    publish(fit, tmp_path / "results")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"status": "partial"}, "did not come to its end"),
        ({"scale": "smoke"}, "scale is smoke"),
        ({"max_steps": 2}, "--max-steps"),
        ({"changed": {"sweep": 3}}, r"changed \(sweep\)"),
        ({"stand_ins": ["mnist"]}, "noise stood in"),
        ({"provenance": {"commit": "0123+changes"}}, "changed after the commit"),
        ({"provenance": {"commit": "unknown"}}, "there is none"),
    ],
)
def test_a_run_that_is_no_result_cannot_be_published(fit: Path, tmp_path: Path, changes: dict, complaint: str):
    with pytest.raises(InputError, match=complaint):
        publish(change(fit, **changes), tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_the_page_of_claims_shows_every_claim_also_those_that_do_not_hold(fit: Path, tmp_path: Path):
    claims = json.loads((fit / "claims.json").read_text())["claims"]
    claims[0] |= {"status": "not held", "sentence": "A | pipe and <b>markup</b>"}
    publish(change(fit, claims=claims), tmp_path / "results")
    page = render_claims_page(tmp_path / "results")
    assert "✕ not held" in page and all(f"`{claim['id']}`" in page for claim in claims)
    assert r"A \| pipe and \<b\>markup\</b\>" in page
    rows = [line for line in page.splitlines() if line.startswith(("| ✓", "| ✕"))]
    assert len(rows) == len(claims) and {line.replace(r"\|", "").count("|") for line in rows} == {6}


def test_text_cannot_break_out_of_a_table_cell():
    assert cell("a | b\nc `d` *e*") == r"a \| b c \`d\` \*e\*"

"""What is committed: desk results fit to be shown, and the page of claims made from them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tangentlab.bench.claims_page import cell, render_claims_page
from tangentlab.bench.kept import ARRAYS, LIMIT, ROWS
from tangentlab.bench.publish import publish, unfit
from tangentlab.bench.runner import execute, make_config
from tangentlab.errors import InputError
from tangentlab.experiments import find

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def desk_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk run that takes no time."""
    config = make_config(find("parameter-distance").at("desk"), "desk")
    clean = replace(config, provenance={**config.provenance, "commit": "0123456789ab"})
    return execute(clean, tmp_path_factory.mktemp("runs"), inline=True).folder.path


@pytest.fixture
def fit(desk_run: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    folder = tmp_path / "run"
    shutil.copytree(desk_run, folder)
    return folder


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
        kept = [file.parent / name for name in (ROWS, ARRAYS)]
        assert sum(one.stat().st_size for one in kept if one.exists()) <= LIMIT, file
        assert kept[0].exists() == (json.loads(file.read_text()).get("metrics") == "kept"), file


def test_publishing_copies_claims_config_metrics_and_svg_figures_only(fit: Path, tmp_path: Path):
    target = publish(fit, tmp_path / "results")
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {
        "claims.json",
        "config.yaml",
        "metrics.jsonl.xz",
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
    target = publish(fit, tmp_path / "results")
    claims = json.loads((target / "claims.json").read_text())["claims"]
    claims = [{**claim, "origin": "paper", "quote": "words"} for claim in claims]
    claims[0] |= {"status": "not held", "sentence": "A | pipe and <b>markup</b>", "origin": "ours", "quote": ""}
    claims[0]["history"] = [{"date": "2026-01-31", "was": "> 7", "why": "It was | a guess"}]
    change(target, claims=claims)
    page = render_claims_page(tmp_path / "results")
    assert "✕ not held" in page and all(f"`{claim['id']}`" in page for claim in claims)
    assert r"A \| pipe and \<b\>markup\</b\>" in page and r"it was \> 7. It was \| a guess" in page
    rows = [line for line in page.splitlines() if line.startswith(("| ✓", "| ✕"))]
    assert len(rows) == len(claims) and {line.replace(r"\|", "").count("|") for line in rows} == {6}
    assert rows[-1].startswith("| ✕ not held | A"), "claims of ours stand after those of the paper"


def test_text_cannot_break_out_of_a_table_cell():
    assert cell("a | b\nc `d` *e*") == r"a \| b c \`d\` \*e\*"

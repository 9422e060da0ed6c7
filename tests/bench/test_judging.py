"""Judging again: from the metrics that a result keeps, or from the numbers in its claims, and what may not change."""

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tangentlab.bench.claims import Change, Claim, Precondition
from tangentlab.bench.errors import RunError, SettingError
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.history import refuse_silent_changes, unexplained
from tangentlab.bench.judging import judge_again
from tangentlab.bench.kept import ROWS, Kept, keep, kept_array
from tangentlab.bench.results import Results
from tangentlab.bench.row_files import read_rows
from tangentlab.bench.summary import read_summary
from tangentlab.bench.tables import inequality, read_claims
from tangentlab.experiments import Status, find


def as_result(run: RunFolder, target: Path) -> RunFolder:
    """What is published of a run: no metrics.jsonl and no arrays, but what is kept of them."""
    shutil.copytree(run.path, target)
    keep(run, target)
    (target / "metrics.jsonl").unlink()
    shutil.rmtree(target / "arrays", ignore_errors=True)
    return RunFolder(target)


@pytest.fixture
def toy(runs: dict[str, RunFolder], tmp_path: Path) -> RunFolder:
    return as_result(runs["toy-training"], tmp_path / "result")


def test_kept_metrics_are_the_rows_and_arrays_up_to_rounding_and_claims_are_exact(
    runs: dict[str, RunFolder], toy: RunFolder
):
    whole, kept = read_rows(runs["toy-training"].metrics_file), Kept.of(toy.path)
    assert kept is not None and len(kept.rows) == len(whole)
    for before, after in zip(whole, kept.rows, strict=True):
        assert {**after, "row": before["row"]}.keys() == before.keys()
        if before["table"] == "claim":
            assert after["value"] == before["value"]
        if before["table"] == "loss":
            assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)
    both = [Results(folder).arrays("weights") for folder in (runs["toy-training"], toy)]
    assert np.allclose(*both, rtol=1e-6) and Results(toy).has_arrays("weights")


def test_a_result_is_judged_and_drawn_again_from_what_it_keeps_and_nothing_else_is_left_there(toy: RunFolder):
    (toy.figures / "loss.svg").unlink()
    (toy.figures / "loss.png").unlink()
    toy.report_file.unlink()
    before = read_summary(toy.path)
    judged = judge_again(toy)
    assert judged.kept and judged.changes == [] and read_summary(toy.path) == before
    assert (toy.figures / "loss.svg").exists() and not (toy.figures / "loss.png").exists()
    assert not toy.report_file.exists() and not (toy.path / "metrics.jsonl").exists()


def test_judging_again_says_what_has_changed(toy: RunFolder, monkeypatch: pytest.MonkeyPatch):
    kind = find("toy-training")
    was = kind.claims[0]
    now = replace(was, threshold=2.0)
    monkeypatch.setattr(kind, "claims", (now, Claim("toy-new", "s", "m", ">", 0.0, "p", ("smoke",))))
    changes = "\n".join(judge_again(toy).changes)
    assert "toy-learns: not held before, held now" in changes
    assert "toy-learns: its rule was <= 0.9 in every seed" in changes and "and is <= 2 in every seed" in changes
    assert "toy-new is new: missing" in changes
    monkeypatch.setattr(kind, "claims", (replace(was, retired="it was silly"),))
    assert "toy-learns is given up: it was silly" in judge_again(toy).changes[0]
    assert (read_summary(toy.path) or {})["retired"][0]["id"] == "toy-learns"


def test_numbers_that_follow_from_the_log_count_more_than_those_of_the_run(
    toy: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        if seed == 1:
            return {"toy-learns": "it was asleep"}
        return {"toy-learns": float(results.table("loss", seed=seed)["loss"].min()) + 100}

    monkeypatch.setattr(find("toy-training"), "measure", measure)
    (verdict,) = judge_again(toy).verdicts
    assert verdict.status == Status.NOT_HELD and set(verdict.values) == {0, 2} and min(verdict.values.values()) > 100
    assert verdict.left_out == {1: "it was asleep"}


def test_without_metrics_the_numbers_of_the_claims_are_judged_and_new_quantities_cannot_be(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = as_result(runs["toy-claims"], tmp_path / "result")
    (folder.path / ROWS).unlink()
    kind = find("toy-claims")
    first, second, third = kind.claims
    svg = (folder.figures / "values.svg").read_bytes()
    condition = Precondition("toy-b", "other value", "<", 1.0)
    monkeypatch.setattr(
        kind,
        "claims",
        (
            replace(first, threshold=0.0, requires=(condition,)),
            replace(second, measured="another quantity", retired="given up"),
            replace(third, measured="another quantity", scales=("smoke",)),
        ),
    )
    judged = judge_again(folder)
    assert not judged.kept and [verdict.status for verdict in judged.verdicts] == [Status.HELD, Status.NOT_TESTED]
    assert judged.verdicts[1].reason.startswith("metrics not kept")
    assert (folder.figures / "values.svg").read_bytes() == svg
    summary = read_summary(folder.path) or {}
    assert summary["metrics"] == "not kept" and summary["conditions"] == {"toy-b": {"0": 0.0, "1": 0.0, "2": 0.0}}
    monkeypatch.setattr(kind, "claims", (replace(first, requires=(replace(condition, threshold=-1.0),)),))
    (verdict,) = judge_again(folder).verdicts
    assert verdict.status == Status.NOT_TESTED and "other value: 0, needed < −1" in verdict.reason


def test_reasons_of_single_seeds_survive_in_a_result_without_metrics(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = as_result(runs["toy-claims"], tmp_path / "result")
    (folder.path / ROWS).unlink()
    content = json.loads(folder.claims_file.read_text())
    content["claims"][0] |= {"status": "not tested", "reason": "flat", "values": {"0": 2.0, "2": 3.0}}
    folder.claims_file.write_text(json.dumps(content))
    for _ in range(2):
        verdict = judge_again(folder).verdicts[0]
        assert verdict.status == Status.HELD and verdict.left_out == {1: "flat"}


def test_what_would_be_too_large_is_refused_with_the_largest_parts(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tangentlab.bench.kept.LIMIT", 500)
    with pytest.raises(RunError, match=r"Name tables and arrays .* in `dropped`.*table 'loss'"):
        keep(runs["toy-training"], tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("tangentlab.bench.kept.LIMIT", 3000)
    keep(runs["toy-training"], tmp_path, ("los?", "passed", "weights"))
    kept = Kept.of(tmp_path)
    assert kept is not None and not kept.arrays and {row["table"] for row in kept.rows} == {"between", "claim", "end"}
    keep(runs["toy-training"], tmp_path, ("loss", "others/weights"))
    kept = Kept.of(tmp_path)
    assert kept is not None and list(kept.arrays) == ["0/weights"]


def test_a_run_is_judged_by_the_very_numbers_that_will_be_kept_of_it(
    runs: dict[str, RunFolder], toy: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    run, kind = runs["toy-training"], find("toy-training")
    exact = {0: 0.0, 1: 0.0, 2: 0.0}
    for row in read_rows(run.metrics_file):
        exact[row["seed"]] += row["loss"] if row["table"] == "loss" else 0.0

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        weights = results.array("weights", seed).astype(np.float64).sum()
        return {"toy-learns": float(sum(results.table("loss", seed=seed)["loss"])), "toy-array": float(weights)}

    monkeypatch.setattr(kind, "measure", measure)
    names = "toy-learns", "toy-array"
    tight = tuple(Claim(name, "s", "m", ">", 0.0, "p", ("smoke",)) for name in names)
    monkeypatch.setattr(kind, "claims", tight)
    fresh, kept = Results(run), Results(toy)
    values = [verdict.values for verdict in fresh.verdicts()]
    assert values == [verdict.values for verdict in kept.verdicts()]
    assert values[0] != exact and values[0] == pytest.approx(exact, rel=1e-5)
    for seed in exact:  # a threshold between what was logged and what is kept is the case that rounding could turn
        between = (exact[seed] + values[0][seed]) / 2
        monkeypatch.setattr(kind, "claims", (replace(tight[0], threshold=between), tight[1]))
        both = [[verdict.status for verdict in Results(folder).verdicts()] for folder in (run, toy)]
        assert both[0] == both[1]
    assert repr(fresh.table("loss").rows) == repr(kept.table("loss").rows)


def test_what_is_not_kept_is_not_there_in_the_run_either(runs: dict[str, RunFolder], monkeypatch: pytest.MonkeyPatch):
    run, kind = runs["toy-training"], find("toy-training")
    assert len(Results(run).table("loss")) and Results(run).has_arrays("weights")
    monkeypatch.setattr(kind, "dropped", ("loss", "others/weights"))
    results = Results(run)
    assert not len(results.table("loss")) and not results.has_arrays("weights") and len(results.array("weights", 0))
    with pytest.raises(RunError, match="The array 'weights' of seed 1 is named in `dropped`"):
        results.array("weights", 1)


def test_single_precision_never_overflows_and_other_types_stay():
    assert kept_array(np.array([1.0, np.inf, np.nan])).dtype == np.float32
    assert kept_array(np.array([1e300, 1.0])).max() == 1e300
    for kind in (np.float16, np.float32, np.int64, np.bool_):
        assert kept_array(np.ones(2, kind)).dtype == kind


def test_damaged_metrics_are_an_error_that_names_the_folder(toy: RunFolder):
    (toy.path / ROWS).write_bytes(b"no")
    with pytest.raises(RunError, match=r"result keeps of its metrics cannot be read"):
        judge_again(toy)
    (toy.path / ROWS).write_bytes(lzma.compress(b"{half\n"))
    with pytest.raises(RunError, match="whole"):
        judge_again(toy)


# --- history

CLAIM = Claim("h-1", "s", "m", ">", 1.0, "p")
LINE = Change("2026-01-31", "> 2", "the paper says so")


def committed(*claims: Claim, retired: tuple[str, ...] = ()) -> dict:
    rows = [
        {
            "id": claim.id,
            "measured": claim.measured,
            "relation": claim.relation,
            "threshold": claim.threshold,
            "bound": claim.bound,
            "origin": claim.origin,
            "requires": [one.__dict__ for one in claim.requires],
            "history": [line.__dict__ for line in claim.history],
        }
        for claim in claims
    ]
    return {"claims": rows, "retired": [{"id": name} for name in retired]}


@pytest.mark.parametrize(
    ("change", "silent"),
    [
        ({}, False),
        ({"sentence": "another wording", "place": "p. 9"}, False),
        ({"threshold": 2.0}, True),
        ({"relation": ">="}, True),
        ({"measured": "another quantity"}, True),
        ({"bound": "sign"}, True),
        ({"origin": "paper", "quote": "so they say"}, True),
        ({"requires": (Precondition("fitted", "accuracy", ">=", 0.9),)}, True),
        ({"threshold": 2.0, "history": (LINE,)}, False),
        ({"threshold": 2.0, "retired": "given up"}, False),
    ],
)
def test_a_changed_rule_needs_a_line_of_history(change: dict, silent: bool):
    assert bool(unexplained([replace(CLAIM, **change)], committed(CLAIM))) == silent


def test_claims_do_not_disappear_and_histories_only_grow():
    told = replace(CLAIM, history=(LINE,))
    assert "h-1 is gone" in unexplained([], committed(CLAIM))[0]
    assert "history are gone" in unexplained([CLAIM], committed(told))[0]
    assert unexplained([replace(told, threshold=5.0)], committed(told))
    assert not unexplained([replace(told, threshold=5.0, history=(LINE, LINE))], committed(told))
    assert "h-2" in unexplained([CLAIM], committed(CLAIM, retired=("h-2",)))[0]


def test_the_registry_refuses_a_claim_that_differs_from_its_committed_result(toy: RunFolder):
    (claim,) = find("toy-training").claims
    with pytest.raises(
        TypeError, match="result: claims were changed after their result. toy-learns: its origin, quantity"
    ):
        refuse_silent_changes("result", (replace(claim, threshold=0.5),), toy.path.parent)
    refuse_silent_changes("result", (claim,), toy.path.parent)
    refuse_silent_changes("nothing-committed", (), toy.path.parent)


# --- tables

TABLE = """
preconditions:
  - {id: t-fitted, measured: accuracy, holds: ">= 0.9"}
claims:
  - id: t-1
    origin: paper
    sentence: It rises.
    quote: it rises
    place: figure 1
    measured: end minus start
    holds: "> 0"
    bound: sign
    requires: [t-fitted]
    scales: [paper]
    history:
      - {date: 2026-01-31, was: ">= 0.1", why: The paper has words only.}
"""


def test_a_table_of_claims_is_read_as_it_stands(tmp_path: Path):
    file = tmp_path / "t.yaml"
    file.write_text(TABLE)
    (claim,) = read_claims(file)
    line = Change("2026-01-31", ">= 0.1", "The paper has words only.")
    condition = Precondition("t-fitted", "accuracy", ">=", 0.9)
    assert claim == Claim(
        *("t-1", "It rises.", "end minus start", ">", 0.0, "figure 1", ("paper",), "paper", "it rises", "sign"),
        requires=(condition,),
        history=(line,),
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("bound: sign", "bond: sign", "unknown columns bond"),
        ("bound: sign", "", "bound"),
        ('"> 0"', '"about 0"', "not an inequality"),
        ("[t-fitted]", "[t-fited]", "t-fited"),
        ("claims:", "claims: {", "not a table of claims"),
        ("origin: paper", "origin: them", "origin"),
    ],
)
def test_a_table_with_a_fault_is_refused_in_words(tmp_path: Path, old: str, new: str, complaint: str):
    file = tmp_path / "t.yaml"
    file.write_text(TABLE.replace(old, new))
    with pytest.raises(SettingError, match=complaint):
        read_claims(file)


def test_an_inequality_is_a_sign_and_a_number():
    assert inequality("<= 1e-5") == ("<=", 1e-5) and inequality("> -0.3") == (">", -0.3)
    with pytest.raises(ValueError, match="not an inequality"):
        inequality("== 1")

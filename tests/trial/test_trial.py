"""The trial itself: cases are functions of their number, every kind of failure is seen, attributed, kept and shrunk."""

import json
from pathlib import Path
from random import Random

import pytest
import torch

import tangentlab as tl
from tests.trial import case, journal, summary
from tests.trial.case import replay, run
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.mortal import mortal
from tests.trial.shrink import shrunk
from tests.trial.workshop import Workshop

PLAIN = {
    "network": {"blocks": [{"kind": "linear", "width": 3}, {"kind": "activation"}]},
    "data": {"form": "tuple", "examples": 3},
    "operation": {"name": "jacobian"},
}


def test_a_case_is_a_function_of_seed_and_number() -> None:
    first, second, other = run(0, 5), run(0, 5), run(1, 5)
    assert first == second
    assert first.record != other.record


def test_a_record_replays_its_case() -> None:
    for number in range(5):
        found = run(2, number)
        assert replay(found.record) == found


def test_a_plain_network_is_exact() -> None:
    assert replay(PLAIN).outcome == case.EXACT


@pytest.mark.parametrize("factor", [1 + 1e-6, -1.0, 0.0])
def test_a_wrong_number_is_a_silent_error(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    true = tl.Jacobian

    def wrong(*args, **options):
        found = true(*args, **options)
        found.data[0, 0, 0] *= factor
        return found

    monkeypatch.setattr(tl, "Jacobian", wrong)
    assert replay(PLAIN).outcome == case.SILENT


def test_what_is_not_ours_is_a_foreign_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "Jacobian", lambda *args, **options: [][0])
    assert replay(PLAIN).outcome == case.FOREIGN


def test_refusing_a_plain_network_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args, **options):
        raise tl.errors.ModelError("No.")

    monkeypatch.setattr(tl, "Jacobian", refuse)
    assert replay(PLAIN).outcome == case.NEEDLESS


def test_a_hook_or_gradient_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    true = tl.Jacobian

    def leaving(model, *args, **options):
        next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
        return true(model, *args, **options)

    monkeypatch.setattr(tl, "Jacobian", leaving)
    assert replay(PLAIN).outcome == case.TOUCHED


def test_a_number_for_a_random_forward_is_a_silent_error(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = {**PLAIN, "network": {"blocks": [{"kind": "noise"}]}}
    rows = torch.zeros(1, 3, 4, dtype=torch.float64)
    monkeypatch.setattr(tl, "Jacobian", lambda *args, **options: tl.PushForwardDense(None, rows))
    assert replay(noisy).outcome == case.SILENT


def test_the_error_of_plain_autograd_in_the_type_is_allowed_and_not_more() -> None:
    one, near, far = torch.ones(3), torch.full((3,), 1.001), torch.full((3,), 1.02)
    wanted = {"x": one.double()}
    assert not case.difference({"x": near}, wanted, [wanted], torch.float32)
    assert case.difference({"x": far}, wanted, [wanted], torch.float32)
    assert not case.difference({"x": far}, wanted, [wanted, {"x": near.double() + 0.01}], torch.float32)
    assert case.difference({"x": torch.full((3,), torch.nan)}, wanted, [wanted], torch.float32)
    assert case.difference({"x": one[:2]}, wanted, [wanted], torch.float32)


def test_a_case_that_ends_its_process_or_never_ends_is_attributed_and_the_trial_goes_on() -> None:
    with Workshop(2, seconds=5.0, serve=mortal) as workshop:
        found = dict(workshop.outcomes([0, 1, 2, 3, 4]))
    assert [found[n]["outcome"] for n in range(5)] == ["exact", "crash", "endless", "exact", "exact"]
    assert found[1]["operation"] == "ntk" and found[1]["kinds"] == ["linear"]
    assert not any(worker.process.is_alive() for worker in workshop.workers)


def test_the_same_case_in_a_process_of_its_own() -> None:
    with Workshop(1, seed=0) as workshop:
        found = workshop.one(5)
        again = workshop.one(found["record"])
    assert found["record"] == run(0, 5).record == again["record"]
    assert found["outcome"] == again["outcome"] == run(0, 5).outcome


def test_a_trial_goes_on_from_its_journal_and_not_from_that_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs" / "journal.jsonl"
    first = journal.Journal(path, 0)
    first.add(7, {"outcome": "exact", "seconds": 0.1, "record": {"a": 1}})
    first.add(9, {"outcome": "crash", "seconds": 0.1, "record": {"a": 1}})
    with path.open("a") as file:
        file.write('{"case": 8, "outc')  # stopped while writing
    second = journal.Journal(path, 0)
    assert set(second.done) == {7, 9} and "record" not in second.done[7] and "record" in second.done[9]
    assert journal.Journal(path, 1).done == {}
    monkeypatch.setattr(journal, "fingerprint", lambda: "other")
    first = journal.Journal(path, 0)
    assert first.done == {}


def test_what_failed_and_is_run_again_keeps_how_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    first = journal.Journal(path, 0)
    first.add(7, {"outcome": "exact", "detail": "", "operation": "ntk", "kinds": [], "seconds": 0.1})
    first.add(9, {"outcome": "crash", "detail": "ended", "operation": "ntk", "kinds": [], "seconds": 0.1})
    monkeypatch.setattr(journal, "fingerprint", lambda: "other")
    second = journal.Journal(path, 0, again=True)
    assert second.head == first.head
    second.add(9, {"outcome": "exact", "detail": "", "operation": "ntk", "kinds": [], "seconds": 0.1})
    result = summary.summarized(journal.Journal(path, 0, again=True).done.values(), 0, "x")
    assert result["outcomes"] == {"exact": 2} and result["cases"] == 2
    assert result["failed at first, run again"] == [{"case": 9, "first": "crash: ended"}]
    assert "1 of them failed at first" in summary.table(result)


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    record = run(0, 40).record
    record["network"]["blocks"].append({"kind": "mixed", "pattern": "four before"})

    def fails(candidate: dict) -> bool:
        return any(part.get("pattern") == "four before" for part in candidate["network"]["blocks"])

    small = shrunk(record, fails)
    assert small["network"]["blocks"] == [{"kind": "mixed", "pattern": "four before"}]
    assert small["data"] == {} and set(small["operation"]) == {"name"}


def test_decisions_are_kept_and_those_taken_out_mean_the_simplest() -> None:
    record: dict = {}
    drawn = Choices(record, Random(0)).number("width", 1, 1000)
    assert record == {"width": drawn} and Choices(record, None).number("width", 1, 1000) == drawn
    assert Choices({}, None).number("width", 1, 1000) == 1
    with pytest.raises(NoSuchCase):
        Choices({"width": 5}, None).number("width", 1, 4)


def test_figures_count_every_case_once_and_name_failures() -> None:
    outcomes = [
        {"case": 0, "outcome": "exact", "operation": "ntk", "kinds": ["linear", "mixed"], "seconds": 0.5},
        {"case": 1, "outcome": "crash", "operation": "", "kinds": [], "seconds": 0.5, "detail": "ended"},
        {"case": 2, "outcome": "refused", "operation": "ntk", "kinds": ["mixed"], "seconds": 1.0, "detail": "A: b 1"},
    ]
    result = summary.summarized(outcomes, 0, "x")
    assert result["cases"] == sum(result["outcomes"].values()) == 3
    assert result["blocks"]["mixed"] == {"exact": 1, "refused": 1}
    assert result["failures"] == [{"case": 1, "outcome": "crash", "detail": "ended"}]
    assert "| all | 3 | 1 | 1 | 0 | 0 | 1 |" in summary.table(result)


@pytest.mark.skipif(not summary.RESULT.exists(), reason="no full run is committed")
def test_the_table_of_the_page_is_that_of_the_committed_run() -> None:
    text, result = summary.PAGE.read_text(), json.loads(summary.RESULT.read_text())
    assert summary.page(text, "trial", summary.table(result)) == text

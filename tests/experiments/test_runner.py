"""Runs: complete, partial, failed, locked, resumed, repeated."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tangentlab.bench.compare import compare_runs
from tangentlab.bench.errors import RunError, SettingError
from tangentlab.bench.folder import RunFolder, read_config
from tangentlab.bench.row_files import read_rows
from tangentlab.bench.runner import Outcome, execute, finish, make_config
from tangentlab.experiments import Results, Status, find

Bench = Callable[..., Outcome]


def test_a_run_writes_everything_that_its_folder_promises(bench: Bench):
    folder = bench("toy-training").folder.path
    assert {path.name for path in folder.iterdir()} >= {"config.yaml", "metrics.jsonl", "claims.json", "report.html"}
    assert {path.name for path in (folder / "figures").iterdir()} == {"loss.svg", "loss.png", "index.json"}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["seeds"] == [0, 1] and config["parameters"]["steps"] == 12
    assert {"tangentlab", "commit", "torch", "numpy", "python"} <= config["provenance"].keys()
    assert not list((folder / "seeds").rglob("*.pt"))


def test_verdicts_come_from_all_seeds(bench: Bench):
    held = bench("toy-claims", seeds=3)
    statuses = [verdict.status for verdict in held.verdicts]
    assert statuses == [Status.HELD, Status.HELD, Status.NOT_TESTED] and held.exit_code(strict=True) == 0
    mixed = bench("toy-claims", seeds=3, values=[2, 2, 0])
    assert mixed.verdicts[0].status == Status.MIXED
    assert (mixed.exit_code(), mixed.exit_code(strict=True)) == (0, 1)
    broken = bench("toy-claims", seeds=3, values=[0, 0, 0])
    assert broken.verdicts[0].status == Status.NOT_HELD and broken.exit_code(strict=True) == 1


def test_a_claim_that_is_never_measured_fails_the_run_even_when_not_strict(bench: Bench):
    outcome = bench("toy-claims", forget=True)
    assert outcome.verdicts[1].status == Status.MISSING and outcome.exit_code() == 1


def test_a_claim_can_be_excused_with_a_reason(bench: Bench):
    outcome = bench("toy-claims", mode="reason")
    assert (outcome.verdicts[1].status, outcome.verdicts[1].reason) == (Status.NOT_TESTED, "the moon is full")
    assert outcome.exit_code(strict=True) == 0


def test_a_seed_that_fails_does_not_stop_the_others_and_says_why(bench: Bench):
    outcome = bench("toy-claims", seeds=3, fail_seed=1)
    assert "told to fail" in outcome.failures[1] and not outcome.complete and outcome.exit_code() == 1
    assert Results(outcome.folder).ended == (0, 2)
    assert json.loads(outcome.folder.claims_file.read_text())["status"] == "failed"


def test_measuring_an_undeclared_claim_fails_the_seed(bench: Bench):
    assert "toy-z" in bench("toy-claims", unknown=True).failures[0]


def test_a_run_that_cannot_be_drawn_keeps_its_numbers(bench: Bench, tmp_path: Path):
    with pytest.raises(RunError, match="complete, but drawing it failed.*no ink"):
        bench("toy-claims", mode="undrawable")
    (folder,) = (tmp_path / "runs").iterdir()
    assert Results(RunFolder(folder)).complete


def test_a_trial_run_tests_no_claim_and_says_so(bench: Bench):
    outcome = bench("toy-training", max_steps=2)
    assert outcome.complete and outcome.verdicts[0].status == Status.NOT_TESTED
    assert len(Results(outcome.folder).table("between")) == 2 * 2
    assert "trial run" in outcome.folder.report_file.read_text()


def test_noise_that_stands_in_for_data_is_marked_everywhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)
    outcome = bench("toy-claims", data="digits")
    assert outcome.complete and not Results(outcome.folder).stand_ins()
    assert "digits train, 1,437 examples" in outcome.folder.report_file.read_text()
    outcome = bench("toy-claims", data="kmnist", max_steps=1)
    assert Results(outcome.folder).stand_ins() == ["kmnist"]
    assert "Noise stood in for kmnist" in outcome.folder.report_file.read_text()


def test_processes_and_inline_runs_give_the_same_numbers(bench: Bench):
    events: list[dict] = []
    inline = bench("toy-training", seeds=2)
    parallel = bench("toy-training", seeds=2, inline=False, workers=2, report=events.append)
    comparison = compare_runs(inline.folder, parallel.folder)
    assert comparison.identical and comparison.rows > 60
    assert {event["seed"] for event in events if event.get("ended")} == {0, 1}
    assert any(event.get("what") == "second" for event in events)


def test_what_an_experiment_prints_goes_to_its_log_and_a_failure_is_told(bench: Bench):
    outcome = bench("toy-claims", fail_seed=0, inline=False)
    assert "told to fail" in outcome.failures[0] and not Results(outcome.folder).ended
    assert "a stray line" in (outcome.folder.path / "seeds" / "0" / "log.txt").read_text()


@pytest.mark.parametrize("inline", [True, False])
def test_an_error_that_was_made_to_be_read_is_told_without_the_way_there(
    bench: Bench, inline: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)
    outcome = bench("toy-claims", data="kmnist", inline=inline)
    assert outcome.failures[0].startswith("kmnist: no file") and "TANGENTLAB_DATA" in outcome.failures[0]
    if not inline:
        assert "Traceback" in (outcome.folder.path / "seeds" / "0" / "log.txt").read_text()


def test_two_runs_never_get_the_same_folder(bench: Bench):
    folders = {bench("toy-claims").folder.path for _ in range(3)}
    assert {folder.name for folder in folders} == {f"toy-claims-smoke-{number}" for number in (1, 2, 3)}


def test_a_folder_in_use_is_refused(bench: Bench):
    outcome = bench("toy-claims")
    with outcome.folder.lock(), pytest.raises(RunError, match="in use by another run"):
        bench("toy-claims", resume=True)


def test_resuming_takes_the_newest_run_of_the_same_settings_only(bench: Bench):
    first, other = bench("toy-claims"), bench("toy-claims", values=[3, 3])
    assert bench("toy-claims", resume=True).folder == first.folder
    assert bench("toy-claims", values=[3, 3], resume=True).folder == other.folder
    assert bench("toy-claims", seeds=2, resume=True).folder not in (first.folder, other.folder)


def test_resuming_a_complete_run_computes_nothing(bench: Bench):
    before = bench("toy-training").folder.metrics_file.read_bytes()
    events: list[dict] = []
    assert bench("toy-training", resume=True, report=events.append).folder.metrics_file.read_bytes() == before
    assert events == []


def test_resuming_after_a_failure_runs_the_seeds_that_are_left(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    kind = find("toy-claims")
    run = kind.run
    with monkeypatch.context() as patch:
        patch.setattr(kind, "run", lambda self, lab: 1 / 0 if lab.seed == 1 else run(self, lab))
        assert set(bench("toy-claims", seeds=3).failures) == {1}
    outcome = bench("toy-claims", seeds=3, resume=True)
    assert outcome.complete and not outcome.failures


def test_an_interrupted_run_is_valid_and_partial(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def interrupt(event: dict) -> None:
        if event.get("what") == "second":
            raise KeyboardInterrupt

    outcome = bench("toy-training", report=interrupt, seeds=2)
    assert outcome.interrupted and outcome.exit_code() == 130
    summary = json.loads(outcome.folder.claims_file.read_text())
    assert summary["status"] == "partial" and summary["claims"][0]["status"] == "not tested"
    assert "A partial run" in outcome.folder.report_file.read_text()
    whole = bench("toy-training", resume=True, seeds=2)
    assert whole.folder == outcome.folder and whole.complete
    assert compare_runs(whole.folder, bench("toy-training", seeds=2).folder).identical


def test_a_config_replays_to_the_same_numbers(bench: Bench, tmp_path: Path):
    first = bench("toy-training", width=5)
    again = execute(read_config(first.folder.config_file), tmp_path / "again", inline=True)
    assert compare_runs(first.folder, again.folder).identical
    assert not compare_runs(first.folder, bench("toy-training", width=6).folder).identical


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("experiment: toy-claims\nscale: smoke\nseeds: [0]\nparameters: {}\nscal: x", "did you mean 'scale'"),
        ("experiment: toy-claims\nscale: smok\nseeds: [0]\nparameters: {}", "did you mean 'smoke'"),
        ("experiment: toy-claims\nscale: smoke\nseeds: [0, 0]\nparameters: {}", "different whole numbers"),
        ("experiment: toy-claims\nscale: smoke\nseeds: []\nparameters: {}", "different whole numbers"),
        ("experiment: toy-claims\nscale: smoke\nseeds: [0]", "parameters are missing"),
        ("experiment: 3\nscale: smoke\nseeds: [0]\nparameters: {}", "must be a str"),
        ("[1, 2]", "no keys"),
        ("{", "cannot be read"),
        ("experiment: !!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_a_config_that_is_wrong_is_an_error_and_nothing_in_it_is_executed(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises((RunError, SettingError), match=complaint):
        read_config(path)


def test_parameters_in_a_config_are_checked_like_settings(tmp_path: Path):
    config = make_config(find("toy-claims").at("smoke"), "smoke")
    path = tmp_path / "config.yaml"
    path.write_text(config.dump().replace("forget: false", "forgot: false"))
    with pytest.raises(SettingError, match="did you mean 'forget'"):
        read_config(path).build()


def test_a_comparison_names_the_rows_that_differ(bench: Bench):
    one, other = bench("toy-claims"), bench("toy-claims", values=[2.5])
    comparison = compare_runs(one.folder, other.folder)
    assert len(comparison.different) == 2 and comparison.largest == pytest.approx(0.2)
    assert "seed 0, row 0 (value)" in comparison.different


def test_redrawing_needs_the_folder_alone(bench: Bench):
    folder = bench("toy-training").folder
    before = (folder.figures / "loss.svg").read_text()
    (folder.figures / "loss.svg").unlink()
    finish(folder)
    assert (folder.figures / "loss.svg").read_text() == before


def test_curves_keep_the_places_that_all_seeds_have_and_name_what_is_missing(bench: Bench):
    results = Results(bench("toy-training").folder)
    curves = results.curves("loss", "step", "loss", training="first")
    assert curves.y.shape == (2, 13) and (curves.low <= curves.mean).all() and (curves.mean <= curves.high).all()
    assert results.arrays("weights").shape[0] == 2
    with pytest.raises(RunError, match="no column 'lost'"):
        results.table("loss")["lost"]
    with pytest.raises(RunError, match="no rows"):
        results.curves("loss", "step", "loss", training="third")
    assert len(read_rows(results.folder.metrics_file)) == len(results._rows)

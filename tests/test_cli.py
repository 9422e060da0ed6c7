"""The command: what it prints, what it refuses, and how it ends."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tangentlab import __version__
from tangentlab.bench.folder import runs_below
from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.row_files import dump_rows, read_rows
from tangentlab.cli import app
from tangentlab.engine.memory import human_bytes

ROOT = Path(__file__).parents[1]
COMMANDS = ("list", "run", "show", "gallery", "check", "replay")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every command runs in an empty folder, with the toy experiments and without the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, "tests.experiments.toys")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds run in this process: the tests of processes are elsewhere."""
    import tangentlab.bench.runner as runner

    real = runner.execute
    monkeypatch.setattr(runner, "execute", lambda *words, **options: real(*words, **{**options, "inline": True}))


def tangentlab(*words: str) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_help_teaches_the_first_steps_and_every_command_explains_itself():
    code, text = tangentlab("--help")
    assert code == 0 and all(f"tangentlab {command}" in text for command in ("list", "run", "gallery", "check"))
    for command in COMMANDS:
        code, text = tangentlab(command, "--help")
        assert code == 0 and len(text.splitlines()) > 8


def test_the_version_is_told_without_a_command():
    code, text = tangentlab("--version")
    assert (code, text.strip()) == (0, f"tangentlab {__version__}")


def test_asking_for_help_imports_nothing_heavy():
    heavy = "('torch', 'numpy', 'matplotlib', 'sklearn')"
    program = f"import sys, tangentlab.cli; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_list_shows_every_experiment_with_claims_and_times_by_chapter():
    code, text = tangentlab("list")
    assert code == 0
    for part in ("2 Geometry of function space", "kl-expansion", "toy-training", "2 min", "10 Limits", "eq. 2.4.12"):
        assert part in text
    assert text.index("kl-expansion") < text.index("toy-claims")
    assert "toy-claims" not in tangentlab("list", "--chapter", "geometry")[1]


def test_list_tells_all_about_one_experiment_and_names_the_chapters_there_are():
    code, text = tangentlab("list", "toy-claims")
    assert code == 0
    for part in ("The value is at least 1.", "≥ 1", "smoke, desk", "forget", "false", "[2.0, 2.0, 2.0]"):
        assert part in text
    code, text = tangentlab("list", "--chapter", "cooking")
    assert code == 2 and "there are: 2 Geometry of function space" in text


def test_the_dry_run_and_the_list_state_the_same_time():
    assert "14 days" in tangentlab("list")[1]
    assert "about 14 days on two cores" in tangentlab("run", "fim-quality", "--scale", "paper", "--dry-run")[1]
    assert "about 28 days" in tangentlab("run", "fim-quality", "--scale", "paper", "--seeds", "2", "--dry-run")[1]
    assert "not measured at this scale" in tangentlab("run", "fim-quality", "--scale", "paper", "--dry-run")[1]


def test_a_dry_run_tells_steps_memory_and_time_and_writes_nothing(tmp_path: Path):
    code, text = tangentlab("run", "toy-training", "--scale", "smoke", "--dry-run", "--set", "steps=100")
    assert code == 0
    for part in (
        "203 per seed, 406 in all",
        "about 300 MB",
        "about 45 s on two cores",
        "1 of 1 would be tested",
        "steps",
        "100",
    ):
        assert part in text
    assert "every loop is cut after 2" in tangentlab("run", "toy-training", "--dry-run", "--max-steps", "2")[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("run",), "Name one or more experiments"),
        (("run", "toy-claims", "--all"), "Name one or more experiments"),
        (("run", "toy-claim"), "did you mean 'toy-claims'"),
        (("run", "toy-claims", "--scale", "dest"), "did you mean 'desk'"),
        (("run", "toy-claims", "--set", "valuse=[1]"), "did you mean 'values'"),
        (("run", "toy-claims", "--set", "forget=perhaps"), "truth value"),
        (("run", "--all", "--set", "forget=true"), "cannot be used with --all"),
        (("run", "toy-claims", "--seeds", "0"), "at least 1"),
        (("run", "toy-claims", "--max-steps", "0"), "at least 1"),
        (("run", "toy-claims", "--workers", "0"), "greater than or equal to 1"),
        (("list", "toy-claim"), "did you mean 'toy-claims'"),
        (("show", "nothing"), "no run folder 'nothing'"),
        (("gallery", "nothing"), "no folder 'nothing'"),
        (("replay", "nothing.yaml"), "cannot be read"),
        (("check", "nothing"), "MODULE:FACTORY"),
        (("check", "no_such_module:make"), "Cannot import"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(words: tuple[str, ...], complaint: str, tmp_path: Path):
    code, text = tangentlab(*words)
    assert code == 2 and complaint in text and "Traceback" not in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("in_process")
def test_run_show_gallery_and_replay_work_together(tmp_path: Path):
    code, text = tangentlab("run", "toy-claims", "--scale", "smoke", "--seeds", "2", "--set", "values=[3, 4]")
    assert code == 0 and "✓ held" in text and "report.html" in text and "3.5 ± 0.71" in text
    (folder,) = runs_below(tmp_path / "runs")
    code, text = tangentlab("show", "toy-claims")
    assert code == 0 and "The value is at least 1." in text and "values.svg" in text
    code, text = tangentlab("gallery")
    assert code == 0 and "1 experiment in" in text and (tmp_path / "runs" / "gallery.html").exists()
    code, text = tangentlab("replay", str(folder.config_file))
    assert code == 0 and "the same numbers: all 8 rows are identical" in text
    rows = [{**row, "value": 3.25} if row.get("value") == 3.0 else row for row in read_rows(folder.metrics_file)]
    folder.metrics_file.write_text(dump_rows(rows))
    code, text = tangentlab("replay", str(folder.config_file))
    assert code == 1 and "4 of 8 rows differ" in text


@pytest.mark.usefixtures("in_process")
def test_replay_refuses_damaged_metrics_before_it_runs(tmp_path: Path):
    assert tangentlab("run", "toy-claims", "--scale", "smoke")[0] == 0
    (folder,) = runs_below(tmp_path / "runs")
    folder.metrics_file.write_text(folder.metrics_file.read_text().replace("2.0", "3.0"))
    for words in (("replay", str(folder.config_file)), ("show", "toy-claims", "--redraw")):
        code, text = tangentlab(*words)
        assert code == 2 and "is damaged: line" in text and "--resume" in text
    assert runs_below(tmp_path / "runs") == [folder]


@pytest.mark.usefixtures("in_process")
def test_a_file_where_runs_or_pages_should_go_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    code, text = tangentlab("run", "toy-claims", "--scale", "smoke", "--out", "file")
    assert code == 2 and "file cannot be written" in text and "another name" in text
    assert tangentlab("run", "toy-claims", "--scale", "smoke")[0] == 0
    for target in ("file/gallery.html", "."):
        code, text = tangentlab("gallery", "--to", target)
        assert code == 2 and "cannot be written" in text
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("in_process")
def test_strict_turns_a_claim_that_is_not_held_into_exit_code_1():
    words = ("run", "toy-claims", "--scale", "smoke", "--set", "values=[0]")
    assert tangentlab(*words)[0] == 0
    code, text = tangentlab(*words, "--strict")
    assert code == 1 and "✕ not held" in text
    assert tangentlab("run", "toy-claims", "--scale", "smoke", "--set", "forget=true")[0] == 1


@pytest.mark.usefixtures("in_process")
def test_run_all_goes_on_after_an_experiment_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import tangentlab.bench.registry as registry

    toys = [kind for kind in registry.all_experiments() if kind.name.startswith("toy-")]
    monkeypatch.setattr(registry, "all_experiments", lambda: toys)
    monkeypatch.setattr(toys[0], "draw", lambda self, results: 1 / 0)
    code, text = tangentlab("run", "--all", "--scale", "smoke", "--seeds", "1", "--seed", "4")
    assert code == 2 and "drawing it failed" in text
    assert {folder.config().experiment for folder in runs_below(tmp_path / "runs")} == {kind.name for kind in toys}
    assert all(folder.config().seeds == (4,) for folder in runs_below(tmp_path / "runs"))


@pytest.mark.usefixtures("in_process")
def test_a_failed_seed_is_shown_with_its_reason():
    code, text = tangentlab("run", "toy-claims", "--scale", "smoke", "--set", "fail_seed=0")
    assert code == 1 and "seed 0 failed" in text and "told to fail" in text


@pytest.mark.usefixtures("in_process")
def test_what_all_seeds_failed_of_is_said_once_and_a_table_without_numbers_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)
    code, text = tangentlab("run", "toy-claims", "--scale", "smoke", "--seeds", "3", "--set", "data=kmnist")
    assert code == 1 and "seeds 0, 1, 2 failed" in text and text.count("To get it:") == 1
    assert "Traceback" not in text and "holds if" not in text


@pytest.mark.usefixtures("in_process")
def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path):
    tangentlab("run", "toy-claims", "--scale", "smoke")
    tangentlab("run", "toy-training", "--scale", "smoke")
    (folder,) = (run for run in runs_below(tmp_path / "runs") if run.config().experiment == "toy-training")
    folder.config_file.write_text("a: [")
    assert tangentlab("show", "toy-claims")[0] == 0
    assert tangentlab("show", "toy-training")[0] == 2
    assert tangentlab("gallery")[0] == 0


@pytest.mark.usefixtures("in_process")
def test_showing_can_draw_again(tmp_path: Path):
    tangentlab("run", "toy-claims", "--scale", "smoke")
    (folder,) = runs_below(tmp_path / "runs")
    folder.report_file.unlink()
    assert tangentlab("show", str(folder.path), "--redraw")[0] == 0 and folder.report_file.exists()


def test_a_committed_result_is_shown_and_gets_pages_without_being_changed(tmp_path: Path):
    results = tmp_path / "results"
    shutil.copytree(ROOT / "results" / "desk", results)
    before = {file: file.read_bytes() for file in results.rglob("*") if file.is_file()}
    code, text = tangentlab("show", str(results / "kl-expansion"))
    assert code == 0 and "✓ held" in text and "--open" in text
    code, text = tangentlab("gallery", str(results))
    assert code == 0 and (results / "gallery.html").exists() and (results / "kl-expansion.html").exists()
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.usefixtures("in_process")
def test_showing_with_open_writes_the_page_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    tangentlab("run", "toy-claims", "--scale", "smoke")
    (folder,) = runs_below(tmp_path / "runs")
    page = folder.report_file.read_text()
    folder.report_file.unlink()
    code, text = tangentlab("show", "toy-claims", "--open")
    assert code == 0 and opened == [str(folder.report_file.relative_to(tmp_path))]
    assert folder.report_file.read_text() == page


def test_a_module_of_experiments_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ENVIRONMENT, "no_such_module_of_mine")
    code, text = tangentlab("list")
    assert code == 2 and "no_such_module_of_mine" in text and ENVIRONMENT in text


def test_a_library_that_a_module_of_experiments_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "needs_a_library.py").write_text("import no_such_library")
    monkeypatch.setenv(ENVIRONMENT, "needs_a_library")
    for words in (("list",), ("run", "mine"), ("run", "kl-expansion")):
        code, text = tangentlab(*words)
        assert code == 2 and "imports 'no_such_library'" in text and "There is no experiment" not in text


MODELS = """
import torch
from torch import nn

def pair():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)

def alone():
    return nn.Conv2d(1, 2, 3)

def wrong():
    return 3

def with_norm():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)), torch.randn(4, 1, 6, 6)

def broken():
    raise RuntimeError("my own mistake")

def needy(size):
    return nn.Linear(size, 2)
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models_for_check.py").write_text(MODELS)
    (tmp_path / "my_syntax_for_check.py").write_text("def make(:\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_models_for_check", raising=False)


@pytest.mark.usefixtures("user_module")
def test_check_shows_coverage_and_agreement_of_the_users_own_model():
    code, text = tangentlab("check", "my_models_for_check:pair")
    assert code == 0 and "0.weight" in text and "structured" in text and "agree to" in text
    code, text = tangentlab("check", "my_models_for_check:alone", "--shape", "1,6,6")
    assert code == 0 and "Conv2d" in text


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("my_models_for_check:alone",), "add --shape"),
        (("my_models_for_check:alone", "--shape", "1,x"), "whole numbers with commas"),
        (("my_models_for_check:wrong",), "gave a int"),
        (("my_models_for_check:absent",), "has no function 'absent'"),
        (("my_models_for_check:broken",), "RuntimeError: my own mistake"),
        (("my_models_for_check:needy",), "missing 1 required positional argument: 'size'"),
        (("my_models_for_check:alone", "--shape", "5,6,6"), "does not take inputs of shape (4, 5, 6, 6)"),
        (("my_syntax_for_check:make",), "SyntaxError"),
    ],
)
def test_check_says_what_it_needs(words: tuple[str, ...], complaint: str):
    code, text = tangentlab("check", *words)
    assert code == 2 and complaint in text and "typer" not in text


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize("name", ["pair", "with_norm"])
def test_check_states_the_memory_that_the_matrices_really_take(name: str):
    import tangentlab as package
    from tangentlab.cli.check import fisher_memory, make_model

    model, inputs = make_model(f"my_models_for_check:{name}", "")
    text = fisher_memory(model, inputs)
    kinds = {"PMatDense": package.PMatDense, "PMatDiag": package.PMatDiag}
    kinds |= {"PMatMixed.default()": package.PMatMixed.default()} if name == "with_norm" else {}
    kinds |= {"PMatKFAC": package.PMatKFAC, "PMatEKFAC": package.PMatEKFAC} if name == "pair" else {}
    many = torch.cat([inputs] * 30)  # few examples would leave factors thin
    for kind, representation in kinds.items():
        stored = sum(t.numel() * t.element_size() for t in package.FIM(model, many, representation).tensors())
        assert re.search(rf"^{re.escape(kind)} +{re.escape(human_bytes(stored))} ", text, re.M), (kind, stored, text)


@pytest.mark.usefixtures("user_module")
def test_check_ends_with_1_when_the_engine_disagrees(monkeypatch: pytest.MonkeyPatch):
    import tangentlab as package
    from tangentlab.errors import NumericsError

    def disagree(*_: object, **__: object) -> None:
        raise NumericsError("0.weight (1e-1)")

    monkeypatch.setattr(package, "check", disagree)
    code, text = tangentlab("check", "my_models_for_check:pair")
    assert code == 1 and "0.weight (1e-1)" in text


@pytest.mark.usefixtures("user_module")
def test_check_plans_the_tangent_kernel_for_the_number_of_examples_asked_for():
    code, text = tangentlab("check", "my_models_for_check:pair", "-n", "1234")
    assert code == 0 and "ntk of 1234 examples, 2 outputs" in text


@pytest.mark.usefixtures("in_process")
def test_judging_again_says_what_changed_and_how_claims_of_either_origin_fare(tmp_path: Path):
    tangentlab("run", "toy-claims", "--scale", "smoke")
    (folder,) = runs_below(tmp_path / "runs")
    code, text = tangentlab("judge", str(folder.path))
    assert code == 0 and "nothing has changed" in text and "claims of ours: 2 held, 1 not tested" in text
    claims = json.loads(folder.claims_file.read_text())
    claims["claims"][0]["status"] = "not held"
    folder.claims_file.write_text(json.dumps(claims))
    assert "toy-a: not held before, held now" in tangentlab("judge", str(folder.path))[1]
    assert tangentlab("judge")[0] == 2 and tangentlab("judge", str(folder.path), "--all")[0] == 2


@pytest.mark.usefixtures("in_process")
def test_a_trend_is_run_drawn_and_told(tmp_path: Path):
    words = (
        "toy-training",
        "toy-learns",
        "--over",
        "width=2,4",
        "--scale",
        "smoke",
        "--into",
        str(tmp_path / "result"),
    )
    code, text = tangentlab("trend", *words)
    assert code == 0 and "toy-learns over width: it goes" in text
    assert (tmp_path / "result" / "trends" / "toy-learns-over-width.svg").exists()
    assert tangentlab("trend", "toy-training", "toy-learns", "--over", "width=2", "--scale", "smoke")[0] == 2

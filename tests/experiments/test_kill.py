"""A run killed without warning, at several moments, ends with the numbers of one that was left alone."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tangentlab.bench.compare import compare_runs
from tangentlab.bench.folder import RunFolder, runs_below
from tangentlab.bench.row_files import read_rows
from tangentlab.bench.runner import Outcome, execute
from tangentlab.experiments import Results

Command = Callable[..., subprocess.Popen[str]]
SETTINGS = ("toy-training", "--scale", "smoke", "--set", "delay=0.03")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the moment did not come"
        assert process.poll() is None, f"ended before the moment: {process.communicate()[0]}"
        time.sleep(0.005)


def rows_of(parent: Path) -> list[dict]:
    folders = runs_below(parent)
    return read_rows(folders[-1].metrics_file) if folders else []


def the_only_run(parent: Path) -> RunFolder:
    (folder,) = runs_below(parent)
    return folder


def test_a_run_killed_again_and_again_resumes_to_the_same_metrics(
    command: Command, bench: Callable[..., Outcome], tmp_path: Path
):
    runs, one_seed = tmp_path / "killed", ("--seeds", "1", "--set", "draw_delay=1")
    moments: dict[str, Callable[[], bool]] = {
        "in the first training": lambda: len(rows_of(runs)) >= 5,
        "in the stage between": lambda: any(row["table"] == "between" for row in rows_of(runs)),
        "in the second training": lambda: any(row.get("training") == "second" for row in rows_of(runs)),
        "while it draws": lambda: any(row["table"] == "end" for row in rows_of(runs)),
    }
    for name, moment in moments.items():
        process = command("run", *SETTINGS, *one_seed, "--out", str(runs), "--resume")
        wait_for(moment, process)
        # the parent alone: its workers must notice, and must not write beside those of the next start
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, name
        assert not (the_only_run(runs).claims_file).exists(), name
    process = command("run", *SETTINGS, *one_seed, "--out", str(runs), "--resume")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    reference = bench("toy-training", seeds=1)
    comparison = compare_runs(the_only_run(runs), reference.folder)
    assert comparison.identical and comparison.rows > 25
    assert (Results(the_only_run(runs)).arrays("weights") == Results(reference.folder).arrays("weights")).all()


def test_a_running_folder_is_closed_to_others_and_ctrl_c_leaves_a_valid_partial_run_that_goes_on(
    command: Command, bench: Callable[..., Outcome], tmp_path: Path
):
    runs, hold = tmp_path / "interrupted", tmp_path / "hold"
    hold.touch()
    words = ("run", "toy-training", "--scale", "smoke", "--seeds", "2", "--set", f"hold={hold}", "--out", str(runs))
    process = command(*words)
    wait_for(lambda: {row["seed"] for row in rows_of(runs) if row.get("step") == 2} == {0, 1}, process)
    intruder = command(*words, "--resume")
    output, _ = intruder.communicate(timeout=60)
    assert intruder.returncode == 2 and "in use by another run" in output and process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in output
    folder = the_only_run(runs)
    assert "A partial run" in folder.report_file.read_text() and not Results(folder).complete
    written = len(rows_of(runs))
    hold.unlink()
    assert len(list((folder.path / "seeds").rglob("*.pt"))) == 2, "each seed left a checkpoint"
    whole = execute(folder.config(), runs, resume=True, inline=True)
    assert whole.folder == folder and whole.complete and len(rows_of(runs)) > written
    assert compare_runs(folder, bench("toy-training", seeds=2).folder).identical


@pytest.mark.slow
def test_twenty_kills_at_random_moments_of_the_whole_process_group(
    command: Command, bench: Callable[..., Outcome], tmp_path: Path
):
    runs, dice = tmp_path / "killed", random.Random(0)
    for _ in range(20):
        process = command(
            "run", *SETTINGS, "--seeds", "2", "--set", "checkpoint_seconds=0.1", "--out", str(runs), "--resume"
        )
        time.sleep(dice.uniform(0.5, 6))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = command(
        "run", *SETTINGS, "--seeds", "2", "--set", "checkpoint_seconds=0.1", "--out", str(runs), "--resume"
    )
    assert process.wait(timeout=120) == 0
    assert compare_runs(the_only_run(runs), bench("toy-training", seeds=2).folder).identical

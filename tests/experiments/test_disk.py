"""Disks that are full, read-only or not what was meant: errors that say what to do, and runs that can go on."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tangentlab.bench.compare import compare_runs
from tangentlab.bench.errors import RunError
from tangentlab.bench.folder import RunFolder, read_config, runs_below
from tangentlab.bench.gallery import write_gallery
from tangentlab.bench.publish import publish
from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.runner import Outcome, execute, make_config, redraw
from tangentlab.errors import DiskError
from tangentlab.experiments import Results, find
from tangentlab.files import make_folder, read_sealed, write_atomically
from tests.experiments.conftest import TOYS
from tests.failing_disk import failing_disk, half_a_write

Bench = Callable[..., Outcome]
SETTINGS = ("toy-training", "--scale", "smoke", "--seeds", "1")


def config(**options: object):
    return make_config(find("toy-training").at("smoke", **options), "smoke", seeds=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of the same config that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT, TOYS)
        return execute(config(), tmp_path_factory.mktemp("whole"), inline=True).folder


def test_a_file_where_the_folder_of_runs_should_be_is_named(tmp_path: Path):
    file = tmp_path / "taken"
    file.write_text("mine")
    for out in (file, file / "below"):
        with pytest.raises(DiskError, match=rf"{out} cannot be written .*another name\.$"):
            execute(config(), out, inline=True)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_named(tmp_path: Path, number: int):
    with (
        failing_disk("os.mkdir", number=number),
        pytest.raises(DiskError, match="runs cannot be written .*permissions"),
    ):
        execute(config(), tmp_path / "runs", inline=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(DiskError, match="runs cannot be written .*permissions"):
        execute(config(), tmp_path / "runs", inline=True)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("os.mkdir", 0),
        ("os.mkdir", 3),
        ("os.open", 2),
        ("os.write", 0),
        ("os.write", 20),
        ("os.fsync", 1),
        ("os.replace", 10),
        ("tempfile.mkstemp", 0),
        ("tempfile.mkstemp", 15),
        ("tempfile.mkstemp", 30),
    ],
)
def test_a_run_on_a_disk_that_becomes_full_says_so_and_goes_on_when_there_is_space(
    tmp_path: Path, whole: RunFolder, call: str, after: int
):
    try:
        with failing_disk(call, after) as failed:
            outcome = execute(config(), tmp_path / "full", inline=True)
    except DiskError as error:
        assert "cannot be written (No space left on device): free some space" in str(error)
    else:
        assert "free some space" in outcome.failures[0]
    assert failed
    resumed = execute(config(), tmp_path / "full", inline=True, resume=True)
    assert resumed.complete and not resumed.failures
    assert compare_runs(whole, resumed.folder).identical
    assert (Results(whole).array("weights") == Results(resumed.folder).array("weights")).all()


@pytest.mark.parametrize("after", [0, 7])
def test_a_row_of_which_the_disk_took_a_part_is_written_again(tmp_path: Path, whole: RunFolder, after: int):
    with half_a_write(after):
        outcome = execute(config(), tmp_path / "full", inline=True)
    assert "only a part of a line" in outcome.failures[0] and not outcome.complete
    resumed = execute(config(), tmp_path / "full", inline=True, resume=True)
    assert compare_runs(whole, resumed.folder).identical


@pytest.mark.slow
@pytest.mark.parametrize("limit", [40, 1500, 4000])
def test_the_command_on_a_disk_with_a_limit_ends_in_one_sentence_and_resumes(
    tmp_path: Path, whole: RunFolder, limit: int
):
    words = [sys.executable, "-m", "tangentlab.cli", "run", *SETTINGS, "--out", str(tmp_path / "out")]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "env": {**os.environ, "COLUMNS": "300"}}
    limited = subprocess.run(
        words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), **options
    )
    assert limited.returncode in (1, 2)
    assert "free some space" in limited.stdout + limited.stderr and "Traceback" not in limited.stdout + limited.stderr
    again = subprocess.run([*words, "--resume"], **options)
    assert again.returncode == 0, again.stdout + again.stderr
    *_, folder = runs_below(tmp_path / "out")
    assert compare_runs(whole, folder).identical


def test_damaged_metrics_are_an_error_and_a_resumed_run_computes_them_again(tmp_path: Path, whole: RunFolder):
    folder = execute(config(), tmp_path / "hurt", inline=True).folder
    content = bytearray(folder.metrics_file.read_bytes())
    content[len(content) // 2] ^= 1
    folder.metrics_file.write_bytes(content)
    for reader in (Results, redraw, lambda hurt: compare_runs(whole, hurt)):
        with pytest.raises(RunError, match="metrics.jsonl is damaged: (line|row) .* --resume"):
            reader(folder)
    with pytest.warns(RuntimeWarning, match="computed again"):
        resumed = execute(config(), tmp_path / "hurt", inline=True, resume=True)
    assert resumed.complete and compare_runs(whole, resumed.folder).identical


def test_a_damaged_checkpoint_fails_its_seed_with_the_way_out(tmp_path: Path, whole: RunFolder):
    with failing_disk("os.write", 20):
        execute(config(), tmp_path / "hurt", inline=True)
    (folder,) = runs_below(tmp_path / "hurt")
    file = next((folder.path / "seeds").rglob("train_second*.pt"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    outcome = execute(config(), tmp_path / "hurt", inline=True, resume=True)
    assert f"Delete {file} to compute that part again, then go on with --resume." in outcome.failures[0]
    file.unlink()
    resumed = execute(config(), tmp_path / "hurt", inline=True, resume=True)
    assert resumed.complete and compare_runs(whole, resumed.folder).identical


def test_pages_and_published_results_on_a_failing_disk_are_errors_of_ours(tmp_path: Path, bench: Bench):
    folder = bench("toy-claims").folder
    with failing_disk("tempfile.mkstemp"), pytest.raises(DiskError, match=r"gallery.html cannot be written .*space"):
        write_gallery([folder.path], tmp_path / "gallery.html")
    with pytest.raises(DiskError, match="cannot be written .*another name"):
        write_gallery([folder.path], tmp_path)
    with failing_disk("os.fsync"), pytest.raises(DiskError, match="free some space"):
        redraw(folder)
    summary = tmp_path / "blocked"
    summary.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tangentlab.bench.publish.unfit", lambda summary: [])
        with pytest.raises(DiskError, match="blocked cannot be written"):
            publish(folder.path, summary)


def test_what_a_failed_write_leaves_is_the_file_of_before(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, "before")
    for call in ("os.fsync", "os.replace", "os.chmod"):
        with failing_disk(call), pytest.raises(DiskError) as caught:
            write_atomically(path, "after")
        assert caught.value.errno == errno.ENOSPC and isinstance(caught.value, OSError)
        assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_errors_tell_reading_from_writing_and_pass_errors_of_ours_on(tmp_path: Path):
    with pytest.raises(DiskError, match=r"absent cannot be read \(No such file or directory\): look at the path"):
        read_sealed(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="a file lies where a folder is needed"):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(DiskError, match="written") as caught:
        write_atomically(tmp_path / "absent" / "file", "")
    assert str(caught.value).count("cannot be") == 1


def test_a_config_that_is_nested_too_deeply_is_refused_in_words(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("[" * 50_000)
    with pytest.raises(RunError, match="cannot be read as a run's config"):
        read_config(tmp_path / "config.yaml")

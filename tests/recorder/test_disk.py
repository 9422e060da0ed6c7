"""A recorder on a disk that fails: it warns, switches itself off, and the training goes on as without it."""

import errno
import os
import resource
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from tangentlab.errors import DataFileError, DiskError
from tangentlab.recorder import Recording, TangentRecorder
from tests.failing_disk import failing_disk, half_a_write
from tests.recorder.test_callbacks import fake_fit
from tests.recorder.trainings import STEADY, dense, digits_like, train

ROOT = Path(__file__).parents[2]


def doubled() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    x, y = digits_like(8)
    return {"train": (x.double(), y)}


def make(model: torch.nn.Module, folder: Path, **options) -> TangentRecorder:
    return TangentRecorder(
        model, doubled(), schedule=1, measures=["spectrum", "complexity"], folder=folder, **STEADY, **options
    )


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained_alone(steps: int) -> torch.Tensor:
    model = dense()
    torch.manual_seed(5)
    train(model, steps)
    return weights(model)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("os.write", 0),
        ("os.write", 1),
        ("os.write", 3),
        ("os.fsync", 2),
        ("os.open", 0),
        ("os.mkdir", 0),
        ("os.write", 7),
    ],
)
def test_the_training_goes_on_bit_for_bit_and_nothing_more_is_recorded(tmp_path: Path, call: str, after: int) -> None:
    model = dense()
    recorder = make(model, tmp_path / "below")
    with (
        failing_disk(call, after) as failed,
        pytest.warns(RuntimeWarning, match="switched off; training goes on") as seen,
    ):
        with recorder:
            torch.manual_seed(5)
            train(model, 6, recorder)
    assert failed and len(failed) == len(seen) == 1  # once it is off it asks nothing more of the disk
    assert "cannot be written (No space left on device): free some space" in str(seen[0].message)
    assert Path(seen[0].filename).name in ("test_disk.py", "trainings.py")
    assert torch.equal(weights(model), trained_alone(6))
    assert recorder.off and recorder.steps == 6 and recorder._ledger.closed
    assert recorder.rows[-1]["kind"] == "off" and len(recorder.snapshots) <= max(after, 1)


def test_what_was_recorded_before_is_on_disk_and_on_the_page_which_says_when_it_ended(tmp_path: Path) -> None:
    model = dense()
    recorder = make(model, tmp_path)
    with pytest.warns(RuntimeWarning, match="step 3: .*recording.jsonl cannot be written"), recorder:
        train(model, 2, recorder)
        with half_a_write():
            train(model, 4, recorder)
    assert [row["step"] for row in Recording.load(tmp_path).snapshots] == [0, 1, 2]
    page = recorder.report().read_text()
    assert (
        "<b>Switched off:</b> nothing is recorded after step 3: " in page
        and ".." not in page.partition("Switched")[2][:400]
    )


def test_a_strict_recorder_raises_an_error_of_ours(tmp_path: Path) -> None:
    model = dense()
    recorder = make(model, tmp_path, strict=True)
    recorder.start()
    with failing_disk("os.fsync"), pytest.raises(DiskError, match="free some space"):
        train(model, 1, recorder)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_at_all_is_refused_before_training(tmp_path: Path, number: int) -> None:
    recorder = make(dense(), tmp_path / "below")
    with (
        failing_disk("os.mkdir", number=number),
        pytest.raises(DiskError, match="below cannot be written .*permissions"),
    ):
        recorder.start()
    assert not recorder.off and recorder.rows == []


def test_a_file_where_the_folder_should_be_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DiskError, match="file cannot be written .*another name"):
        make(dense(), tmp_path / "file").start()


def test_a_recorder_that_was_switched_off_joins_the_training_anew(tmp_path: Path) -> None:
    model = dense()
    first = make(model, tmp_path)
    with failing_disk("os.write", 3), pytest.warns(RuntimeWarning, match="switched off"):
        first.start()
        train(model, 4, first)
    state = first.state_dict()
    for again, told in ((first, 0), (make(model, tmp_path), 0), (make(model, tmp_path), 9)):
        again.close()
        if again is not first:
            again.load_state_dict(state)
        again.start(first_step=told)
        assert [row["kind"] for row in again.rows] == ["start", "joined", "snapshot"]
        assert (
            again.steps == again.snapshots[0]["step"] == (told or 4) and not again.off
        )  # a trainer knows better how far it is
        assert again.snapshots[0]["values"]["complexity"] == again.snapshots[0]["values"]["path_length"] == 0
        again.close()


def test_a_failing_tensorboard_log_switches_off_too(tmp_path: Path) -> None:
    class Full:
        def add_scalar(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None:
            raise AssertionError("never asked")

    model = dense()
    recorder = TangentRecorder(model, doubled(), schedule=1, measures=["spectrum"], tensorboard=Full(), **STEADY)
    with pytest.warns(RuntimeWarning, match="log of TensorBoard cannot be written"), recorder:
        train(model, 2, recorder)
    assert recorder.off


def test_lightning_goes_on_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = types.ModuleType("lightning.pytorch")
    inner.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", inner)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    recorder = TangentRecorder(
        model, {"p": digits_like(8)}, schedule=1, folder=tmp_path, measures=["spectrum"], **STEADY
    )
    callback = recorder.lightning_callback()
    with failing_disk("os.write", 3), pytest.warns(RuntimeWarning, match="switched off"):
        fake_fit(callback, model, 5, total=5)
    assert recorder.off and recorder.steps == 5 and callback.state_dict()["off"]


@pytest.fixture
def hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A callback, what the Trainer gives it, and its recorder; checkpoints are in ``tmp_path``."""
    package = types.ModuleType("transformers")
    package.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", package)
    model = dense()
    recorder = make(model, tmp_path / "recording")
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=6)
    return recorder.hugging_face_callback(), types.SimpleNamespace(output_dir=str(tmp_path)), state, recorder


def test_hugging_face_goes_on_when_the_state_cannot_be_saved(tmp_path: Path, hugging_face) -> None:
    callback, args, state, recorder = hugging_face
    callback.on_train_begin(args, state, None)
    (tmp_path / "checkpoint-0").mkdir()
    with failing_disk("tempfile.mkstemp") as failed, pytest.warns(RuntimeWarning, match="switched off"):
        callback.on_save(args, state, None)
    callback.on_save(args, state, None)
    assert recorder.off and len(failed) == 1 and list((tmp_path / "checkpoint-0").iterdir()) == []
    callback.on_step_end(args, state, None)
    callback.on_train_end(args, state, None)


def test_hugging_face_refuses_a_damaged_state_before_training_goes_on(tmp_path: Path, hugging_face) -> None:
    callback, args, state, recorder = hugging_face
    callback.on_train_begin(args, state, None)
    state.global_step = 2
    for _ in range(2):
        callback.on_step_end(args, state, None)
    (tmp_path / "checkpoint-2").mkdir()
    callback.on_save(args, state, None)
    callback.on_train_end(args, state, None)
    file = tmp_path / "checkpoint-2" / "tangent_recorder.pt"
    content = bytearray(file.read_bytes())
    again = make(recorder.model, tmp_path / "again").hugging_face_callback()
    for place in (len(content) // 2, 1):
        content[place] ^= 8
        file.write_bytes(content)
        with pytest.raises(DataFileError, match="tangent_recorder.pt cannot be read .*Delete it"):
            again.on_train_begin(args, state, None)
        content[place] ^= 8
    file.write_bytes(content)
    again.on_train_begin(args, state, None)
    assert again.recorder.steps == 2 and again.recorder.rows[-1]["kind"] == "resumed"


def test_no_flipped_bit_changes_a_recording(tmp_path: Path) -> None:
    recorder = make(dense(), tmp_path)
    with recorder:
        recorder.step(loss=0.5)
    file = tmp_path / "recording.jsonl"
    truth, content = Recording.load(tmp_path).rows, bytearray(file.read_bytes())
    refused = 0
    for place in range(0, len(content), 3):
        bit = place % 8
        content[place] ^= 1 << bit
        file.write_bytes(content)
        try:
            found = Recording.load(file).rows
        except DataFileError as error:
            assert "line" in str(error)
            refused += 1
        else:
            assert found == truth[:-1], (
                place
            )  # a last line that looks unfinished: the recording has not come to its end
        content[place] ^= 1 << bit
    assert refused > 0.9 * len(range(0, len(content), 3))


def test_a_damaged_file_is_put_aside_by_a_training_that_goes_on(tmp_path: Path) -> None:
    model = dense()
    first = make(model, tmp_path)
    first.start()
    train(model, 2, first)
    state = first.state_dict()
    first.close()
    file = tmp_path / "recording.jsonl"
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.write_bytes(content)
    again = make(model, tmp_path)
    again.load_state_dict(state)
    again.start()
    again.close()
    assert Recording.load(tmp_path).rows == again.rows and [row["step"] for row in again.snapshots] == [0, 1, 2]
    assert (tmp_path / "recording.1.jsonl").read_bytes() == content


PROGRAM = """
import warnings
from pathlib import Path
from tests.recorder.test_disk import dense, make, train
model = dense()
with warnings.catch_warnings(record=True) as seen, make(model, Path("recording")) as recorder:
    warnings.simplefilter("always")
    train(model, 6, recorder)
told = [str(one.message) for one in seen if "switched off" in str(one.message)]
print(recorder.off, recorder.steps, len(told), len(recorder.snapshots))
"""


@pytest.mark.parametrize("limit", [100, 2500])
def test_a_limit_of_the_system_on_the_size_of_files_does_not_end_the_training(tmp_path: Path, limit: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    off, steps, told, snapshots = result.stdout.split()
    assert (off, steps, told) == ("True", "6", "1") and int(snapshots) < 7


def test_a_disk_that_does_not_fail_gives_no_warning(tmp_path: Path) -> None:
    model = dense()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with make(model, tmp_path) as recorder:
            train(model, 3, recorder)
    assert not recorder.off and len(recorder.snapshots) == 4

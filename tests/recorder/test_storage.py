"""The recording on disk: append-only, safe to kill, resumable."""

import json
import math

import pytest
import torch

from tangentlab.errors import DataFileError, InputError
from tangentlab.recorder import Recording, TangentRecorder
from tangentlab.recorder.storage import opened, read_rows
from tests.recorder.trainings import STEADY, convolutional, probes, train


def row(step, kind="snapshot", **more):
    return {"kind": kind, "step": step, **more}


def test_rows_come_back_with_numbers_that_json_has_no_name_for(tmp_path):
    journal, _ = opened(tmp_path, resume=False)
    journal.append(row(0, values={"a": math.inf, "b": 0.1 + 0.2, "c": -math.inf}))
    journal.close()
    assert read_rows(tmp_path) == [row(0, values={"a": math.inf, "b": 0.1 + 0.2, "c": -math.inf})]
    assert all(json.loads(line) for line in (tmp_path / "recording.jsonl").read_text().splitlines())


@pytest.mark.parametrize("cut", range(2, 40, 6))
def test_a_line_cut_anywhere_costs_that_line_only_and_the_next_recorder_goes_on_below(tmp_path, cut):
    journal, _ = opened(tmp_path, resume=False)
    for step in range(3):
        journal.append(row(step, values={"loss": 1.5}))
    journal.close()
    path = tmp_path / "recording.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [found["step"] for found in read_rows(path)] == [0, 1]
    again, _ = opened(tmp_path, resume=True)
    again.append(row(1, "resumed"))
    again.append(row(7))
    again.close()
    assert [found["step"] for found in read_rows(path)] == [0, 1, 1, 7]


def test_a_line_that_is_no_row_in_the_middle_is_damage(tmp_path):
    journal, _ = opened(tmp_path, resume=False)
    for step in range(3):
        journal.append(row(step))
    journal.close()
    path = tmp_path / "recording.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for middle in (b"\x00\n", lines[1][:-9] + b"\n", b"[1]\n"):
        path.write_bytes(lines[0] + middle + lines[2])
        with pytest.raises(DataFileError, match="line 2 is not as it was written"):
            read_rows(path)
    path.write_bytes(lines[0] + lines[2])
    assert [found["step"] for found in read_rows(path)] == [0, 2]


def test_steps_that_were_trained_again_count_once(tmp_path):
    journal, _ = opened(tmp_path, resume=False)
    for one in (row(0), row(5), row(9), row(5, "resumed"), row(8)):
        journal.append(one)
    journal.close()
    assert [found["step"] for found in Recording.load(tmp_path).snapshots] == [0, 5, 8]


def test_an_earlier_recording_is_put_aside_not_overwritten(tmp_path):
    for number in range(3):
        recorder = TangentRecorder(convolutional(number), probes(), folder=tmp_path, **STEADY)
        recorder.start()
        recorder.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "recording.1.jsonl",
        "recording.2.jsonl",
        "recording.jsonl",
    ]
    assert all(len(Recording.load(path).snapshots) == 1 for path in tmp_path.iterdir())


def test_every_row_is_on_disk_when_step_returns(tmp_path):
    model = convolutional()
    recorder = TangentRecorder(model, probes(), schedule=2, folder=tmp_path, **STEADY)
    recorder.start()
    for steps in range(1, 5):
        train(model, 1, recorder)
        assert Recording.load(tmp_path).rows == recorder.rows
        assert len(recorder.snapshots) == 1 + steps // 2


def checkpointed(tmp_path, stop: int, steps: int):
    """A training that is killed after ``stop`` steps and goes on from a checkpoint at step 6 in another process's place."""
    torch.manual_seed(1)
    model = convolutional()
    first = TangentRecorder(model, probes(), schedule=3, folder=tmp_path, **STEADY)
    first.start()
    torch.manual_seed(2)
    optimizer = train(model, 6, first)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "recorder": first.state_dict(),
            "random": torch.get_rng_state(),
        },
        tmp_path / "checkpoint.pt",
    )
    train(model, stop, first, begin=6, optimizer=optimizer)  # lost

    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    model = convolutional(seed=77)
    model.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(state["optimizer"])
    second = TangentRecorder(model, probes(), schedule=3, folder=tmp_path, **STEADY)
    second.load_state_dict(state["recorder"])
    torch.set_rng_state(state["random"])
    with second:
        train(model, steps, second, begin=6, optimizer=optimizer)
    return second


def test_a_resumed_recording_holds_the_numbers_of_one_that_was_left_alone(tmp_path):
    resumed = checkpointed(tmp_path / "resumed", 10, 14)
    torch.manual_seed(1)
    model = convolutional()
    whole = TangentRecorder(model, probes(), schedule=3, **STEADY)
    torch.manual_seed(2)
    with whole:
        train(model, 14, whole)
    assert [found["step"] for found in resumed.snapshots] == [0, 3, 6, 9, 12, 14]
    on_disk = Recording.load(tmp_path / "resumed").snapshots
    assert [found["values"] for found in on_disk] == [found["values"] for found in resumed.snapshots]
    for one, two in zip(resumed.snapshots, whole.snapshots, strict=True):
        assert one["scalars"] == two["scalars"]
        assert one["values"] == pytest.approx(two["values"], rel=1e-12, abs=1e-12)


def test_a_checkpoint_holds_nothing_but_tensors_numbers_and_texts(tmp_path):
    recorder = TangentRecorder(convolutional(), probes(), **STEADY)
    recorder.start()
    torch.save(recorder.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["steps"] == 0


def test_an_empty_folder_has_no_recording(tmp_path):
    (tmp_path / "recording.jsonl").write_text("")
    with pytest.raises(InputError, match="no recording"):
        Recording.load(tmp_path)


def test_a_curve_that_was_not_recorded_names_those_that_were():
    recorder = TangentRecorder(convolutional(), probes(), measures=["performance"], **STEADY)
    recorder.start()
    with pytest.raises(InputError, match="train/loss"):
        recorder.recording.curve("train/cka")


class Scalars:
    """What a SummaryWriter would be given."""

    def __init__(self):
        self.points, self.flushes = [], 0

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.points.append((tag, scalar_value, global_step))

    def flush(self):
        self.flushes += 1


def test_scalars_go_to_tensorboard_under_their_names_at_their_steps():
    writer, model = Scalars(), convolutional()
    recorder = TangentRecorder(model, probes(), schedule=2, tensorboard=writer, **STEADY)
    with recorder:
        train(model, 3, recorder)
    assert writer.flushes == 3
    for name in ("train/cka", "test/effective_rank", "complexity", "train/layer/0"):
        found = [(step, value) for tag, value, step in writer.points if tag == f"tangent/{name}"]
        assert found == list(zip(*recorder.recording.curve(name)))


def test_a_real_summary_writer_is_made_in_a_folder(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = TangentRecorder(convolutional(), probes(), tensorboard=tmp_path, **STEADY)
    recorder.start()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    value = events.Scalars("tangent/train/cka")[0]
    assert value.step == 0 and value.value == pytest.approx(recorder.snapshots[0]["values"]["train/cka"], rel=1e-6)


def test_a_checkpoint_that_goes_on_in_another_folder_brings_its_rows_along(tmp_path):
    model = convolutional()
    first = TangentRecorder(model, probes(), schedule=2, folder=tmp_path / "here", **STEADY)
    first.start()
    train(model, 2, first)
    first.close()
    second = TangentRecorder(model, probes(), schedule=2, folder=tmp_path / "there", **STEADY)
    second.load_state_dict(first.state_dict())
    with second:
        train(model, 2, second)
    found = Recording.load(tmp_path / "there")
    assert [row["step"] for row in found.snapshots] == [0, 2, 4] and found.about == first.recording.about


def test_going_on_in_a_folder_that_holds_another_training_by_now_puts_that_one_aside(tmp_path):
    model = convolutional()
    first = TangentRecorder(model, probes(), schedule=2, folder=tmp_path, **STEADY)
    first.start()
    train(model, 4, first)
    state = first.state_dict()
    first.close()
    other = convolutional(7)
    with TangentRecorder(other, probes(), schedule=1, folder=tmp_path, **STEADY) as between:
        train(other, 3, between)
    again = TangentRecorder(model, probes(), schedule=2, folder=tmp_path, **STEADY)
    again.load_state_dict(state)
    with again:
        train(model, 2, again)
    assert Recording.load(tmp_path).rows == again.rows
    assert [row["step"] for row in again.snapshots] == [0, 2, 4, 6]
    assert Recording.load(tmp_path / "recording.1.jsonl").rows == first.rows
    assert Recording.load(tmp_path / "recording.2.jsonl").rows == between.rows


def test_a_run_has_a_name_of_its_own_that_no_random_state_gives(tmp_path):
    torch.manual_seed(0)
    names = set()
    for _ in range(2):
        state = torch.get_rng_state()
        recorder = TangentRecorder(convolutional(), probes(), measures=["performance"], **STEADY)
        torch.set_rng_state(state)
        recorder.start()
        assert torch.equal(torch.get_rng_state(), state)
        names.add(recorder.recording.about["run"])
    assert len(names) == 2


def test_recordings_without_a_name_go_on_as_they_did(tmp_path):
    journal, _ = opened(tmp_path, resume=False)
    for one in (row(0, "start"), row(0), row(3)):
        journal.append(one)
    journal.close()
    again, new = opened(tmp_path, resume=True)
    assert not new
    again.close()
    named, new = opened(tmp_path, resume=True, run="another")
    assert new and len(read_rows(tmp_path / "recording.1.jsonl")) == 3
    named.close()

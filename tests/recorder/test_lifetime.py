"""Starting, counting and finishing: what goes wrong leaves a recorder that can be started again."""

import numpy as np
import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.recorder import Recording, TangentRecorder
from tests.recorder.trainings import STEADY, convolutional, dense, digits_like, probes, train


def doubled(count: int = 8):
    x, y = digits_like(count)
    return x.double(), y


class Stubborn:
    """A measure that fails where it is told to."""

    def __init__(self, *calls: int) -> None:
        self.bad, self.calls = calls, 0

    def __call__(self, view):
        self.calls += 1
        if self.calls in self.bad:
            raise LookupError("boom")
        view.memory.setdefault("call", self.calls)
        return {"first": view.memory["call"]}


def moved_by_one(model, recorder):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    recorder.step()


def test_a_start_that_fails_can_be_tried_again(tmp_path):
    model = dense()
    measures = ["linearity", "complexity", Stubborn(1)]
    recorder = TangentRecorder(model, {"train": doubled()}, schedule=1, measures=measures, folder=tmp_path, **STEADY)
    with pytest.raises(LookupError):
        recorder.start()
    assert recorder.rows == [] and recorder._ledger.closed
    with torch.no_grad():
        model[1].weight *= 2  # the first snapshot is that of the second start
    recorder.start()
    assert [row["kind"] for row in recorder.rows] == ["start", "snapshot"]
    assert recorder.snapshots[0]["values"]["train/ntk_similarity"] == pytest.approx(1.0)
    moved_by_one(model, recorder)
    recorder.finish()
    values, length = recorder.snapshots[-1]["values"], sum(p.numel() for p in model.parameters()) ** 0.5
    assert values["path_length"] == values["distance_from_start"] == pytest.approx(length)
    assert values["complexity"] == pytest.approx(length * recorder.snapshots[0]["values"]["feature_norm"])
    assert [row["kind"] for row in Recording.load(tmp_path).rows] == ["start", "snapshot", "snapshot", "finished"]


def test_a_start_that_fails_after_a_checkpoint_keeps_the_rows(tmp_path):
    recorder = TangentRecorder(dense(), {"train": doubled()}, folder=tmp_path, **STEADY)
    recorder.start()
    recorder.close()
    rows = list(recorder.rows)
    recorder.folder = tmp_path / "recording.jsonl" / "no folder"
    with pytest.raises(OSError):
        recorder.start()
    assert recorder.rows == rows
    recorder.folder = tmp_path
    recorder.start()
    assert recorder.rows[-1]["kind"] == "resumed"


def test_a_strict_recorder_that_raises_at_the_end_is_closed(tmp_path):
    recorder = TangentRecorder(
        dense(), {"train": doubled()}, measures=[Stubborn(2)], folder=tmp_path, strict=True, schedule=[], **STEADY
    )
    recorder.start()
    recorder.step()
    with pytest.raises(LookupError):
        recorder.finish()
    assert recorder._ledger.closed
    with pytest.raises(InputError, match="not running"):
        recorder.step()


def test_a_step_after_the_end_says_that_it_is_over():
    model = convolutional()
    recorder = TangentRecorder(model, probes(), measures=["performance"], **STEADY)
    with recorder:
        train(model, 2, recorder)
    with pytest.raises(InputError, match="finished at step 2"):
        recorder.step()


@pytest.mark.parametrize(
    "scalars",
    [
        {"lr": [0.1]},
        {"loss": torch.randn(8)},
        {"loss": torch.empty(0)},
        {"loss": torch.tensor(1j)},
        {"acc": None},
        {"phase": "warmup"},
        {"lr": np.zeros(2)},
        {"lr": np.array(["a"])},
    ],
)
def test_a_scalar_that_is_none_is_refused_at_its_own_step(scalars):
    recorder = TangentRecorder(dense(), {"train": doubled()}, measures=["performance"], schedule=[50], **STEADY)
    recorder.start()
    with pytest.raises(InputError, match=next(iter(scalars))):
        recorder.step(**scalars)
    assert recorder.steps == 0


def test_numbers_of_all_kinds_are_scalars():
    recorder = TangentRecorder(dense(), {"train": doubled()}, measures=["performance"], schedule=1, **STEADY)
    recorder.start()
    numbers = {
        "a": 1,
        "b": True,
        "c": np.float32(2),
        "d": np.array([3.0]),
        "e": torch.tensor([4.0], requires_grad=True),
    }
    recorder.step(loss=torch.tensor(5), **numbers)
    assert recorder.snapshots[-1]["scalars"] == {"loss": 5, "a": 1, "b": 1, "c": 2, "d": 3, "e": 4}


def test_a_scalar_is_not_read_before_a_snapshot():
    recorder = TangentRecorder(dense(), {"train": doubled()}, measures=["performance"], schedule=[50], **STEADY)
    recorder.start()
    recorder.step(loss=torch.empty((), device="meta"))
    assert recorder.steps == 1


@pytest.mark.parametrize("size", [16, (16,), (16, "all"), (16, 2, 3), "ab", (1.5, 2), (None, 2)])
def test_a_size_that_is_no_pair_is_refused_with_the_way_out(size):
    with pytest.raises(InputError, match=r"size= takes \(examples, outputs\)"):
        TangentRecorder(dense(), {"train": doubled()}, size=size, **STEADY)

"""What a page says where measures failed: nothing is taken from another step in silence."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.recorder import Recording, TangentRecorder
from tangentlab.recorder.changes import MeasureChange, change_of, problems
from tests.recorder.trainings import STEADY, convolutional, digits_like, probes, train

NAN = float("nan")


def recording(values: list[float | None], failing: dict[int, dict[str, str]] | None = None) -> Recording:
    """Snapshots at steps 0, 10, 20 ... with one number each, None where it is missing."""
    start = {"kind": "start", "step": 0, "probes": {"p": 8}}
    rows = [
        {
            "kind": "snapshot",
            "step": 10 * number,
            "scalars": {},
            "values": {} if value is None else {"p/cka": value},
            "problems": (failing or {}).get(10 * number, {}),
        }
        for number, value in enumerate(values)
    ]
    return Recording([start, *rows])


@pytest.mark.parametrize(
    ("values", "first", "last", "remark"),
    [
        ([42.4, None, None], 42.4, None, "missing since step 10; 42.4 at step 0"),
        ([1.0, 2.0, None], 1.0, None, "missing since step 20; 2 at step 10"),
        ([1.0, None, 2.0, None], 1.0, None, "missing since step 30; 2 at step 20"),
        ([1.0, 2.0, NAN, NAN], 1.0, NAN, "not a number since step 20; 2 at step 10"),
        ([1.0, NAN, None], 1.0, None, "missing since step 10; 1 at step 0"),
        ([None, 3.0, 4.0], None, 4.0, "3 at step 10, where it begins"),
        ([None, 3.0, None], None, None, "3 at step 10, where it begins; missing since step 20; 3 at step 10"),
        ([1.0, None, 2.0], 1.0, 2.0, ""),
        ([1.0, math.inf], 1.0, math.inf, ""),
        ([NAN, NAN], NAN, NAN, ""),
        ([5.0], 5.0, 5.0, ""),
    ],
)
def test_only_the_first_and_the_last_snapshot_are_compared(values, first, last, remark) -> None:
    found = change_of(recording(values), "p/cka")
    assert isinstance(found, MeasureChange) and found.remark == remark
    np.testing.assert_equal([found.first, found.last], [first, last])


def test_what_was_never_measured_has_no_change() -> None:
    assert change_of(recording([None, None]), "p/cka") is None


def test_measures_that_fail_together_are_told_together_and_since_when() -> None:
    failing = {step: {"p/spectrum": "broken", "p/alignment": "broken"} for step in (20, 30)}
    failing[10] = {"p/curvature": "once"}
    failing[20] = {**failing[20], "p/own": "twice"}
    failing[0] = {"p/own": "twice"}
    assert problems(recording([1.0] * 4, failing)) == [
        ("p/own", "at steps 0, 20", "twice"),
        ("p/curvature", "at step 10", "once"),
        ("p/spectrum, p/alignment", "since step 20", "broken"),
    ]
    often = {10 * number: {"p/own": "often"} for number in range(9)}
    assert problems(recording([1.0] * 10, often)) == [("p/own", "at 9 snapshots from step 0 to 80", "often")]
    del often[80]
    assert problems(recording([1.0] * 10, often)) == [("p/own", "at steps 0, 10, 20, 30, 40, 50, 60, 70", "often")]


def cells(page: str, quantity: str) -> list[str]:
    (row,) = re.findall(rf"<tr><td>{quantity}</td>(.*?)</tr>", page)
    return re.findall(r"<td[^>]*>(.*?)</td>", row)


def test_the_page_of_a_training_that_diverged_shows_no_value_of_another_step(tmp_path) -> None:
    model = convolutional()
    recorder = TangentRecorder(model, probes(), schedule=1, folder=tmp_path, **STEADY)
    with pytest.warns(RuntimeWarning, match="NaN or infinity"), recorder:
        optimizer = train(model, 1, recorder)
        with torch.no_grad():
            model[7].weight.mul_(NAN)
        train(model, 6, recorder, begin=1, optimizer=optimizer)
    page = recorder.report().read_text()
    assert "From step 0 to step 6" in page
    for quantity in ("effective rank", "largest eigenvalue", "CKA of kernel and labels", "trace of the Fisher matrix"):
        for cell in cells(page, quantity):
            assert cell == "–" or re.match(r".* → missing<small>missing since step 2; .* at step 1</small>", cell)
    for quantity in ("mean loss", "accuracy"):
        for cell in cells(page, quantity):
            assert "→ not a number<small>not a number since step 2" in cell
    assert len(re.findall('class="warning"', page)) == 1 and "failed</b> since step 2: NumericsError" in page
    assert "Grey:" in page


def test_a_page_without_gaps_says_nothing_of_them(tmp_path) -> None:
    recorder = TangentRecorder(convolutional(), probes(), schedule=1, folder=tmp_path, **STEADY)
    with recorder:
        train(recorder.model, 2, recorder)
    page = recorder.report().read_text()
    assert "Grey:" not in page and "missing since" not in page


def test_lines_break_where_a_measure_failed_and_the_axis_goes_on_to_the_last_snapshot() -> None:
    def fragile(view):
        if view.step in (2, 5, 6):
            raise ValueError("broken")
        return {"loss": 1.0 + view.step}

    model = convolutional()
    recorder = TangentRecorder(model, {"train": digits_like(8)}, schedule=1, measures=[fragile], **STEADY)
    with pytest.warns(RuntimeWarning, match="broken"), recorder:
        train(model, 6, recorder)
    panel = next(picture.figure for picture in recorder.plot() if picture.name == "training").axes[0]
    (line,) = panel.get_lines()
    np.testing.assert_equal(line.get_xdata(), list(range(7)))
    np.testing.assert_equal(line.get_ydata(), [1.0, 2.0, NAN, 4.0, 5.0, NAN, NAN])
    bands = [(band.get_x(), band.get_x() + band.get_width()) for band in panel.patches]
    assert bands == [(1, 3), (4, 6)] and panel.get_xlim()[1] >= 6


@pytest.mark.parametrize("outputs", [1, 3], ids=["binary", "classes"])
def test_outputs_that_are_not_numbers_predict_nothing(outputs: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, outputs))
    x, y = digits_like(20)
    labels = (y > 0).long() if outputs == 1 else y
    recorder = TangentRecorder(model, {"p": (x, labels)}, schedule=1, measures=["performance"], **STEADY)
    before = model(x).argmax(1) if outputs > 1 else (model(x)[:, 0] > 0).long()
    with recorder:
        with torch.no_grad():
            model[1].bias[0] = NAN
        recorder.step()
    np.testing.assert_equal(recorder.recording.track("p/accuracy"), [float((before == labels).double().mean()), NAN])

"""What the recorder may cost, by an artificial clock: nothing here depends on the machine."""

import math

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.recorder import TangentRecorder
from tangentlab.recorder.budget import Budget, Size, SnapshotCost, ladder
from tangentlab.recorder.clock import Clock
from tests.recorder.trainings import dense, digits_like


class Watch:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def recorded(steps, *, step_seconds, snapshot_seconds, total=True, **options):
    """A training in which an update takes so long, and a snapshot so long per example and output."""
    watch, model = Watch(), dense()
    x, y = digits_like(40)
    recorder = TangentRecorder(
        model,
        {"train": (x.double(), y)},
        clock=watch,
        total_steps=steps if total else None,
        measures=["performance"],
        verbose=False,
        **options,
    )
    look = recorder._observer.look

    def slow(step, size, **kwargs):
        sight = look(step, size, **kwargs)
        seconds = snapshot_seconds * size.examples * size.outputs
        watch.time += seconds
        sight.seconds = {"kernels": seconds}
        return sight

    recorder._observer.look = slow
    recorder._observer.planned_seconds = lambda size: 1e-3 * size.examples * size.outputs
    with recorder:
        for _ in range(steps):
            watch.time += step_seconds
            recorder.step()
    return recorder


def test_sizes_go_down_in_halves_of_outputs_then_of_examples_to_a_floor():
    assert ladder(Size(100, 10)) == [
        *(Size(100, c) for c in (10, 5, 3, 2, 1)),
        Size(50, 1),
        Size(25, 1),
    ]
    assert ladder(Size(8, 1)) == [Size(8, 1)]


def test_a_cheap_recorder_keeps_its_size_and_takes_every_snapshot():
    recorder = recorded(200, step_seconds=1.0, snapshot_seconds=0.001, free_seconds=0.0)
    assert [row["step"] for row in recorder.snapshots] == [0, 5, 8, 14, 25, 42, 71, 121, 200]
    assert {(row["examples"], row["outputs"]) for row in recorder.snapshots} == {(40, 3)}
    assert not recorder.recording.events
    assert recorder.overhead == pytest.approx(9 * 0.12 / 200)


def test_an_expensive_one_shrinks_once_stays_below_the_limit_and_says_so():
    recorder = recorded(300, step_seconds=0.1, snapshot_seconds=0.0025, free_seconds=0.0, max_overhead=0.1, schedule=30)
    events = recorder.recording.events
    assert [event["kind"] for event in events] == ["resized"]
    assert events[0]["from"] == [40, 3] and events[0]["to"] == [40, 2] and "10%" in events[0]["text"]
    sizes = [(row["examples"], row["outputs"]) for row in recorder.snapshots]
    assert sizes[0] == (40, 3) and set(sizes[1:]) == {(40, 2)} and len(sizes) == 11
    assert recorder.overhead == pytest.approx((0.3 + 10 * 0.2) / 30)


@pytest.mark.parametrize("cost", [0.0005, 0.002, 0.008, 0.03])
@pytest.mark.parametrize("total", [True, False])
def test_the_limit_holds_whatever_a_snapshot_costs_but_for_the_first_and_the_last(cost, total):
    recorder = recorded(1000, step_seconds=0.1, snapshot_seconds=cost, free_seconds=0.0, max_overhead=0.1, total=total)
    steps = [row["step"] for row in recorder.snapshots]
    assert steps[0] == 0 and steps[-1] == 1000
    first, last = recorder.snapshots[0]["seconds"], recorder.snapshots[-1]["seconds"]
    assert recorder._budget.spent <= max(0.1 * 100, first + last) + 1e-6


def test_what_does_not_fit_at_all_is_left_out_and_noted_but_for_the_first_and_the_last():
    recorder = recorded(50, step_seconds=0.01, snapshot_seconds=0.1, free_seconds=0.0, schedule=10)
    assert [row["step"] for row in recorder.snapshots] == [0, 50]
    assert [event["kind"] for event in recorder.recording.events].count("skipped") == 4


def test_a_schedule_that_is_too_dense_is_thinned_out_to_what_training_has_paid_for():
    recorder = recorded(2000, step_seconds=0.1, snapshot_seconds=0.01, free_seconds=0.0, schedule=10)
    smallest = 0.01 * 20
    assert recorder._budget.spent <= 0.1 * 200 + smallest
    steps = [row["step"] for row in recorder.snapshots]
    assert len(steps) > 0.7 * 0.1 * 200 / smallest
    gaps = [later - sooner for sooner, later in zip(steps[5:], steps[6:])]
    assert max(gaps) <= 30


def test_free_seconds_leave_a_short_training_alone():
    recorder = recorded(50, step_seconds=0.01, snapshot_seconds=0.001, free_seconds=5.0, schedule=10)
    assert [row["step"] for row in recorder.snapshots] == [0, 10, 20, 30, 40, 50]
    assert not recorder.recording.events


def test_a_size_that_was_asked_for_is_not_shrunk_unless_a_limit_was_asked_for_as_well():
    options = {"step_seconds": 0.01, "snapshot_seconds": 0.1, "free_seconds": 0.0, "schedule": 10}
    asked = recorded(50, size=(30, 3), **options)
    assert len(asked.snapshots) == 6 and {row["outputs"] for row in asked.snapshots} == {3}
    limited = recorded(50, size=(30, 3), max_overhead=0.1, **options)
    assert len(limited.snapshots) == 2


def test_a_smaller_snapshot_is_a_part_of_the_larger_one():
    """The curves go on: eigenvalues of the smaller kernel interlace, since it is a block of the larger."""
    model = dense()
    x, y = digits_like(40)
    recorder = TangentRecorder(model, {"train": (x.double(), y)}, verbose=False, seed=4)
    seen = {}

    def keep(view):
        seen[view.kernel.sizes[:2]] = view.kernel.data
        return {}

    recorder._observer.measures = {"keep": keep}
    for size in (Size(40, 3), Size(40, 2), Size(20, 1)):
        recorder._observer.look(0, size, trace=False, strict=True)
    whole = seen[(3, 40)]
    for (outputs, examples), part in seen.items():
        torch.testing.assert_close(part, whole[:outputs, :examples, :outputs, :examples])


def test_costs_are_scaled_by_the_plan_and_the_rest_by_the_examples():
    budget = Budget(0.1, 0.0)
    budget.cost = SnapshotCost(Size(100, 10), kernels=8.0, rest=2.0)
    planned = {Size(100, 10): 4.0, Size(50, 5): 0.5}
    assert budget.predicted(Size(50, 5), planned.__getitem__) == 8.0 / 8 + 1.0
    assert budget.predicted(Size(100, 10), planned.__getitem__) == 10.0


def test_a_budget_goes_on_after_a_checkpoint():
    budget = Budget(0.1, 0.0)
    budget.lap(2.0)
    budget.lap(4.0)
    budget.spent, budget.cost = 0.5, SnapshotCost(Size(9, 2), 1.0, 0.25)
    other = Budget(0.1, 0.0)
    other.load_state_dict(budget.state_dict())
    assert other.allowance(2, 10, 3) == budget.allowance(2, 10, 3) == pytest.approx((0.1 * (6 + 8 * 3) - 0.5) / 3)
    assert other.cost == budget.cost and other.overhead == budget.overhead


@pytest.mark.parametrize(
    "options", [{"max_overhead": 0.0}, {"max_overhead": -1}, {"free_seconds": -1}, {"size": (0, 3)}]
)
def test_impossible_budgets_are_refused(options):
    with pytest.raises(InputError):
        TangentRecorder(dense(), {"train": digits_like(4)}, **options)


def test_no_limit_is_infinite():
    assert recorded(3, step_seconds=0.1, snapshot_seconds=1.0, max_overhead=math.inf, schedule=1).overhead > 100


def test_time_inside_something_else_counts_only_as_itself():
    watch = Watch()
    clock = Clock(watch)
    with clock.on("outer"):
        watch.time += 1
        with clock.on("inner"):
            watch.time += 10
        watch.time += 100
    assert clock.seconds == {"outer": 101, "inner": 10}


def test_a_network_that_has_diverged_can_still_be_budgeted():
    model = dense()
    x, y = digits_like(40)
    recorder = TangentRecorder(
        model, {"train": (x.double(), y)}, verbose=False, free_seconds=0.0, max_overhead=1e-9, schedule=1
    )
    recorder.start()
    with torch.no_grad():
        model[1].weight.fill_(float("nan"))
    for _ in range(3):
        recorder.step()
    assert [event["kind"] for event in recorder.recording.events] == ["skipped"] * 3
    sizes = [Size(40, 3), Size(20, 1)]
    large, small = (recorder._observer.planned_seconds(size) for size in sizes)
    assert small == pytest.approx(large / 6)

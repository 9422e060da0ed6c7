"""When snapshots are due."""

import pytest

from tangentlab.errors import InputError
from tangentlab.experiments import geometric_steps
from tangentlab.recorder import At, Every, Geometric, When
from tangentlab.schedule import schedule_of


@pytest.mark.parametrize(("first", "ratio"), [(5.0, 1.7), (5.0, 1.15), (0.4, 1.01), (1.0, 2.0)])
def test_geometric_steps_are_those_of_the_experiments(first, ratio):
    schedule = Geometric(first, ratio)
    expected = [step for step in geometric_steps(5000, first, ratio) if 0 < step < 5000]
    assert schedule.between(0, 4999) == expected
    assert [step for step in range(1, 5000) if schedule.due(step)] == expected


def test_the_default_has_at_least_twelve_snapshots_in_a_thousand_steps_with_the_first_and_the_last():
    assert len(schedule_of(None).between(0, 999)) + 2 >= 12


@pytest.mark.parametrize(
    ("value", "kind", "steps"),
    [
        (30, Every, [30, 60, 90]),
        ([7, 3, 3, 200], At, [3, 7]),
        (range(10, 40, 10), At, [10, 20, 30]),
        (lambda step: step % 50 == 1, When, [1, 51]),
        (Every(99), Every, [99]),
        (None, Geometric, [5, 8, 14, 25, 42, 71]),
    ],
)
def test_a_schedule_is_made_of_what_one_would_write(value, kind, steps):
    schedule = schedule_of(value)
    assert isinstance(schedule, kind)
    assert schedule.between(0, 100) == steps
    assert schedule.between(steps[0], 100) == steps[1:]
    assert all(schedule.due(step) == (step in steps) for step in range(1, 101))


@pytest.mark.parametrize("value", ["often", 1.5, True, 0, -3])
def test_nonsense_is_refused(value):
    with pytest.raises(InputError):
        schedule_of(value)


def test_geometric_schedules_that_stand_still_are_refused():
    with pytest.raises(InputError, match="ratio > 1"):
        Geometric(5, 1.0)

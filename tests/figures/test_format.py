"""Numbers and durations as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.figures.format import about, chapter_order, duration, number, plain_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (0.5, "0.5"),
        (-0.25, "−0.25"),
        (1234.5678, "1,235"),
        (0.0012345, "0.001234"),
        (2.22e-16, "2.22e−16"),
        (5e7, "5e7"),
        (None, "–"),
        (float("nan"), "not a number"),
        (float("-inf"), "−∞"),
        ("Infinity", "∞"),
    ],
)
def test_a_number_is_short_and_readable(value: object, text: str):
    assert number(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_shown_number_is_within_a_percent_of_the_real_one(value: float):
    shown = float(number(value).replace("−", "-").replace(",", ""))
    assert abs(shown - value) <= 0.01 * abs(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "< 0.1 s"), (9.99, "10.0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h 0 min")],
)
def test_a_duration_is_short_and_readable(seconds: float, text: str):
    assert duration(seconds) == text


def test_values_are_written_as_one_would_type_them():
    assert plain_text([1, 2.5, None, True, "x"]) == "[1, 2.5, null, true, x]"


def test_chapters_sort_by_their_number():
    assert sorted(["10 Limits", "2 Geometry", "Other"], key=chapter_order) == ["2 Geometry", "10 Limits", "Other"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (6, "6 s"), (59.4, "59 s"), (90, "1.5 min"), (540, "9 min"), (5400, "1.5 h"), (1.2e6, "14 days")],
)
def test_an_expected_time_has_one_unit(seconds: float, text: str):
    assert about(seconds) == text

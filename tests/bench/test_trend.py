"""Trends: one measure over a ladder of a setting, and whether it goes towards the paper."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tangentlab.bench.errors import RunError, SettingError
from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.runner import execute
from tangentlab.bench.trend import Trend, climb, draw_trends, ladder, read_trends, write_trend
from tangentlab.figures.lint import complaints
from tangentlab.figures.pages import figures_of

RISING = ((1.0, 1.1, 1.2), (2.0, 2.2, 2.1), (3.1, 3.0, 3.2))
TREND = Trend("toy", "t-1", "value", ">=", 10.0, "paper", "width", (8.0, 16.0, 64.0), (0, 1, 2), RISING)


@pytest.mark.parametrize(
    ("changes", "direction"),
    [
        ({}, "towards the claim"),
        ({"values": RISING[::-1]}, "away from the claim"),
        ({"relation": "<=", "threshold": 0.0}, "away from the claim"),
        ({"values": ((1.0, 3.0, 2.0), (2.0, 2.0, 2.0), (3.0, 1.0, 2.0))}, "neither towards nor away"),
        ({"threshold": 3.0}, "as far as the claim"),
        ({"values": ((1.0,), (2.0,), (3.0,)), "seeds": (0,)}, "towards the claim in one seed"),
    ],
)
def test_a_trend_goes_towards_the_claim_when_the_gap_shrinks_beyond_the_spread_over_seeds(
    changes: dict, direction: str
):
    assert replace(TREND, **changes).direction().startswith(direction)


def test_the_slopes_are_those_of_least_squares():
    expected = [np.polyfit(range(3), 10 - np.array(RISING)[:, seed], 1)[0] for seed in range(3)]
    assert TREND.slopes() == pytest.approx(expected)


def test_a_trend_is_drawn_with_the_papers_number_as_a_line_and_comes_back_from_its_file(tmp_path: Path):
    picture = TREND.picture()
    assert complaints(picture.figure) == [] and "towards the claim" in picture.caption
    (axes,) = picture.figure.axes
    assert any(np.allclose(line.get_ydata(), 10.0) for line in axes.lines)
    write_trend(TREND, tmp_path)
    write_trend(replace(TREND, setting="depth"), tmp_path)
    draw_trends(tmp_path)
    assert TREND in list(read_trends(tmp_path)) and len(figures_of(tmp_path, "figure")) == 2


def test_a_ladder_is_climbed_by_running_every_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ENVIRONMENT, "tests.experiments.toys")
    configs = ladder("toy-training", "toy-learns", "width", [2, 4], "smoke", 2)
    trend = climb(configs, "toy-learns", "width", lambda config: execute(config, tmp_path, inline=True, resume=True))
    assert trend.rungs == (2.0, 4.0) and np.shape(trend.values) == (2, 2) and trend.seeds == (0, 1)
    with pytest.raises(SettingError, match="no claim 'toy-lerns'"):
        ladder("toy-training", "toy-lerns", "width", [2, 4], "smoke", 2)
    with pytest.raises(SettingError, match="two rungs"):
        ladder("toy-training", "toy-learns", "width", [2], "smoke", 2)
    with pytest.raises(SettingError, match="is not a number"):
        ladder("toy-training", "toy-learns", "hold", ["a", "b"], "smoke", 2)
    silent = ladder("toy-claims", "toy-b", "fail_seed", [7, 8], "smoke", 1)
    silent = [replace(config, parameters={**config.parameters, "mode": "reason"}) for config in silent]
    with pytest.raises(RunError, match="cannot be measured: the moon is full"):
        climb(silent, "toy-b", "fail_seed", lambda config: execute(config, tmp_path, inline=True))

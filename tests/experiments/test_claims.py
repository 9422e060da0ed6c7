"""Verdicts follow from what the seeds measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.bench.claims import judge
from tangentlab.experiments import Claim, Status

CLAIM = Claim("c-1", "At least one.", "value", ">=", 1.0, "p. 1")
SEEDS = (0, 1, 2)


def verdict(*values: float, **options):
    return judge(CLAIM, "desk", dict(enumerate(values)), SEEDS[: len(values)] or SEEDS, **options)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((1.0, 1.0, 2.0), Status.HELD),
        ((0.9, 2.0, 2.0), Status.MIXED),  # true in the mean, not in every seed
        ((0.0, 0.0, 1.5), Status.MIXED),  # true in one seed, not in the mean
        ((0.9, 0.5, 0.0), Status.NOT_HELD),
        ((math.nan, 2.0, 2.0), Status.MIXED),
        ((math.nan, math.nan, math.nan), Status.NOT_HELD),
        ((math.inf, 2.0, 2.0), Status.HELD),
    ],
)
def test_held_means_true_in_the_mean_and_in_every_seed(values: tuple[float, ...], status: Status):
    assert verdict(*values).status == status


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.sampled_from(["<=", ">=", "<", ">"]), st.floats(-10, 10)
)
def test_a_claim_and_its_opposite_are_never_both_held(values: list[float], relation: str, threshold: float):
    opposite = {"<=": ">", ">=": "<", "<": ">=", ">": "<="}[relation]
    seeds = range(len(values))
    found = [
        judge(Claim("c", "s", "m", sign, threshold, "p"), "desk", dict(enumerate(values)), seeds).status
        for sign in (relation, opposite)
    ]
    assert found.count(Status.HELD) <= 1
    if len(values) == 1:
        assert sorted(found) == sorted([Status.HELD, Status.NOT_HELD])


def test_a_claim_is_not_tested_below_its_scale_but_keeps_what_was_measured():
    result = judge(CLAIM, "smoke", {0: 5.0}, (0,))
    assert result.status == Status.NOT_TESTED and result.reason == "needs the scale desk or paper" and result.mean == 5


def test_a_value_that_no_seed_or_not_every_seed_measured_is_missing():
    assert judge(CLAIM, "desk", {}, SEEDS).reason == "never measured by any seed"
    partly = judge(CLAIM, "desk", {0: 2.0, 2: 2.0}, SEEDS)
    assert partly.status == Status.MISSING and partly.reason == "never measured by seed 1"


def test_in_an_unfinished_run_an_absent_value_is_no_fault():
    assert judge(CLAIM, "desk", {0: 2.0}, SEEDS, ended=False).status == Status.NOT_TESTED
    assert judge(CLAIM, "desk", dict.fromkeys(SEEDS, 2.0), SEEDS, ended=False).status == Status.HELD


def test_mean_and_spread_are_those_of_the_seeds():
    result = verdict(1.0, 2.0, 3.0)
    assert result.mean == 2.0 and result.spread == 1.0
    assert verdict(1.0).spread is None


@pytest.mark.parametrize(
    "fault", [{"id": "no spaces"}, {"id": ""}, {"relation": "=="}, {"threshold": math.nan}, {"threshold": math.inf}]
)
def test_a_claim_that_cannot_be_judged_is_refused(fault: dict):
    good = {"id": "c", "sentence": "s", "measured": "m", "relation": "<", "threshold": 1.0, "place": "p"}
    with pytest.raises(ValueError, match="claim"):
        Claim(**{**good, **fault})

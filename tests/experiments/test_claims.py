"""Verdicts follow from what the seeds measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.bench.verdicts import Measured, interval, judge
from tangentlab.experiments import Change, Claim, Precondition, Status

CLAIM = Claim("c-1", "At least one.", "value", ">=", 1.0, "p. 1")
RISES = Claim("c-2", "It rises.", "end minus start", ">", 0.0, "p. 2", origin="paper", quote="it rises", bound="sign")
FITTED = Precondition("fitted", "training accuracy", ">=", 0.9)
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
    ("values", "status"),
    [
        ((1.0, 1.1, 1.2), Status.HELD),
        ((0.1, 1.0, 2.0), Status.MIXED),  # above 0 in every seed, and the interval holds 0
        ((-1.0, -1.1, -1.2), Status.NOT_HELD),
        ((0.0, 0.0, 0.0), Status.NOT_HELD),  # nothing at all
        ((math.inf, 1.0, 1.0), Status.HELD),  # beyond every interval: judged seed by seed
        ((math.nan, 1.0, 1.0), Status.MIXED),
    ],
)
def test_a_sign_is_judged_by_the_interval_over_seeds(values: tuple[float, ...], status: Status):
    assert judge(RISES, "desk", dict(enumerate(values)), SEEDS).status == status


def test_the_interval_is_students_and_that_of_a_ratio_is_of_its_logarithm():
    low, high = interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low, high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), rel=1e-6)
    values = [0.5, 1.0, 8.0]
    logs = interval([math.log(value) for value in values]) or (0, 0)
    assert interval(values, ratio=True) == pytest.approx((math.exp(logs[0]), math.exp(logs[1])))
    assert interval([1.0]) is None and interval([1.0, math.inf]) is None and interval([1.0, -1.0], ratio=True) is None


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_a_sign_and_its_opposite_are_never_both_held_and_are_mixed_together(values: list[float]):
    falls = Claim("c-3", "It falls.", "end minus start", "<", 0.0, "p", origin="paper", quote="falls", bound="sign")
    found = [judge(claim, "desk", dict(enumerate(values)), range(len(values))).status for claim in (RISES, falls)]
    assert found.count(Status.HELD) <= 1
    assert (found[0] == Status.HELD) <= (found[1] == Status.NOT_HELD)


def test_one_seed_tells_no_sign_unless_nothing_is_random():
    alone = judge(RISES, "desk", {0: 1.0}, (0,))
    assert (
        alone.status == Status.NOT_TESTED
        and alone.reason == "one seed leaves no interval; its value is on the claimed side"
    )
    assert judge(RISES, "desk", {0: -1.0}, (0,)).reason.endswith("not on the claimed side")
    assert judge(RISES, "desk", {0: 1.0}, (0,), random=False).status == Status.HELD


def measured(accuracies: tuple[float, ...], values: tuple[float, ...]) -> Measured:
    found = Measured()
    for seed, (accuracy, value) in enumerate(zip(accuracies, values, strict=True)):
        found.add("fitted", seed, accuracy)
        found.add("c-4", seed, value)
    return found


NEEDS = Claim("c-4", "s", "m", ">=", 1.0, "p", requires=(FITTED,))


def test_a_seed_that_does_not_meet_a_precondition_is_left_out_and_does_not_erase_the_others():
    found = measured((0.95, 0.3, 0.9), (2.0, -5.0, 1.0)).verdict(NEEDS, "desk", SEEDS)
    assert found.status == Status.HELD and found.values == {0: 2.0, 2: 1.0}
    assert found.left_out == {1: "training accuracy: 0.3, needed ≥ 0.9"}


def test_a_claim_whose_precondition_no_seed_meets_is_not_tested_with_the_reason():
    found = measured((0.1, 0.1, math.nan), (2.0, 2.0, 2.0)).verdict(NEEDS, "desk", SEEDS)
    assert (
        found.status == Status.NOT_TESTED
        and "training accuracy: 0.1, needed ≥ 0.9" in found.reason
        and not found.values
    )


def test_a_precondition_that_a_seed_never_measured_is_not_taken_for_met():
    found = measured((0.95, 0.95), (2.0, 2.0))
    found.add("c-4", 2, 2.0)
    verdict = found.verdict(NEEDS, "desk", SEEDS)
    assert verdict.status == Status.MISSING and verdict.reason == "never measured by seed 2"
    assert found.verdict(NEEDS, "desk", SEEDS, ended=False).status == Status.NOT_TESTED
    found.add("fitted", 2, "it was asleep")
    assert found.verdict(NEEDS, "desk", SEEDS).left_out == {2: "it was asleep"}


def test_a_reason_of_one_seed_leaves_the_others_to_decide():
    found = Measured()
    found.add("c-1", 0, 2.0)
    found.add("c-1", 1, "the moon is full")
    assert found.verdict(CLAIM, "desk", (0, 1)).status == Status.HELD
    assert found.verdict(CLAIM, "desk", (0, 1, 2)).status == Status.MISSING
    found.add("c-1", 1, 0.0)
    assert found.verdict(CLAIM, "desk", (0, 1)).status == Status.MIXED and not found.reasons["c-1"]


@pytest.mark.parametrize(
    "fault",
    [
        {"origin": "paper"},  # without its words
        {"quote": "words"},  # words of whom?
        {"origin": "theirs"},
        {"bound": "paper"},  # of a claim of ours
        {"bound": "sign", "relation": ">="},
    ],
)
def test_a_claim_that_does_not_say_whose_it_is_is_refused(fault: dict):
    good = {"id": "c", "sentence": "s", "measured": "m", "relation": "<", "threshold": 1.0, "place": "p"}
    with pytest.raises(ValueError, match="Claim c"):
        Claim(**{**good, **fault})


def test_a_line_of_history_has_a_date_and_a_reason():
    with pytest.raises(ValueError, match="needs a date"):
        Change("yesterday", "> 1", "it failed")
    with pytest.raises(ValueError, match="what was and why"):
        Change("2026-01-31", "> 1", "")


@pytest.mark.parametrize(
    "fault", [{"id": "no spaces"}, {"id": ""}, {"relation": "=="}, {"threshold": math.nan}, {"threshold": math.inf}]
)
def test_a_claim_that_cannot_be_judged_is_refused(fault: dict):
    good = {"id": "c", "sentence": "s", "measured": "m", "relation": "<", "threshold": 1.0, "place": "p"}
    with pytest.raises(ValueError, match="Claim"):
        Claim(**{**good, **fault})

"""Networks that nobody thought of: the first cases of the trial, which `make trial` takes further."""

import pytest

from tests.trial.case import run

AT_ONCE = 25


@pytest.mark.parametrize("first", range(0, 300, AT_ONCE))
def test_cases_of_the_trial_are_exact_or_refused_in_words(first: int) -> None:
    found = {number: run(0, number) for number in range(first, first + AT_ONCE)}
    assert not {number: (one.outcome, one.detail) for number, one in found.items() if one.failed}

"""The page of what became of the claims: everything that differs is told, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from scripts.claims_changes import changed, render, summaries_now, summaries_of, tallies

THEN = {"id": "c-1", "sentence": "It rises.", "place": "p. 1", "measured": "end", "relation": ">=", "threshold": 0.1}
THEN = {**THEN, "status": "mixed", "values": {"0": 1.0}, "reason": ""}
NOW = {**THEN, "origin": "paper", "bound": "ours", "history": []}


def summary(*claims: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"chapter": "2 Geometry of function space", "claims": list(claims), "retired": [], **facts}


def test_a_claim_that_is_as_it_was_is_not_listed_even_with_other_values():
    assert changed({"c-1": THEN}, summary({**NOW, "values": {"0": 2.0}})) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sentence": "It falls."}, "reworded from “It rises.” to “It falls.”"),
        ({"place": "p. 2"}, "its place was p. 1 and is p. 2"),
        ({"measured": "start"}, "another quantity, end before and start now"),
        ({"threshold": 0.2}, r"\>= 0.1 in every seed before, \>= 0.2 in every seed now"),
        (
            {"bound": "sign", "relation": ">", "threshold": 0.0},
            r"\>= 0.1 in every seed before, \> 0 by its interval now",
        ),
        ({"status": "held"}, "mixed before, held now"),
        ({"status": "not tested", "reason": "flat"}, "mixed before, not tested now (flat)"),
    ],
)
def test_what_differs_is_told_with_the_reason_of_the_history(change: dict[str, Any], told: str):
    line = {"date": "2026-01-31", "was": "x", "why": "It was a guess."}
    (found,) = changed({"c-1": THEN}, summary({**NOW, **change, "history": [line]}))
    assert found == f"`c-1` (paper): {told}. It was a guess."


def test_claims_that_came_were_given_up_or_changed_hands_are_told():
    gone = {"id": "c-0", "origin": "ours", "sentence": "It was.", "why": "It is a precondition."}
    after = summary({**NOW, "id": "c-2"}, {**NOW, "origin": "ours"}, retired=[gone])
    lines = changed({"c-0": THEN, "c-1": {**NOW}}, after)
    assert lines[0] == "`c-0` is given up: It was. It is a precondition."
    assert lines[1] == "`c-2` is new (paper): It rises. mixed."
    assert lines[2] == "`c-1` (ours): a claim of the paper before."


def test_the_tallies_count_then_by_the_origin_of_now():
    table = tallies({"e": summary(THEN)}, {"e": summary({**NOW, "status": "held"}, {**NOW, "id": "c-2"})})
    assert "| then, of the paper | 0 | 1 | 0 | 0 | 1 |" in table
    assert "| the same claims now, of the paper | 1 | 0 | 0 | 0 | 1 |" in table
    assert "| all claims now, of the paper | 1 | 1 | 0 | 0 | 2 |" in table


def test_the_page_is_made_from_a_commit_and_the_working_tree():
    if not (Path(__file__).parents[1] / ".git").exists():
        pytest.skip("there is no history here")
    page = render("HEAD", summaries_of("HEAD"), summaries_now())
    assert page.startswith("# How the claims changed") and "| then, of the paper |" in page

"""The claims of the package's own experiments: who made them, in words and at places that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

from tangentlab.bench.claims import Claim
from tangentlab.bench.summary import read_summary
from tangentlab.experiments import all_experiments

PAPERS = Path(__file__).parents[2].parent / "shared" / "papers"
RESULTS = Path(__file__).parents[2] / "results" / "desk"
FROM_PAPERS = [
    pytest.param(claim, id=claim.id)
    for kind in all_experiments()
    if kind.__module__.startswith("tangentlab.")
    for claim in kind.claims
    if claim.origin == "paper"
]
WORDS = ("origin", "sentence", "quote", "place", "measured", "relation", "threshold", "bound")
needs_papers = pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' texts are not at hand")


@cache
def texts() -> list[str]:
    """The papers, without emphasis and with single spaces."""
    return [plain(file.read_text(encoding="utf-8")) for file in sorted(PAPERS.glob("*.txt"))]


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("*", "")).lower()


def sources(claim: Claim) -> list[str]:
    return [text for text in texts() if plain(claim.quote) in text]


@needs_papers
@pytest.mark.parametrize("claim", FROM_PAPERS)
def test_the_words_of_a_claim_of_a_paper_stand_in_a_paper(claim: Claim):
    assert sources(claim), claim.quote


@needs_papers
@pytest.mark.parametrize("claim", FROM_PAPERS)
def test_a_quote_is_more_than_a_word_and_does_not_leave_its_negation_out(claim: Claim):
    """Words that follow a "not" say the opposite when they stand alone."""
    assert len(claim.quote.split()) >= 3, claim.quote
    before = [text.partition(plain(claim.quote))[0].rstrip() for text in sources(claim)]
    assert not any(re.search(r"(\bnot|n't|n’t|\bnever|\bno|\bwithout|\bhardly|\bfails? to)$", text) for text in before)


@needs_papers
@pytest.mark.parametrize("claim", FROM_PAPERS)
def test_the_places_of_a_claim_of_a_paper_exist_there(claim: Claim):
    """Sections and equations as they are numbered; figures by the list of figures, or by their captions in an appendix."""
    place = claim.place.removeprefix("linearized networks, ").lower()
    bare = re.sub(r"(figures?|eq\.|proposition)[^,;]*", "", place)
    sections = re.findall(r"(?<![\w.])(?:§)?((?:\d|[a-e])(?:\.\d+)+|[a-e](?=[,;]|$))", bare)
    figures = [
        name for text in re.findall(r"figures? ([^,;]*)", place) for name in re.findall(r"[a-e]?\d?\.?\d+", text)
    ]
    equations = re.findall(r"(?:eq\.|proposition) ([\d.]+\d)", place)
    assert sections or figures or equations or place.startswith("prologue") or "table" in place or "slide" in place, (
        place
    )
    for text in sources(claim):
        missing = [name for name in sections if not re.search(rf"(?<![\w.]){re.escape(name)}\.? [a-z]", text)]
        missing += [name for name in equations if f"({name})" not in text and f"proposition {name}" not in text]
        for name in figures:
            short = name.rpartition(".")[2]
            if not re.search(rf"(?<![\w.]){re.escape(name)} ?[(a-z]|figure {short}[.:]", text):
                missing.append(f"figure {name}")
        if not missing:
            return
    raise AssertionError(f"{claim.place}: {missing}")


def test_a_place_that_does_not_exist_and_half_a_quote_would_be_found():
    claim = Claim("c", "s", "m", ">", 0.0, "§6.2.3", origin="paper", quote="insights from linearization")
    if not PAPERS.is_dir():
        pytest.skip("the papers' texts are not at hand")
    for place in ("§6.2.3", "§6.4.3", "B.4", "§6.3.2, figure 6.19", "eq. 9.9.9"):
        with pytest.raises(AssertionError):
            test_the_places_of_a_claim_of_a_paper_exist_there(Claim(**{**claim.__dict__, "place": place}))
    for quote in ("use properly estimated variances along these axes", "poly-noise"):
        with pytest.raises(AssertionError):
            test_a_quote_is_more_than_a_word_and_does_not_leave_its_negation_out(
                Claim(**{**claim.__dict__, "quote": quote})
            )


@pytest.mark.parametrize("kind", [kind for kind in all_experiments() if kind.__module__.startswith("tangentlab.")])
def test_a_committed_result_is_judged_by_the_claims_of_the_code(kind):
    committed = read_summary(RESULTS / kind.name)
    if committed is None:
        pytest.skip(f"no desk result of {kind.name} is committed")
    told = {claim["id"]: {key: claim[key] for key in WORDS} for claim in committed["claims"]}
    today = [claim for claim in kind.claims if not claim.retired]
    assert told == {claim.id: {key: getattr(claim, key) for key in WORDS} for claim in today}, (
        "run `tangentlab judge --all`"
    )

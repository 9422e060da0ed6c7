"""Models of transformers, timm, peft and torch_geometric: everything exact to plain autograd, or refused in words."""

import json

import pytest

from tests.trial.summary import PAGE, page
from tests.zoo_models.__main__ import RESULT, table
from tests.zoo_models.all import SPECIMENS
from tests.zoo_models.base import Specimen
from tests.zoo_models.judge import ABSENT, EXACT, OPERATIONS, Subject, judged

WANTED = "BERT GPT-2 Llama T5 ViT Mamba Mixtral Whisper Switch".split()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("one", SPECIMENS, ids=str)
def test_every_operation_is_exact_or_refused_in_words(one: Specimen) -> None:
    if not one.installed:
        pytest.skip(f"{one.package} is not installed here: `make test-models` has an environment of its own")
    subject = Subject(one)
    verdicts = [judged(subject, name) for name in OPERATIONS]
    assert not [verdict for verdict in verdicts if verdict.failed]


@pytest.mark.skipif(not RESULT.exists(), reason="no run is committed")
def test_the_committed_run_has_every_specimen_and_no_failure() -> None:
    result = json.loads(RESULT.read_text())
    found = {(row["package"], row["model"]): row["operations"] for row in result["models"]}
    assert set(found) == {(one.package, one.name) for one in SPECIMENS}
    for operations in found.values():
        assert set(operations) == set(OPERATIONS)
        assert {verdict["outcome"] for verdict in operations.values()} <= {EXACT, ABSENT, "refused"}
        assert operations["jacobian"]["outcome"] == operations["kernel"]["outcome"] == EXACT


@pytest.mark.skipif(not RESULT.exists(), reason="no run is committed")
def test_the_table_of_the_page_is_that_of_the_committed_run() -> None:
    text = PAGE.read_text()
    assert page(text, "models", table(json.loads(RESULT.read_text()))) == text


def test_the_models_that_users_have_are_among_them() -> None:
    names = [one.name for one in SPECIMENS if one.package == "transformers"]
    assert all(any(wanted in name for name in names) for wanted in WANTED)
    assert {one.package for one in SPECIMENS} == {"transformers", "timm", "peft", "torch_geometric"}

"""The page on experiments: its example is an experiment that keeps the contract."""

import re
import sys
from pathlib import Path

import pytest

from tangentlab.bench import registry
from tangentlab.bench.contract import check_contract
from tangentlab.bench.runner import execute, make_config
from tangentlab.experiments import Status

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def test_the_example_of_the_documentation_keeps_the_contract_and_its_claim_holds_at_desk_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "documented_experiment.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(registry.ENVIRONMENT, "documented_experiment")
    kind = registry.find("disk-is-learned")
    try:
        check_contract(kind, tmp_path / "runs")
        config = make_config(kind.at("desk"), "desk", seeds=1)
        outcome = execute(config, tmp_path / "runs", inline=True)
        assert [verdict.status for verdict in outcome.verdicts] == [Status.HELD]
    finally:
        registry._KNOWN.pop("disk-is-learned")
        sys.modules.pop("documented_experiment")

"""Runs to make reports of: the toy experiments, finished in a folder of the session."""

from pathlib import Path

import pytest

from tangentlab.bench.folder import RunFolder
from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.runner import execute, make_config
from tangentlab.experiments import find


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """One finished run each of two toys and of figure 2.1, below one folder."""
    parent = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT, "tests.experiments.toys")
        plans = {
            "toy-training": {},
            "toy-claims": {"values": [2, 0, 2]},
            "parameter-distance": {},
        }
        return {
            name: execute(
                make_config(find(name).at("smoke", **changes), "smoke", seeds=3 if "toy" in name else 1),
                parent,
                inline=True,
            ).folder
            for name, changes in plans.items()
        }


@pytest.fixture
def gallery(runs: dict[str, RunFolder]) -> Path:
    """The gallery of these runs."""
    from tangentlab.bench.gallery import write_gallery

    page = next(iter(runs.values())).path.parent / "gallery.html"
    assert write_gallery([folder.path for folder in runs.values()], page) == 3
    return page

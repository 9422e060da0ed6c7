"""Every experiment keeps the rules of the bench; a new one is tested by being there."""

from pathlib import Path

import pytest

from tangentlab.bench.compare import compare_runs
from tangentlab.bench.contract import check_contract, check_paper_scale_starts
from tangentlab.bench.errors import SettingError
from tangentlab.bench.folder import read_config
from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.runner import execute, make_config
from tangentlab.experiments import Chapter, Claim, Experiment, Status, all_experiments, experiment, find


def built_in() -> list[type[Experiment]]:
    return [kind for kind in all_experiments() if kind.__module__.startswith("tangentlab.")]


@pytest.mark.parametrize("kind", built_in(), ids=lambda kind: kind.name)
def test_the_experiment_keeps_the_contract_at_smoke_scale(kind: type[Experiment], tmp_path: Path):
    check_contract(kind, tmp_path)


@pytest.mark.parametrize("name", ["parameter-distance", "kl-expansion", "fim-quality", "ntk-evolution"])
def test_a_config_of_a_real_experiment_replays_to_the_same_numbers(name: str, tmp_path: Path):
    first = execute(make_config(find(name).at("smoke"), "smoke", seeds=1), tmp_path / "first", inline=True)
    again = execute(read_config(first.folder.config_file), tmp_path / "again", inline=True)
    comparison = compare_runs(first.folder, again.folder)
    assert comparison.identical and comparison.rows > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", built_in(), ids=lambda kind: kind.name)
def test_two_steps_of_the_papers_own_scale_run(kind: type[Experiment], tmp_path: Path):
    check_paper_scale_starts(kind, tmp_path)


def test_claim_ids_are_unique_over_all_experiments():
    ids = [claim.id for kind in built_in() for claim in kind.claims]
    assert len(ids) == len(set(ids))


def description(**changes):
    base = {
        "name": "toy-description",
        "title": "t",
        "question": "q",
        "chapter": Chapter.GEOMETRY,
        "place": "p",
        "claims": (Claim("d-1", "s", "m", "<", 1.0, "p"),),
        "run": lambda self, lab: None,
        "draw": lambda self, results: (),
        "__annotations__": {"width": int},
        "width": 3,
    }
    return type("Described", (Experiment,), {**base, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "Not Kebab"}, "dashes only"),
        ({"question": ""}, "question"),
        ({"claims": ()}, "claims"),
        ({"claims": (Claim("d", "s", "m", "<", 1.0, "p"),) * 2}, "appear twice: d"),
        ({"scales": {"huge": {}}}, "unknown scales huge"),
        ({"scales": {"smoke": {"widht": 3}}}, "did you mean 'width'"),
        ({"scales": {"paper": {"width": 2.5}}}, "not a whole number"),
        ({"name": "toy-claims"}, "Two experiments are called 'toy-claims'"),
    ],
)
def test_an_incomplete_or_contradictory_description_is_refused_when_it_is_registered(changes: dict, complaint: str):
    all_experiments()
    with pytest.raises((TypeError, ValueError), match=complaint):
        experiment(description(**changes))


def test_experiments_are_listed_by_chapter_and_names_of_other_modules_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    kinds = all_experiments()
    chapters = [list(Chapter).index(kind.chapter) for kind in kinds]
    assert chapters == sorted(chapters) and {"toy-claims", "kl-expansion"} <= {kind.name for kind in kinds}
    monkeypatch.setenv(ENVIRONMENT, "no.such.module")
    with pytest.raises(SettingError, match="names the module 'no.such.module'"):
        all_experiments()


@pytest.mark.parametrize(
    ("files", "module", "missing"),
    [
        ({"mine_a.py": "import absent_library"}, "mine_a", "absent_library"),
        ({"mine_b.py": "import absent_library.part"}, "mine_b", "absent_library"),
        ({"mine_c.py": "import mine_c_helper"}, "mine_c", "mine_c_helper"),
        ({"mine_d_more.py": "import mine_d"}, "mine_d_more", "mine_d"),
        (
            {"package_e/__init__.py": "", "package_e/exp.py": "import package_e.absent"},
            "package_e.exp",
            "package_e.absent",
        ),
        ({"package_f/__init__.py": "import absent_library", "package_f/exp.py": ""}, "package_f.exp", "absent_library"),
        ({"mine_g.py": "import mine_h", "mine_h.py": "from absent_library import thing"}, "mine_g", "absent_library"),
    ],
)
def test_what_a_module_of_ones_own_lacks_is_named_and_the_module_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], module: str, missing: str
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, module)
    for ask in (all_experiments, lambda: find("toy-claims"), lambda: find("mine")):
        with pytest.raises(SettingError, match=f"'{module}', which imports '{missing}', and there is no such module"):
            ask()


@pytest.mark.parametrize("module", ["absent", "absent.exp", "package_i.absent", "package_i.exp.deeper"])
def test_a_module_of_ones_own_that_is_not_there_is_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
):
    (tmp_path / "package_i").mkdir()
    (tmp_path / "package_i" / "__init__.py").write_text("")
    (tmp_path / "package_i" / "exp.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, module)
    with pytest.raises(SettingError, match=f"names the module '{module}', which cannot be found"):
        find("toy-claims")


def test_a_mistake_in_a_module_of_ones_own_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine_wrong.py").write_text("from math import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, "mine_wrong")
    with pytest.raises(ImportError, match="no_such_name"):
        all_experiments()


def test_parameters_of_a_scale_are_the_defaults_with_its_changes():
    (kind,) = (kind for kind in all_experiments() if kind.name == "toy-training")
    assert kind.at("desk").steps == 40 and kind.at("smoke").steps == 12 and kind.at("smoke", steps=3).steps == 3
    assert kind.at("smoke", steps=3).changed_from("smoke") == {"steps": 12}
    assert Status.HELD == "held"

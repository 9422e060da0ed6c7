"""The mutation tester makes faults where values are made and nowhere else, and tells those that tests see from the others."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.mutant_figures import equivalents, figures, kind_of, table
from scripts.mutant_runs import code_name, exchanged
from scripts.mutants import mutants_in, mutants_of
from scripts.mutate import PACKAGES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tangentlab"

SILENT = '''
"""Module 1 + 1."""
from typing import TYPE_CHECKING

__all__ = ["a", "b"]

class A(Base, flag=True):
    """Class 1 < 2."""

    x: int | None

    def __repr__(self) -> str:
        return f"{1 + 1}" if self.x else "0"

    def words(self) -> str:
        number = 3 * self.x
        return f"{number} things"

@decorated(1, key=2)
def f(x: int | None, y: "list[1]") -> int | None:
    """Function 1 - 1."""
    assert x > 0, 1 + 1
    step = max(1, x // (8 * y))
    return cast(x, y)
'''

LOUD = """
def f(a, b, c=3):
    if a < b and c:
        raise ValueError(f"{a + 1} {b}")
    with no_grad():
        a[1:b] += g(a, b, key=c) / torch.where(b > 0, b, 1.0)
    return a @ b if not c else -a
"""


def test_text_that_no_value_depends_on_has_no_mutants():
    assert [mutant.change for mutant in mutants_of("a.py", SILENT)] == []


def test_the_faults_of_a_function_are_these():
    found = {mutant.change for mutant in mutants_of("a.py", LOUD)}
    assert found == {
        "3 -> 2",
        "a < b and c -> a < b or c",
        "a < b and c -> not (a < b and c)",
        "a < b -> (a <= b)",
        'raise ValueError(f"{a + 1} {b}") -> pass',
        "with no_grad() -> if True",
        "a[1:b] += g(a, b, key=c) / torch.where(b > 0, b, 1.0) -> pass",
        "1 -> 2",
        "b -> (b) + 1",
        "g(a, b, key=c) / torch.where(b > 0, b, 1.0) -> g(a, b, key=c) * torch.where(b > 0, b, 1.0)",
        "g(a, b, key=c) -> g(b, a, key=c)",
        "g(a, b, key=c) -> g(a, b)",
        "torch.where(b > 0, b, 1.0) -> torch.where(b, b > 0, 1.0)",
        "b > 0 -> b >= 0",
        "0 -> 1",
        "a @ b -> (b @ a)",
        "not c -> (c)",
        "-a -> (a)",
    }


def test_every_mutant_of_the_package_is_valid_python_and_another_program():
    for path in ("linalg/cg.py", "layers/conv.py", "optim/preconditioner.py"):
        source = (PACKAGE / path).read_text()
        whole = ast.dump(ast.parse(source))
        for mutant in mutants_of(path, source):
            assert ast.dump(ast.parse(mutant.applied(source))) != whole, mutant.key


def test_mutants_keep_their_names_and_their_order_when_other_lines_are_edited():
    source = (PACKAGE / "linalg/cg.py").read_text()
    before, after = (mutants_of("linalg/cg.py", text) for text in (source, "import os\n\n" + source))
    assert [one.key for one in before] == [one.key for one in after]
    assert len({one.key for one in before}) == len(before)
    orders = [[one.key for one in sorted(before, key=lambda one: one.rank(seed))] for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_every_listed_equivalent_gives_its_reason_and_is_a_fault_that_can_be_made():
    faults = mutants_in(PACKAGE, PACKAGES)
    for kind, entries in equivalents().items():
        for entry in entries:
            assert set(entry) <= {"path", "function", "statement", "change", "reason"} and len(entry["reason"]) > 10, (
                entry
            )
            assert any(kind_of(mutant, {kind: [entry]}) for mutant in faults), entry


def test_a_listed_pattern_fits_brackets_literally():
    mutant = next(one for one in mutants_of("a.py", LOUD) if one.change.startswith("a[1:b]"))
    assert kind_of(mutant, {"same": [{"path": "a.py", "change": "a[1:b] += *", "reason": "so"}]}) == "same"
    assert kind_of(mutant, {"same": [{"path": "a.py", "change": "a[2:b] += *", "reason": "so"}]}) is None


def test_figures_count_what_was_killed_survived_or_was_left_out_by_package():
    mutants = [*mutants_of("linalg/a.py", LOUD)[:4], *mutants_of("optim/a.py", LOUD)[:2]]
    verdicts = {one.key: {"verdict": word} for one, word in zip(mutants, ["killed", "timeout", "survived", "killed"])}
    found = figures(3, mutants[:3], verdicts, [(mutants[4], "same"), (mutants[5], "performance")])
    assert found["killed"] == "66.7%" and found["survivors"] == [mutants[2].key]
    assert found["packages"] == {"linalg": {"killed": 2, "survived": 1}, "optim": {"same": 1, "performance": 1}}
    assert table(found).splitlines()[-2:] == ["| optim | 0 | 0 | 0 | 1 | 1 |", "| all | 3 | 2 | 1 | 1 | 1 |"]


def test_a_function_with_a_fault_takes_the_place_of_one_that_has_run():
    source, names = "def f(x):\n    return [x + k for k in range(2)]\n", dict[str, Any]()
    exec(compile(source, "a.py", "exec"), names)
    assert [names["f"](3) for _ in range(20)][-1] == [3, 4]
    codes = exchanged(source, source.replace("x + k", "x - k"), Path("a.py"))
    assert codes is not None
    names["f"].__code__ = codes[code_name(names["f"].__code__)]
    assert names["f"](3) == [3, 2]


@pytest.mark.parametrize("new", ["1 + 1", "2", "lambda: 1"])
def test_a_fault_outside_of_functions_is_not_for_an_exchange(new):
    source = "A = 1\ndef f(x, y=1):\n    return x\nclass B:\n    c = 1\n"
    for old in ("A = 1", "y=1", "c = 1"):
        assert exchanged(source, source.replace(old, f"{old[:-1]}{new}"), Path("a.py")) is None


@pytest.mark.slow
def test_a_fault_that_tests_see_is_killed_and_one_that_they_do_not_run_survives(tmp_path):
    def run(*arguments: str) -> str:
        command = [sys.executable, str(ROOT / "scripts" / "mutate.py"), "--folder", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    before = {path: path.read_bytes() for path in PACKAGE.rglob("*.py")}
    assert "tests in" in run("--record", "tests/linalg/test_sym_pow.py")
    printed = run("--count", "30", "--packages", "linalg/sym_pow", "linalg/xtrace")
    entries = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    sites = mutants_in(PACKAGE, ["linalg/sym_pow", "linalg/xtrace"])
    assert {entry["key"] for entry in entries} <= {mutant.key for mutant in sites} and len(entries) == 30
    verdicts = {path: {one["verdict"] for one in entries if path in one["key"]} for path in ("sym_pow", "xtrace")}
    assert "killed" in verdicts["sym_pow"] and verdicts["xtrace"] == {"survived"}
    assert "| linalg | 30 |" in printed and "--- linalg/xtrace.py" in printed
    assert {path: path.read_bytes() for path in PACKAGE.rglob("*.py")} == before

"""The package itself: what importing it loads, what it exports, and that files stay of readable size."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tangentlab

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
HEAVY = ("matplotlib", "sklearn", "scipy", "rich", "typer", "jinja2", "yaml", "pandas", "torch", "numpy")


def loaded_by(statement: str) -> set[str]:
    """Modules in memory after running a statement in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_the_package_loads_nothing_heavy_and_nothing_of_its_own() -> None:
    before, after = loaded_by("pass"), loaded_by("import tangentlab")
    new = after - before
    assert not [name for name in new if name.split(".")[0] in HEAVY]
    assert {name for name in new if name.startswith("tangentlab")} == {"tangentlab"}


def test_using_the_core_loads_no_plotting_no_command_line_and_no_data_libraries() -> None:
    torch_alone = loaded_by("import torch, torch.func, torch.nn.attention")
    core = loaded_by("import tangentlab; tangentlab.FIM; tangentlab.PMatKFAC; tangentlab.NTK; tangentlab.check")
    new = {name.split(".")[0] for name in core - torch_alone}
    assert not new & {"matplotlib", "sklearn", "scipy", "rich", "typer", "jinja2", "yaml", "pandas"}


@pytest.mark.parametrize("name", tangentlab.__all__)
def test_every_exported_name_exists_and_is_listed(name: str) -> None:
    assert getattr(tangentlab, name) is not None
    assert name in dir(tangentlab)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Fisher'"):
        tangentlab.Fisher  # noqa: B018


def test_every_error_of_the_package_is_of_one_family_and_of_a_standard_kind() -> None:
    from tangentlab import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 8
    for kind in kinds:
        assert issubclass(kind, errors.TangentlabError)
        assert kind.__doc__
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.MemoryBudgetError, MemoryError)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_file_passes_350_lines_and_no_function_60(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno + 1 <= 60, node.name  # type: ignore[operator]

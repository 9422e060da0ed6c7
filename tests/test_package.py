"""The package itself: what importing it loads, what it exports, and that files stay of readable size."""

import ast
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tangentlab

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGES = {module.name for module in pkgutil.iter_modules(tangentlab.__path__) if module.ispkg}
MODULES = sorted({*PACKAGES, "curvatures", "errors", "metrics", "spectra"} - {"cli"})
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
    assert {name for name in new if name.startswith("tangentlab")} == {
        "tangentlab",
        "tangentlab.lazy",
        "tangentlab.moved",
    }


def test_using_the_core_loads_no_plotting_no_command_line_and_no_data_libraries() -> None:
    torch_alone = loaded_by("import torch, torch.func, torch.nn.attention")
    core = loaded_by("import tangentlab; tangentlab.FIM; tangentlab.PMatKFAC; tangentlab.NTK; tangentlab.check")
    new = {name.split(".")[0] for name in core - torch_alone}
    assert not new & {"matplotlib", "sklearn", "scipy", "rich", "typer", "jinja2", "yaml", "pandas"}


@pytest.mark.parametrize("name", tangentlab.__all__)
def test_every_exported_name_exists_and_is_listed(name: str) -> None:
    assert getattr(tangentlab, name) is not None
    assert name in dir(tangentlab)


@pytest.mark.parametrize("name", MODULES)
def test_every_subpackage_is_reached_from_the_root_on_first_use(name: str) -> None:
    assert name in dir(tangentlab)
    assert tangentlab.__getattr__(name) is import_module(f"tangentlab.{name}")


def test_subpackages_and_names_come_from_the_root_in_a_fresh_interpreter() -> None:
    loaded = loaded_by(
        "import tangentlab as tl; tl.optim.NaturalSGD; tl.kernels; tl.data.load; tl.linearize; tl.models.MLP"
    )
    wanted = {"tangentlab.optim", "tangentlab.kernels", "tangentlab.data", "tangentlab.linearized", "tangentlab.models"}
    assert wanted <= loaded
    assert not {"tangentlab.bench", "tangentlab.figures", "tangentlab.recorder"} & loaded


def test_names_that_the_readme_imports_come_from_the_root() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    names = [
        alias.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tangentlab")
        for alias in node.names
    ]
    assert {"FIM", "load", "linearize", "TangentRecorder", "check"} <= set(names)
    for name in names:
        assert name in dir(tangentlab) and name in tangentlab.__all__


def test_a_type_checker_sees_the_names_and_modules_that_are_imported_on_first_use() -> None:
    tree = ast.parse((ROOT / "src" / "tangentlab" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names:
            assert alias.asname == alias.name  # without `as` a strict checker takes it for private
            seen[alias.name] = node.module
    modules = {name for name, home in seen.items() if home == "tangentlab"}
    assert modules == set(MODULES)
    assert seen.keys() - modules == set(tangentlab.__all__)


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

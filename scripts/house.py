"""The order of the house: who may import whom. `python scripts/house.py` writes the map of DEVELOPERS.md from it.

`ORDER` lists every module and subpackage of tangentlab from the ground up; each may import what stands above it in this
file, and nothing below. Imports are read from the syntax tree, those inside of functions and under `TYPE_CHECKING`
included; a name that comes from a package that only passes it on, such as `from tangentlab import NTK`, counts as an import
of its home.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "DEVELOPERS.md"
PACKAGE = "tangentlab"
START, END = "<!-- map: made by scripts/house.py -->", "<!-- end of the map -->"
ORDER = (
    ("moved",),
    ("lazy",),
    ("errors", "temporary"),
    ("files", "plain", "schedule"),
    ("lines", "parallel"),
    ("linalg",),
    ("layers",),
    ("engine",),
    ("objects",),
    ("metrics",),
    ("curvatures", "spectra"),
    ("kernels", "optim", "data"),
    ("models", "testing"),
    ("alignment", "linearized"),
    ("implicit_bias", "limits"),
    ("figures",),
    ("information", "spectral"),
    ("recorder", "bench"),
    ("experiments", "demo"),
    ("cli",),
)
"""From the ground up. Those of one storey do not import each other."""
STOREY = {name: number for number, storey in enumerate(ORDER) for name in storey}


def imports(source: Path) -> dict[str, dict[str, list[str]]]:
    """For every module or subpackage of the folder `source`: what it imports, and the places where it does."""
    facade = dict(_facade(source / "__init__.py"))
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(source.rglob("*.py")):
        inner = file.relative_to(source)
        own = inner.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for line, target in _targets(ast.parse(file.read_text(encoding="utf-8")), facade):
            if target != own:
                found[own][target].append(f"{inner}:{line}")
    return {own: dict(targets) for own, targets in found.items()}


def _facade(file: Path) -> Iterator[tuple[str, str]]:
    """Name and home of everything that the root passes on."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}".split(".")[1]


def _targets(tree: ast.Module, facade: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import of the package, and of every attribute of the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")]
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            names = [f"{PACKAGE}.{facade.get(alias.name, alias.name)}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == PACKAGE:
            names = [f"{PACKAGE}.{facade.get(node.attr, node.attr)}"]
        else:
            continue
        for name in names:
            if not name.startswith(f"{PACKAGE}.__"):
                yield node.lineno, name.split(".")[1]


def faults(source: Path) -> list[str]:
    """Every import of what is built on the importer, and every module that has no place in the order."""
    there = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    found = [f"{name} has no place in the order" for name in sorted(there - {"__init__"} - set(STOREY))]
    for own, targets in imports(source).items():
        for target, places in targets.items():
            if STOREY.get(target, len(ORDER)) >= STOREY.get(own, -1):
                found += [f"{place} imports {target}" for place in places]
    return found


def the_map(source: Path) -> str:
    """The map as Markdown: a row per module or subpackage from the top down, and the imports as a drawing."""
    used = imports(source)
    rows = ["| room | what it is | stands on |", "|---|---|---|"]
    for storey in reversed(ORDER):
        for name in storey:
            path = source / name
            stands = sorted(used.get(name, {}), key=lambda one: -STOREY[one])
            what = _summary(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
            label = f"`{name}/`" if path.is_dir() else f"`{name}.py`"
            rows.append(f"| {label} | {what} | {', '.join(stands)} |")
    return "\n".join([*rows, "", "```mermaid", *_drawing(used), "```"])


def _summary(file: Path) -> str:
    text = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|").strip()


def _drawing(used: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    """The imports without those that follow from others, as a graph of Mermaid."""
    yield "graph BT"
    for own in sorted(used, key=lambda name: STOREY[name]):
        direct = set(used[own])
        beyond = {far for near in direct for far in _reached(near, used)}
        for target in sorted(direct - beyond):
            yield f"    {target} --> {own}"


def _reached(name: str, used: dict[str, dict[str, list[str]]]) -> set[str]:
    direct = set(used.get(name, {}))
    return direct.union(*(_reached(one, used) for one in direct))


def page_with_map() -> str:
    """DEVELOPERS.md with the map of today."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{the_map(ROOT / 'src' / PACKAGE)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_map(), encoding="utf-8")

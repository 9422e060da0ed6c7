"""Markdown pages as programs: fenced blocks, their printed output, results in comments, and tables of calls.

* The ```python blocks of a page run in order in one namespace.
* `expression  # -> text` states the value of a top-level expression, or what `print(...)` prints.
* A ```text block right below a ```python block is what the block prints.
* In a table with a column headed `tangentlab`, the code in that column runs too, after the blocks above the table.

Expected text is compared token by token: words exactly, numbers to the digits that are shown, `...` stands for anything.
"""

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[^\S\n]*$", re.MULTILINE | re.DOTALL)
_STATED = re.compile(r"\s# -> (.*)$")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?|[-+]?\.\d+(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """A piece of a page that runs: its code, its line in the page, and what it prints if the page says so."""

    code: str
    line: int
    prints: str | None = None
    cell: bool = False


def blocks_of(text: str) -> list[Block]:
    """The runnable pieces of a page, in order."""
    found: list[tuple[int, Block]] = []
    fences = list(_FENCE.finditer(text))
    for fence, following in zip(fences, [*fences[1:], None]):
        if fence[1] != "python":
            continue
        below = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        found.append((fence.start(), Block(fence[2], _line(text, fence.start(2)), following[2] if below else None)))
    cells = _table_cells(without_fences(text))
    found += [(start, Block(code, _line(text, start), cell=True)) for start, code in cells]
    return [block for _, block in sorted(found, key=lambda pair: pair[0])]


def without_fences(text: str, only: str = "") -> str:
    """The text with fenced blocks (or only those in one language) blanked, every character in its place."""
    return _FENCE.sub(lambda f: re.sub(r"[^\n]", " ", f[0]) if only in ("", f[1]) else f[0], text)


def _line(text: str, start: int) -> int:
    return text.count("\n", 0, start) + 1


def _table_cells(text: str) -> Iterator[tuple[int, str]]:
    """(position, code) of every code span in a column that is headed `tangentlab`."""
    column, position = None, 0
    for line in text.splitlines(keepends=True):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not line.lstrip().startswith("|"):
            column = None
        elif column is None:
            column = cells.index("tangentlab") if "tangentlab" in cells else -1
        elif 0 <= column < len(cells):
            for code in re.findall(r"`([^`]+)`", cells[column]):
                yield position, code.replace("\\|", "|")
        position += len(line)


def run(page: Path) -> int:
    """Run a page from top to bottom; the number of pieces that ran."""
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    pieces = blocks_of(page.read_text(encoding="utf-8"))
    for block in pieces:
        try:
            _run_block(block, namespace, page)
        except Exception as error:
            error.add_note(f"in {page.name}, line {block.line}:\n{block.code.rstrip()}")
            raise
    return len(pieces)


def _run_block(block: Block, namespace: dict[str, Any], page: Path) -> None:
    tree, lines = ast.parse(block.code), block.code.splitlines()
    printed, unclaimed = "", []
    for statement in tree.body:
        stated = _STATED.search(lines[(statement.end_lineno or statement.lineno) - 1])
        value, output = _execute(statement, namespace, f"{page.name}:{block.line}")
        if stated:
            assert_shown(stated[1], output if output else repr(value))
        else:
            printed += output
            unclaimed += [output] * bool(output)
    if block.prints is not None:
        assert_shown(block.prints, printed)
    elif unclaimed and not block.cell:
        raise AssertionError(f"prints something that the page does not show:\n{''.join(unclaimed)}")


def _execute(statement: ast.stmt, namespace: dict[str, Any], where: str) -> tuple[Any, str]:
    """Value (of an expression) and printed text of one statement."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), where, "eval"), namespace)
        else:
            value = None
            exec(compile(ast.Module([statement], []), where, "exec"), namespace)
    return value, stream.getvalue()


def assert_shown(expected: str, found: str) -> None:
    """Whether a text is what the page shows."""
    parts = [part.split() for part in expected.replace("...", " ... ").split(" ... ")]
    words = found.split()
    position = 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        starts = [position] if number == 0 else range(position, len(words) - len(part) + 1)
        if number and last:
            starts = [len(words) - len(part)]
        hit = next((s for s in starts if s >= position and _same(part, words[s : s + len(part)])), None)
        if hit is None or (last and hit + len(part) != len(words)):
            raise AssertionError(f"the page shows\n{expected.strip()}\nbut it is\n{found.strip()}")
        position = hit + len(part)


def _same(expected: list[str], found: list[str]) -> bool:
    return len(expected) == len(found) and all(_same_word(a, b) for a, b in zip(expected, found))


def _same_word(expected: str, found: str) -> bool:
    numbers, others = _NUMBER.findall(expected), _NUMBER.findall(found)
    if _NUMBER.sub("#", expected) != _NUMBER.sub("#", found) or len(numbers) != len(others):
        return False
    return all(_same_number(a, b) for a, b in zip(numbers, others))


def _same_number(expected: str, found: str) -> bool:
    """Equal to the digits that are expected, with one unit of the last one as leeway if there is a decimal point."""
    if not re.search(r"[.e]", expected):
        return float(expected.replace(",", "")) == float(found.replace(",", ""))
    mantissa, _, exponent = expected.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(expected.replace(",", "")) - float(found.replace(",", ""))) <= 1.01 * unit

"""Small faults that can be made in a source file: which exist, and where the tests must look for them.

A fault (mutant) replaces one piece of the text. Text that no value depends on has none: docstrings, annotations,
decorators, messages of errors and warnings, `__repr__`, assertions, progress bars, and how much is done at a time.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
TEXTS = {"__repr__", "__str__", "_repr_html_", "__rich__"}
SILENT_CALLS = {"cast", "TypeVar", "NewType", "warn", "warn_once", "isinstance", "issubclass", "super", "print"}
SILENT_KEYWORDS = {"strict", "device", "progress", "stacklevel", "non_blocking", "description", "repr"}
UNDONE_METHODS = {"clone", "detach", "abs", "sqrt", "square", "flip"}
TIGHT = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Attribute, ast.Subscript, ast.IfExp, ast.Starred)
NEGATED = (ast.Name, ast.Attribute, ast.Call, ast.BoolOp, ast.Subscript)
SYMMETRIC = {
    "max",
    "min",
    "transpose",
    "maximum",
    "minimum",
    "gcd",
    "add",
    "mul",
    "isclose",
    "allclose",
    "equal",
    "promote_types",
}
UNLIKE = (ast.Constant, ast.JoinedStr, ast.Lambda, ast.Starred, ast.GeneratorExp)
"""Arguments that cannot be meant to stand in another's place: swapped, they would be a type error."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `original` at the bytes `start:stop` of a file becomes `replacement`."""

    path: str
    function: str
    start: int
    stop: int
    lines: tuple[int, int]  # where a test must pass to see it
    original: str
    replacement: str
    occurrence: int
    statement: str  # the text of these lines

    @property
    def change(self) -> str:
        """The fault in one line."""
        return f"{' '.join(self.original.split())} -> {self.replacement}"

    @property
    def key(self) -> str:
        """A name that outlives edits elsewhere in the file."""
        return f"{self.path}::{self.function}::{self.change}::{self.occurrence}"

    def rank(self, seed: int) -> str:
        """Where it stands in the random order of a seed; what is edited elsewhere does not move it."""
        return sha256(f"{seed} {self.key}".encode()).hexdigest()

    def applied(self, source: str) -> str:
        """The text of the file with the fault."""
        data = source.encode()
        assert data[self.start : self.stop].decode() == self.original, "another version of the file"
        return (data[: self.start] + self.replacement.encode() + data[self.stop :]).decode()

    def diff(self, source: str) -> str:
        """The fault as a diff with one line around it."""
        lines = difflib.unified_diff(source.splitlines(), self.applied(source).splitlines(), n=1, lineterm="")
        return "\n".join([f"--- {self.path} ({self.function})", *list(lines)[2:]])


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All faults of one file."""
    finder = _Finder(path, source)
    finder.walk(ast.parse(source), [])
    return finder.found


def mutants_in(root: Path, packages: list[str]) -> list[Mutant]:
    """All faults of the files under the packages (folders or modules below `root`)."""
    files = [file for name in packages for file in sorted((root / name).rglob("*.py")) or [root / f"{name}.py"]]
    return [mutant for file in files for mutant in mutants_of(str(file.relative_to(root)), file.read_text())]


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self.path, self.data, self.found = path, source.encode(), list[Mutant]()
        self.offsets = [0]
        for line in source.encode().splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.scope: list[str] = []
        self.lines = (0, 0)
        self.counts: dict[str, int] = {}

    def walk(self, node: ast.AST, parents: list[ast.AST]) -> None:
        """Faults at this node, then below it."""
        if _is_silent(node):
            return
        names = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if names:
            self.scope.append(node.name)
        outer, self.lines = self.lines, _lines(node) if isinstance(node, ast.stmt) else self.lines
        for start, stop, text in self.faults(node, parents):
            self.add(start, stop, text)
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "exc", "bases") or name == "keywords" and names:
                continue
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    self.walk(child, [*parents, node])
        self.lines = outer
        if names:
            self.scope.pop()

    def add(self, start: int, stop: int, text: str) -> None:
        original = self.data[start:stop].decode()
        function = ".".join(self.scope)
        same = f"{function}::{original}::{text}"
        self.counts[same] = self.counts.get(same, 0) + 1
        rest = self.lines, original, text, self.counts[same], self.statement()
        self.found.append(Mutant(self.path, function, start, stop, *rest))

    def statement(self) -> str:
        first, last = self.lines
        return " ".join(self.data[self.offsets[first - 1] : self.offsets[last]].decode().split())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.offsets[node.lineno - 1] + node.col_offset,
            self.offsets[node.end_lineno - 1] + node.end_col_offset,
        )

    def faults(self, node: ast.AST, parents: list[ast.AST]) -> Iterator[tuple[int, int, str]]:
        """(start, stop, replacement) of the faults that can be made at this node itself."""
        parent = parents[-1] if parents else None
        inside = bool(self.scope) and any(isinstance(one, ast.FunctionDef) for one in parents)
        if isinstance(node, ast.stmt) and inside and _can_be_dropped(node):
            yield *self.span(node), "pass"
        if isinstance(node, ast.With) and inside and not any(item.optional_vars for item in node.items):
            stop = self.data.index(b":", self.span(node.items[-1].context_expr)[1])
            yield self.span(node)[0], stop, "if True"
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, NEGATED):
            yield *self.span(node.test), f"not ({ast.unparse(node.test)})"
        if isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                    yield *self.span(bound), f"({ast.unparse(bound)}) + 1"
        if isinstance(node, ast.expr) and not _is_guard(node, parents):
            for text in _expressions(node, parent, inside):
                tight = isinstance(parent, TIGHT) and not isinstance(node, ast.Constant | ast.Call)
                yield *self.span(node), f"({text})" if tight else text


def _expressions(node: ast.expr, parent: ast.AST | None, inside: bool) -> Iterator[str]:
    """What can stand in place of an expression."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            yield ast.unparse(ast.Compare(left, [OPERATORS[type(op)]()], [right]))
        case ast.BinOp(op=ast.BitOr()) if not inside:  # an alias of types
            return
        case ast.BinOp(left=left, op=ast.MatMult(), right=right) if ast.dump(left) != ast.dump(right):
            yield ast.unparse(ast.BinOp(right, ast.MatMult(), left))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not _is_text(left, right):
            yield ast.unparse(ast.BinOp(left, OPERATORS[type(op)](), right))
        case ast.BoolOp(op=op, values=values):
            yield ast.unparse(ast.BoolOp(OPERATORS[type(op)](), values))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            yield str(-1 if value == 2 else -value - 1)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield ast.unparse(operand)
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value) if not isinstance(parent, ast.UnaryOp):
            yield str(value + 1 if value < 2 else value - 1)
        case ast.Constant(value=float() as value):
            yield str(2 * value if value else 1.0)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if name in UNDONE_METHODS:
            yield ast.unparse(value)
        case ast.Call(func=function, args=args, keywords=keywords):
            for k, (one, two) in enumerate(pairwise(args)):
                symmetric = ast.unparse(function).split(".")[-1] in SYMMETRIC or ast.dump(one) == ast.dump(two)
                if not isinstance(one, UNLIKE) and not isinstance(two, UNLIKE) and not symmetric:
                    yield ast.unparse(ast.Call(function, [*args[:k], two, one, *args[k + 2 :]], keywords))
            for k, keyword in enumerate(keywords):
                if keyword.arg not in (None, *SILENT_KEYWORDS):
                    yield ast.unparse(ast.Call(function, args, [*keywords[:k], *keywords[k + 1 :]]))


def _can_be_dropped(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue():
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name not in ("NotImplementedError", "AssertionError")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _is_silent(node: ast.AST) -> bool:
    """Whether no value depends on this piece of text."""
    match node:
        case ast.FunctionDef(name=name):
            marks = {ast.unparse(one).split(".")[-1] for one in node.decorator_list}
            return name in TEXTS or bool(marks & {"overload", "abstractmethod"}) or _words(node)
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.arg():
            return True
        case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id="max"), args=[ast.Constant(value=1), other]):  # how many at a time
            return any(isinstance(one, ast.FloorDiv | ast.Div) for one in ast.walk(other))
        case ast.Expr(value=ast.Call(func=function)) | ast.Call(func=function):
            return ast.unparse(function).split(".")[-1] in SILENT_CALLS
        case ast.keyword(arg=name):
            return name in SILENT_KEYWORDS
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
    return False


def _words(node: ast.FunctionDef) -> bool:
    """A function that returns text made of f-strings speaks to the user."""
    told = any(isinstance(one, ast.Return) and isinstance(one.value, ast.JoinedStr) for one in ast.walk(node))
    return told and isinstance(node.returns, ast.Name) and node.returns.id == "str"


def _is_guard(node: ast.expr, parents: list[ast.AST]) -> bool:
    """Whether any number would do: in `x / where(y > 0, y, 1.0)`, whose quotient is not used, and in `empty(0)`."""
    match parents[-2:]:
        case [ast.BinOp(op=ast.Div(), right=right), ast.Call(func=ast.Attribute(attr="where"), args=[_, *values])]:
            return right is parents[-1] and node in values and isinstance(node, ast.Constant)
        case [*_, ast.Call(func=ast.Attribute(attr="empty" | "new_empty"))]:  # an empty tensor is there for its type
            return isinstance(node, ast.Constant) and node.value == 0
    return False


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(one, ast.JoinedStr | ast.List) or isinstance(getattr(one, "value", None), str) for one in nodes
    )


def _lines(node: ast.stmt) -> tuple[int, int]:
    """Lines that run when a statement does: its own, those of its head, or for the defaults of a function its body."""
    assert node.end_lineno is not None
    body = getattr(node, "body", None)
    if isinstance(node, ast.FunctionDef):
        return node.body[0].lineno, node.end_lineno
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno

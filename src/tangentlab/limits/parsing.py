"""Circuits from text: one definition per line, in any order.

    carry = (a & b) | (c & (a ^ b))
    sum = a ^ b ^ c

`and`, `or` and `not` are allowed for `&`, `|` and `~`, and `threshold(k, a, b, ...)` is true where k or more
are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tangentlab.errors import InputError
from tangentlab.limits.circuits import Circuit, Signal


def parse_circuit(text: str, inputs: Sequence[str] | None = None) -> tuple[Circuit, dict[str, Signal]]:
    """The circuit and its signals by name.

    Args:
        text: lines `name = expression`; empty lines and comments with # are skipped.
        inputs: names of the inputs in order; by default all names that no line defines, in order of appearance.

    Raises:
        InputError: a line is not a definition, a name is defined twice or not at all, or definitions go in a circle.
    """
    definitions = _definitions(text)
    used = [node.id for value in definitions.values() for node in ast.walk(value) if isinstance(node, ast.Name)]
    free = [name for name in dict.fromkeys(used) if name not in definitions and name != "threshold"]
    names = list(free if inputs is None else inputs)
    if unknown := [name for name in free if name not in names]:
        raise InputError(f"The circuit uses {', '.join(unknown)}, which no line defines and which is not an input.")
    if doubled := [name for name in names if name in definitions]:
        raise InputError(f"The input {doubled[0]} is defined by a line, too.")
    circuit = Circuit(len(names))
    signals = dict(zip(names, circuit.inputs, strict=True))
    for name in _in_order(definitions):
        signals[name] = _built(definitions[name], signals, circuit)
    return circuit, signals


def _definitions(text: str) -> dict[str, ast.expr]:
    try:
        lines = ast.parse(text).body
    except SyntaxError as error:
        raise InputError(f"Line {error.lineno} of the circuit is not a definition 'name = expression'.") from None
    found: dict[str, ast.expr] = {}
    for line in lines:
        if not (isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name)):
            raise InputError(f"Line {line.lineno} of the circuit is not a definition 'name = expression'.")
        name = line.targets[0].id
        if name in found:
            raise InputError(f"{name} is defined twice.")
        found[name] = line.value
    if not found:
        raise InputError("The circuit has no lines 'name = expression'.")
    return found


def _in_order(definitions: dict[str, ast.expr]) -> list[str]:
    """The names, each after those that it uses."""
    needs = {
        name: [node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in definitions]
        for name, value in definitions.items()
    }
    order: list[str] = []
    while len(order) < len(needs):
        ready = [name for name in needs if name not in order and all(need in order for need in needs[name])]
        if not ready:
            left = {name: [need for need in needs[name] if need not in order] for name in needs if name not in order}
            raise InputError(f"The circuit has a cycle: {' -> '.join(_cycle(left))}.")
        order += ready
    return order


def _cycle(needs: dict[str, list[str]]) -> list[str]:
    path = [next(iter(needs))]
    while path[-1] not in path[:-1]:
        path.append(needs[path[-1]][0])
    return path[path.index(path[-1]) :]


def _built(node: ast.expr, signals: dict[str, Signal], circuit: Circuit) -> Signal:
    def built(part: ast.expr) -> Signal:
        return _built(part, signals, circuit)

    match node:
        case ast.Name(id=name):
            return signals[name]
        case ast.Constant(value=bool(value)):
            return circuit.true if value else ~circuit.true
        case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=inner):
            return ~built(inner)
        case ast.BoolOp(op=op, values=values):
            parts = [built(value) for value in values]
            return circuit.all(parts) if isinstance(op, ast.And) else circuit.any(parts)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return built(left) & built(right)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return built(left) | built(right)
        case ast.BinOp(left=left, op=ast.BitXor(), right=right):
            return built(left) ^ built(right)
        case ast.Call(func=ast.Name(id="threshold"), args=[ast.Constant(value=int(least)), *rest], keywords=[]) if rest:
            return circuit.threshold([built(part) for part in rest], least)
    raise InputError(
        f"'{ast.unparse(node)}' cannot be part of a circuit, which has names, &, |, ^, ~ and threshold(k, ...)."
    )

"""Reading `key=value` settings against the fields of an experiment: every name and every type is checked."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, Union

import yaml

from tangentlab.bench.errors import SettingError


def field_types(kind: type[Any]) -> dict[str, Any]:
    """Name and resolved annotation of every field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def parse_assignments(kind: type[Any], assignments: Iterable[str]) -> dict[str, Any]:
    """`["width=8", "alphas=[1, 100]"]` as checked values of the fields of `kind`; values are read as YAML."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        key = key.strip()
        if not sign or not key:
            raise SettingError(f"--set takes key=value, not {assignment!r}.")
        try:
            raw = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SettingError(f"--set {key}: {text!r} is not readable as a value ({error}).") from error
        values[key] = raw
    return check_values(kind, values)


def check_values(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with every key known and every value of its field's type, or an error that says what would fit."""
    known = field_types(kind)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise SettingError(f"Unknown setting '{key}'{suggestion(key, known)}\nsettings: {', '.join(known)}.")
        try:
            checked[key] = coerce(value, known[key])
        except ValueError as error:
            raise SettingError(f"Setting '{key}': {error}") from None
    return checked


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'width'?` when something similar is known, else nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def coerce(value: Any, annotation: Any) -> Any:
    """`value` as `annotation` without guessing: an int may stand for a float, a list for a tuple, nothing else."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _first_fitting(value, arguments)
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, arguments))}{_near(value, arguments)}.")
    if origin is tuple:
        return _tuple(value, arguments)
    if annotation is type(None):
        if value is None:
            return None
    elif annotation is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 (without a dot) as text
        except ValueError:
            pass
    elif annotation in (int, bool, str) and type(value) is annotation:
        return value
    raise ValueError(f"{value!r} is not {_article(_type_name(annotation))}.")


def _first_fitting(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        try:
            return coerce(value, choice)
        except ValueError:
            continue
    raise ValueError(f"{value!r} is neither {' nor '.join(_article(_type_name(choice)) for choice in choices)}.")


def _tuple(value: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{value!r} is not a list; write it as [a, b, c].")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(coerce(item, arguments[0]) for item in value)
    if len(value) != len(arguments):
        raise ValueError(f"{value!r} has {len(value)} entries, {len(arguments)} are needed.")
    return tuple(coerce(item, kind) for item, kind in zip(value, arguments, strict=True))


def _near(value: Any, choices: tuple[Any, ...]) -> str:
    return suggestion(value, [c for c in choices if isinstance(c, str)]) if isinstance(value, str) else ""


def _type_name(annotation: Any) -> str:
    names = {int: "whole number", float: "number", bool: "truth value (true or false)", str: "text", type(None): "null"}
    return names.get(annotation, str(annotation))


def _article(name: str) -> str:
    return name if name in ("text", "null") else f"a {name}"

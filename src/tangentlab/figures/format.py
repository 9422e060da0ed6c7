"""Numbers, durations and verdicts as people read them; used by pages and by the command line alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

STATUSES = ("held", "mixed", "not held", "not tested", "missing")
SIGNS = {"held": "✓", "mixed": "≈", "not held": "✕", "not tested": "–", "missing": "!"}
ORIGINS = ("paper", "ours")
OWNERS = {"paper": "of the paper", "ours": "of ours"}
_RELATIONS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">"}


def relation(sign: str) -> str:
    """The mathematical sign of a relation."""
    return _RELATIONS[sign]


def bound(claim: Mapping[str, Any]) -> str:
    """The inequality of a claim as its page has it: `≥ 100`; the number's owner stands in `bound_owner`."""
    return f"{relation(claim['relation'])} {number(claim['threshold'])}"


def bound_owner(claim: Mapping[str, Any]) -> str:
    """Whose number a claim has to meet."""
    return {"paper": "the paper's number", "sign": "sign, by 95 % interval", "ours": "our number"}[claim["bound"]]


def measured(claim: Mapping[str, Any]) -> str:
    """Mean and spread of a claim, and its interval where it is judged by one."""
    text = number(claim["mean"])
    if claim["spread"] is not None:
        text += f" ± {number(claim['spread'], 2)}"
    return text


def interval(claim: Mapping[str, Any]) -> str:
    """`0.2 to 0.7`, nothing where there is none."""
    return " to ".join(number(end, 3) for end in claim["interval"]) if claim["interval"] else ""


def left_out(claim: Mapping[str, Any]) -> str:
    """The seeds that could not tell, with the reasons; nothing where the claim's own reason says it."""
    if not claim["left_out"] or claim["status"] == "not tested":
        return ""
    reasons: dict[str, list[str]] = {}
    for seed, why in claim["left_out"].items():
        reasons.setdefault(why, []).append(seed)
    return "; ".join(f"without seed {', '.join(seeds)}: {why}" for why, seeds in reasons.items())


def number(value: Any, digits: int = 4) -> str:
    """A number for people: four significant digits, a real minus sign, powers of ten where they are shorter."""
    if value is None:
        return "–"
    value = float(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return text.replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def duration(seconds: float) -> str:
    """Seconds for people: `< 0.1 s`, `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.05:
        return "< 0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def about(seconds: float) -> str:
    """An expected time in one unit: `6 s`, `5 min`, `1.5 h`, `14 days`."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{max(1, round(seconds))} s"


def plain_text(value: Any) -> str:
    """A parameter's value as one would write it after `--set`."""
    if isinstance(value, list):
        return "[" + ", ".join(plain_text(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def chapter_order(chapter: str) -> tuple[int, str]:
    """Sorts chapters by the number that their title begins with."""
    digits = re.match(r"\d+", chapter)
    return (int(digits.group()) if digits else 10**6, chapter)

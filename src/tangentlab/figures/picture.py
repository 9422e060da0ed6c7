"""`Picture`: a figure with its name and its caption."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and the caption that lets it stand alone."""

    name: str
    figure: Figure
    caption: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", self.name):
            raise ValueError(f"Figure name {self.name!r}: small letters, digits, dots and dashes only.")

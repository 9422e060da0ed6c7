"""Formulas of the site as MathML: a hook of mkdocs that turns TeX into markup that browsers draw by themselves.

`pymdownx.arithmatex` marks `$...$` and `$$...$$`; what it marks is translated when the site is built, so that pages need
neither scripts nor fonts nor a network.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, **page: Any) -> str:
    """The page's HTML with every marked formula as MathML."""
    return _MARKED.sub(lambda found: mathml(html.unescape(found[3]), display=found[2] == "["), text)


def mathml(tex: str, display: bool = False) -> str:
    """One formula, inline or as a block of its own."""
    return convert(tex.strip(), display="block" if display else "inline")

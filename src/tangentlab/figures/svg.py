"""SVG of figures: made of `currentColor` so that it suits light and dark pages, and safe to put inside a page."""

from __future__ import annotations

import base64
import html
import io
import re

from matplotlib.figure import Figure

from tangentlab.figures.style import INK, house_style

# a file that is looked at by itself, or inside an <img>, follows the reader's preference; a page brings its own colour
_THEME = (
    '<style id="theme">:root{color:#1f2430;background:transparent}'
    "@media (prefers-color-scheme:dark){:root{color:#e4e7ee}}</style>"
)


def to_svg(figure: Figure) -> str:
    """The figure as SVG text; the same figure gives the same text."""
    buffer = io.StringIO()
    with house_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().replace(INK, "currentColor")
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\n?", "", text, flags=re.DOTALL)
    return re.sub(r"(<svg\b[^>]*>)", lambda match: match.group(1) + _THEME, text, count=1)


def to_png(figure: Figure, dots_per_inch: int = 160) -> bytes:
    """The figure as PNG on white."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=dots_per_inch, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def inline(text: str, prefix: str, description: str) -> str:
    """SVG text as an element of an HTML page.

    Ids get `prefix`, so that two figures of one page cannot refer to each other's parts. Text with anything in it
    that could act (scripts, event handlers, links to elsewhere) does not come from `to_svg`; it is shown as an image
    instead, where browsers run nothing.
    """
    if _suspicious(text):
        data = base64.b64encode(text.encode()).decode()
        return f'<img alt="{html.escape(description)}" src="data:image/svg+xml;base64,{data}">'
    body = text[text.index("<svg") :].replace(_THEME, "")
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def _suspicious(text: str) -> bool:
    foreign = re.search(r'href\s*=\s*"(?!#|data:image/png;base64,)', text)
    # matplotlib's own header links: the namespaces and, in <metadata>, its home page, which to_svg drops
    acting = re.search(
        r"<\s*(script|foreignObject|iframe|a\b|animate|set\b|handler)|\son\w+\s*=|javascript:|@import", text, re.I
    )
    return bool(foreign or acting or "<svg" not in text)

"""The house style: what it forbids is found, and its colours stay apart for every eye."""

import itertools
import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tangentlab.experiments import Curves
from tangentlab.figures.lint import complaints
from tangentlab.figures.style import (
    PALETTE,
    band,
    heatmap,
    house_style,
    label,
    legend_below,
    legend_beside,
    panels,
    quantity,
    step_axis,
)
from tangentlab.figures.svg import inline, to_png, to_svg

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color: str) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab_color(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / np.array([0.9505, 1, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_the_first_six_colours_differ_for_every_kind_of_colour_vision(vision: str):
    seen = [lab_color(np.array(VISION[vision]) @ linear(color)) for color in PALETTE[:6]]
    closest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert closest > 15, "2.3 is just noticeable; lines in a figure need several times that"


@pytest.mark.parametrize("background", ["#ffffff", "#1c1f26"])
def test_every_colour_stands_out_from_the_light_and_from_the_dark_page(background: str):
    def luminance(color: str) -> float:
        return float(linear(color) @ [0.2126, 0.7152, 0.0722])

    for color in PALETTE:
        light, dark = sorted((luminance(color), luminance(background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, "the contrast that WCAG asks of graphics"


def figure(**names: str):
    made, ((axes,),) = panels()
    axes.plot([0, 1, 2], [0, 1, 4], label="a line")
    label(axes, names.get("x", "time [s]"), names.get("y", "distance [m]"))
    return made, axes


def test_a_figure_in_the_house_style_has_no_complaints():
    made, axes = figure()
    legend_beside(axes)
    assert complaints(made) == []
    legend_below(axes)
    assert complaints(made) == []


def test_an_axis_without_a_name_is_a_complaint():
    assert complaints(figure(x="")[0]) == ["panel 1: the horizontal axis has no name"]
    assert complaints(figure(y="")[0]) == ["panel 1: the vertical axis has no name"]


def test_a_colour_bar_without_a_name_is_a_complaint():
    made, ((axes,),) = panels()
    heatmap(axes, np.eye(3), "")
    label(axes, "column", "row")
    assert complaints(made) == ["panel 2: the colour bar has no name"]
    made, ((axes,),) = panels()
    heatmap(axes, np.eye(3), "entry", diverging=True)
    label(axes, "column", "row")
    assert complaints(made) == []


def test_inner_panels_that_share_an_axis_need_no_name():
    made, axes = panels(2, 2, sharex=True, sharey=True)
    for one in axes.flat:
        one.plot([0, 1])
    for one in axes[-1]:
        one.set_xlabel("x")
    for one in axes[:, 0]:
        one.set_ylabel("y")
    assert complaints(made) == []


@pytest.mark.parametrize("kind", ["line", "points", "band"])
def test_a_legend_that_covers_data_is_a_complaint(kind: str):
    made, ((axes,),) = panels()
    x = np.linspace(0, 1, 50)
    if kind == "line":
        axes.plot(x, x, label="data")
    elif kind == "points":
        axes.scatter(x, x, label="data")
    else:
        axes.fill_between(x, x - 0.1, x + 0.1, label="data")
    label(axes, "x", "y")
    axes.legend(loc="upper right")
    assert complaints(made) == ["panel 1: the legend covers 'data'"]
    axes.legend(loc="upper left")
    assert complaints(made) == []


def test_seeds_are_drawn_as_a_band_from_the_lowest_to_the_highest():
    made, ((axes,),) = panels()
    curves = Curves(np.arange(3.0), np.array([[0.0, 1, 2], [2, 3, 4], [1, 2, 6]]))
    band(axes, curves, "three seeds")
    (shade,) = axes.collections
    heights = shade.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 6) and list(axes.lines[0].get_ydata()) == [1, 2, 4]
    made, ((axes,),) = panels()
    band(axes, Curves(np.arange(3.0), np.zeros((1, 3))))
    assert not axes.collections


def test_making_a_figure_leaves_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    to_svg(figure()[0])
    assert dict(mpl.rcParams) == before


def test_the_same_figure_gives_the_same_file():
    assert to_svg(figure()[0]) == to_svg(figure()[0])
    assert to_png(figure()[0]) == to_png(figure()[0]) and to_png(figure()[0]).startswith(b"\x89PNG")


def test_text_and_axes_follow_the_page_and_data_keep_their_colour():
    text = to_svg(figure()[0])
    assert "currentColor" in text and PALETTE[0] in text and "#1f2430" not in text.replace("color:#1f2430", "")
    assert "<metadata" not in text and "<!--" not in text


def test_two_figures_of_one_page_share_no_id():
    text = to_svg(figure()[0])
    one, other = inline(text, "a-", "one"), inline(text, "b-", "other")

    def ids(svg: str) -> set[str]:
        return set(re.findall(r'\bid="([^"]+)"', svg))

    assert ids(one) and not ids(one) & ids(other)
    references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', one))
    assert references and references <= ids(one)


@pytest.mark.parametrize(
    "attack",
    [
        "<svg><script>alert(1)</script></svg>",
        '<svg onload="alert(1)"></svg>',
        '<svg><a href="javascript:alert(1)">x</a></svg>',
        "<svg><foreignObject>x</foreignObject></svg>",
        '<svg><image href="http://elsewhere/x.png"/></svg>',
        "not an image",
    ],
)
def test_an_svg_that_could_act_is_shown_as_an_image_where_nothing_runs(attack: str):
    shown = inline(attack, "p-", 'a "caption"')
    assert shown.startswith('<img alt="a &quot;caption&quot;" src="data:image/svg+xml;base64,')
    assert "alert" not in shown and "elsewhere" not in shown


def test_a_unit_stands_in_brackets():
    assert quantity("time", "s") == "time [s]" and quantity("cosine") == "cosine"


@pytest.mark.parametrize(("last", "first"), [(2_000, 50), (2_000, 5), (100_000, 5), (500, 5)])
def test_the_numbers_of_a_step_axis_stand_apart(last: int, first: int):
    with house_style():
        figure, axes = panels(3)
        step_axis(axes[0, 0], last, first)
        figure.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in axes[0, 0].get_xticklabels()]
    gaps = [right.x0 - left.x1 for left, right in itertools.pairwise(boxes)]
    assert gaps and min(gaps) > boxes[0].width, "a digit fits between two numbers"

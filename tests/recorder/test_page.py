"""Figures in the house style, and one page that stands alone."""

import re

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.figures.lint import complaints
from tangentlab.recorder import Recording, TangentRecorder
from tangentlab.recorder.budget import Size
from tests.bench.browser import Browser, programs
from tests.recorder.trainings import STEADY, convolutional, digits_like, probes, train

FIGURES = ["training", "alignment", "layers", "spectrum", "linearity", "complexity", "curvature", "cost"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished recording in which probes had to shrink once and a measure of the user's failed once."""
    target = tmp_path_factory.mktemp("recording")
    torch.manual_seed(0)
    model = convolutional()

    def fragile(view):
        if view.step == 7:
            raise ValueError("<script>alert(1)</script>")
        return {"fragile": 1.0}

    measures = ["performance", "spectrum", "alignment", "linearity", "complexity", "curvature", fragile]
    recorder = TangentRecorder(model, probes(), schedule=[1, 3, 7, 20, 40], folder=target, measures=measures, **STEADY)
    with pytest.warns(RuntimeWarning, match="alert"), recorder:
        train(model, 15, recorder)
        recorder._event("resized", "from 24 to 12 at step 15: too slow", **{"from": [24, 3], "to": [12, 2]})
        recorder.size = Size(12, 2)
        train(model, 30, recorder)
    recorder.report()
    return target


def test_every_quantity_has_its_figure_and_none_breaks_the_house_rules(folder):
    pictures = Recording.load(folder).plot()
    assert [picture.name for picture in pictures] == FIGURES
    assert {picture.name: complaints(picture.figure) for picture in pictures} == {name: [] for name in FIGURES}


def test_figures_are_written_as_svg_and_png(folder, tmp_path):
    Recording.load(folder).plot(tmp_path / "figures")
    for name in FIGURES:
        assert (tmp_path / "figures" / f"{name}.svg").read_text().count("<svg") == 1
        assert (tmp_path / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_curves_are_drawn_with_the_recorded_numbers_and_a_mark_where_the_size_changed(folder):
    recording = Recording.load(folder)
    figure = next(picture.figure for picture in recording.plot() if picture.name == "alignment")
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(zip(*lines["train"].get_data())) == list(zip(*recording.curve("train/cka")))
    marks = [line for line in figure.axes[0].get_lines() if str(line.get_label()).startswith("_")]
    assert [list(mark.get_xdata()) for mark in marks] == [[20, 20]]


def test_drawing_into_the_folder_of_the_recording_touches_nothing_else(tmp_path):
    recorder = TangentRecorder(convolutional(), probes(), measures=["spectrum"], folder=tmp_path, **STEADY)
    (tmp_path / "deep").mkdir()
    for name in ("checkpoint.pt", "mine.svg", "deep/notes.txt"):
        (tmp_path / name).write_text(name)
    with recorder:
        recorder.step()
        recorder.plot(tmp_path)
        recorder.step()
    for name in ("checkpoint.pt", "mine.svg", "deep/notes.txt"):
        assert (tmp_path / name).read_text() == name
    assert Recording.load(tmp_path).rows == recorder.rows and (tmp_path / "spectrum.svg").exists()


def test_more_probes_and_parts_than_colours_are_all_drawn():
    measures = ["performance", *(lambda view, n=n: {f"own {n}": 1.0} for n in range(10))]
    names = ["without labels", *(f"p{number}" for number in range(11))]
    data = {name: digits_like(6) if name != "without labels" else digits_like(6)[0] for name in names}
    recorder = TangentRecorder(convolutional(), data, schedule=1, measures=measures, **STEADY)
    with recorder:
        recorder.step()
    pictures = {picture.name: picture.figure for picture in recorder.plot()}
    legend = pictures["training"].legends[0]
    for panel in pictures["training"].axes:
        drawn = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in panel.get_lines()}
        assert list(drawn) == names[1:] and len(set(drawn.values())) == 11
        named = zip(legend.get_texts(), legend.get_lines(), strict=True)
        assert {text.get_text(): (line.get_color(), line.get_linestyle()) for text, line in named} == drawn
    assert len(pictures["cost"].axes[0].containers) == len(recorder.snapshots[0]["parts"]) == 11
    assert len(pictures["cost"].legends[0].get_texts()) == 11
    assert all(not complaints(figure) for figure in pictures.values())


def test_a_single_snapshot_and_a_single_probe_can_be_drawn(tmp_path):
    recorder = TangentRecorder(convolutional(), {"train": digits_like(12)}, **STEADY)
    with pytest.raises(InputError, match="no snapshot"):
        recorder.plot()
    recorder.start()
    pictures = recorder.plot()
    assert {picture.name for picture in pictures} == set(FIGURES)
    assert all(not complaints(picture.figure) for picture in pictures)
    assert recorder.report(tmp_path / "deep" / "page.html").exists()


def test_only_what_was_measured_is_drawn():
    recorder = TangentRecorder(convolutional(), probes(), measures=["spectrum"], **STEADY)
    recorder.start()
    assert [picture.name for picture in recorder.plot()] == ["spectrum", "cost"]


def test_the_uncentred_measure_has_figures_of_its_own():
    recorder = TangentRecorder(convolutional(), probes(), measures=["uncentred"], **STEADY)
    recorder.start()
    assert [picture.name for picture in recorder.plot()] == ["layers-uncentred", "spectrum-uncentred", "cost"]


def test_the_page_stands_alone_and_tells_what_happened(folder):
    page = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "Smaller probes" in page and "from 24 to 12 at step 15" in page
    assert "24 and 3 at the first snapshot" in page
    assert page.count("<figure") == len(FIGURES)
    assert "7 snapshots from step 0 to 45" in page


def test_a_recorder_without_a_folder_asks_where_the_page_goes():
    recorder = TangentRecorder(convolutional(), probes(), **STEADY)
    recorder.start()
    with pytest.raises(InputError, match="Where"):
        recorder.report()


@pytest.mark.skipif(programs() is None, reason="Chromium and chromedriver are not installed")
@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=["phone", "desk"])
def test_a_browser_shows_the_page_without_errors_requests_or_overflow(folder, tmp_path, size):
    with Browser(tmp_path, *size) as browser:
        browser.console()
        browser.open(folder / "report.html")
        assert browser.console() == []
        assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        shown = "return [...document.querySelectorAll('svg[role=img]')].map(e => e.getBoundingClientRect().width)"
        widths = browser.run(shown)
        assert len(widths) == len(FIGURES) and min(widths) > 150

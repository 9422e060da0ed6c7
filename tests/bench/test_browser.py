"""Pages in a real browser, on a phone and on a desk: nothing breaks, everything is shown, the filter filters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tangentlab.bench.folder import RunFolder
from tests.bench.browser import Browser, programs

SIZES = {"phone": (390, 844), "desk": (1280, 900)}
pytestmark = pytest.mark.skipif(programs() is None, reason="Chromium and chromedriver are not installed")


@pytest.fixture(scope="module", params=SIZES)
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile"), *SIZES[request.param]) as made:
        yield made


def assert_sound(browser: Browser, page: Path) -> None:
    browser.console()
    browser.open(page)
    assert browser.console() == []
    assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
    wider = browser.run(
        "return [document.documentElement.scrollWidth, innerWidth, [...document.querySelectorAll('main *')]"
        ".filter(e => !e.closest('svg, .scroll, pre') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))]"
    )
    assert wider[0] <= wider[1] and wider[2] == [], "the page is wider than the window"
    pictures = browser.run(
        "return [...document.querySelectorAll('svg[role=img]')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    assert pictures and all(width > 150 and height > 50 for width, height in pictures)
    assert browser.run("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")


@pytest.mark.parametrize("name", ["parameter-distance", "toy-training", "toy-claims"])
def test_a_report_is_shown_without_errors_requests_or_overflow(browser: Browser, runs: dict[str, RunFolder], name: str):
    assert_sound(browser, runs[name].report_file)


def test_text_in_figures_stays_readable_at_every_width(browser: Browser, runs: dict[str, RunFolder]):
    browser.open(runs["parameter-distance"].report_file)
    scale = browser.run(
        "return [...document.querySelectorAll('figure svg')]"
        ".map(e => e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
    )
    # labels are set in 9 to 10 points
    assert min(scale) >= 0.91


def test_the_gallery_filters_by_chapter_and_back(browser: Browser, gallery: Path):
    assert_sound(browser, gallery)
    visible = "return [...document.querySelectorAll('article')].filter(e => e.offsetParent !== null).map(e => e.id)"
    everything = browser.run(visible)
    assert set(everything) == {"toy-training", "toy-claims", "parameter-distance"}
    for chapter, expected in (("2 Geo", {"toy-training", "parameter-distance"}), ("10 Lim", {"toy-claims"})):
        browser.run(f"document.querySelector('button[data-chapter^=\"{chapter}\"]').click()")
        assert set(browser.run(visible)) == expected
        pressed = browser.run(
            "return [...document.querySelectorAll('button[aria-pressed=true]')].map(e => e.innerText)"
        )
        assert len(pressed) == 1 and pressed[0].startswith(chapter)
    browser.run("document.querySelector('button[data-chapter=\"\"]').click()")
    assert browser.run(visible) == everything and browser.console() == []


def test_a_card_leads_to_the_report(browser: Browser, gallery: Path):
    browser.open(gallery)
    browser.run("document.querySelector('#toy-training a').click()")
    assert "that trains" in browser.run("return document.querySelector('h1').innerText")


def test_pages_follow_the_readers_preference_for_light_or_dark(
    browser: Browser, runs: dict[str, RunFolder], gallery: Path
):
    def brightness(css: str) -> float:
        numbers = [float(part) for part in css[css.index("(") + 1 : -1].split(",")[:3]]
        return sum(numbers) / 3

    for page in (runs["parameter-distance"].report_file, gallery):
        browser.open(page)
        for scheme, dark in (("dark", True), ("light", False)):
            browser.prefer(scheme)
            style = "getComputedStyle(document.{0}).{1}"
            background = brightness(browser.run(f"return {style.format('body', 'backgroundColor')}"))
            ink = brightness(browser.run("return getComputedStyle(document.querySelector('svg')).color"))
            assert (background < 60) == dark and (ink > 180) == dark

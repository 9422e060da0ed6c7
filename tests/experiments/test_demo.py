"""The tour at a reduced size: it runs, says what it found, and writes one page that needs nothing else."""

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tangentlab.data import load, standardize
from tangentlab.demo import Settings, run_tour, stations
from tangentlab.demo.page import short
from tangentlab.figures.lint import complaints

TINY = Settings(width=2, images=120, updates=4, batch=20, fisher_images=12, per_class=2, epochs=1)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a tiny tour and what it printed."""
    out, text = tmp_path_factory.mktemp("demo"), io.StringIO()
    before = torch.get_rng_state()
    page = run_tour(TINY, out, Console(file=text, width=120))
    assert page == out / "report.html" and torch.equal(torch.get_rng_state(), before)
    return out, text.getvalue()


def test_the_tour_prints_every_representation_and_the_page_to_open(tour: tuple[Path, str]):
    out, text = tour
    for name in (*stations.REPRESENTATIONS, *stations.RATES):
        assert re.search(rf"^{name}\s", text, re.MULTILINE), name
    assert f"open {out / 'report.html'}" in text


def test_the_page_holds_all_figures_and_needs_no_network(tour: tuple[Path, str]):
    out, _ = tour
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and page.count("<figure") == 3
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert {path.name for path in (out / "figures").glob("*.png")} == {
        "overview.png",
        "fisher.png",
        "kernel.png",
        "race.png",
    }


def test_exact_representations_have_no_error_and_an_approximation_has_one():
    (data,) = standardize(load("digits"))
    rows = {row.name: row for row in stations.compare_fisher(stations.small_cnn(2), data.first(10), lambda: None)}
    assert list(rows) == list(stations.REPRESENTATIONS)
    for name in ("Dense", "Implicit", "LowRank"):
        assert rows[name].frobenius < 1e-4 and rows[name].natural > 0.9999, name
    for name in ("EKFAC", "KFAC", "Diag"):
        assert rows[name].frobenius > 0.05, name
    assert rows["EKFAC"].trace < 1e-4 < rows["KFAC"].trace
    assert rows["EKFAC"].frobenius <= rows["KFAC"].frobenius
    assert rows["Implicit"].stored == 0 < rows["Diag"].stored < rows["Dense"].stored


def test_the_kernel_of_the_labels_is_aligned_with_itself_and_not_with_that_of_shuffled_labels():
    labels = torch.arange(10).repeat_interleave(4)
    same = (labels[:, None] == labels).float()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert stations.centred_cosine(same, same) == pytest.approx(1, abs=1e-5)
    assert stations.centred_cosine(same[order][:, order], same) < 0.4


def test_figures_of_the_tour_keep_the_house_style(tour: tuple[Path, str]):
    from tangentlab.demo import figures

    runs = [stations.Run(name, 0.1, [2.0, 1.0, 0.1], [0.0, 1.0, 2.0]) for name in stations.RATES]
    rows = [stations.FisherRow(name, 100, 0.1, 0.5, 0.1, 0.5, 0.9) for name in stations.REPRESENTATIONS]
    kernel = torch.eye(20) + 0.1
    kernels = stations.Kernels(kernel, kernel, 0.1, 0.9, 2)
    drawn = (
        figures.overview(rows, rows, kernels, runs),
        figures.fisher_picture(rows, rows),
        figures.kernel_picture(kernels),
        figures.race_picture(runs),
    )
    for picture in drawn:
        assert complaints(picture.figure) == [], picture.name


def test_numbers_of_the_table_hide_rounding_and_keep_signs():
    assert (short(3e-7), short(0.126), short(-0.07)) == ("0", "0.13", "−0.07")

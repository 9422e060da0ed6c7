"""examples/record_training.py runs with nothing but what is embedded."""

import runpy
from pathlib import Path

import pytest

from tangentlab.recorder import Recording

EXAMPLE = Path(__file__).parents[2] / "examples" / "record_training.py"


def test_the_example_records_the_embedded_digits_where_mnist_is_absent(tmp_path, monkeypatch, capsys):
    for name in ("TANGENTLAB_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    main = runpy.run_path(str(EXAMPLE))["main"]
    small = ["--steps", "8", "--width", "12", "--size", "20", "3", "--folder", str(tmp_path / "run")]
    recorder = main(small)
    assert [row["step"] for row in Recording.load(tmp_path / "run").snapshots] == [0, 5, 8]
    assert (recorder.size.examples, recorder.size.outputs) == (20, 3)
    printed = capsys.readouterr().out
    assert "test cka" in printed and "report.html" in printed and (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_its_noise_replaces_the_share_of_labels_that_it_says(share):
    import torch

    parts = runpy.run_path(str(EXAMPLE))
    labels = torch.full((20_000,), 3)
    _, noisy = parts["with_noise"]((labels, labels), share, torch.Generator().manual_seed(0))
    assert float((noisy != 3).double().mean()) == pytest.approx(0.9 * share, abs=0.015)

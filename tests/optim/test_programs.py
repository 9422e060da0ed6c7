"""The example and the benchmark run, small."""

import io
import runpy
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.optim_overhead import amortize, judge, table
from benchmarks.optim_worker import measure

ROOT = Path(__file__).parents[2]


def test_the_example_trains_with_both_optimizers(monkeypatch, capsys) -> None:
    sizes = ["--steps", "12", "--batch", "4", "--context", "16", "--width", "16", "--layers", "1", "--period", "5"]
    monkeypatch.setattr(sys, "argv", ["gpt_ekfac.py", *sizes])
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(ROOT / "examples" / "gpt_ekfac.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "ekfac-ra: 100.0% of the parameters are preconditioned" in printed
    losses = {name: [float(line.split()[6]) for line in printed.splitlines() if line.startswith(f"  {name} ")]
              for name in ("EKFAC-ra", "AdamW")}  # fmt: skip
    for name, found in losses.items():
        assert len(found) == 6 and found[-1] < found[0], name


@pytest.mark.parametrize("name", ["ekfac-ra", "ekfac-ra-sua", "kfac", "soap"])
def test_the_benchmark_measures_steps_and_their_parts(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        found = measure(name, batch=2, pixels=8, width=4, reps=1)
    amortize(found, period=100)
    assert found["ratio"] > 0.5
    assert set(found["seconds"]) == {"sgd", "ordinary", "refresh"}
    if name == "soap":
        assert found["parts"] is None
    else:
        assert set(found["parts"]["refresh"]) == {"statistics", "eigh", "rotation"}
        assert "eigh" not in found["parts"]["ordinary"]
        spent = found["parts"]["refresh"]
        assert 0 < sum(spent.values()) < found["seconds"]["refresh"]


def test_amortization_and_targets() -> None:
    parts = {"ordinary": {"rotation": 0.2}, "refresh": {"rotation": 0.2, "eigh": 10.0}}
    found = {"seconds": {"sgd": 1.0, "ordinary": 1.2, "refresh": 21.2}, "parts": parts}
    amortize(found, period=100)
    assert found["ratio"] == pytest.approx(1.4)
    assert found["split"] == pytest.approx({"rotation": 0.2, "eigh": 0.1})
    met = judge({"ekfac-ra": found, "peer-singd": {"ratio": 1.3}, "soap": {"error": "x"}})
    assert met == {"ekfac-ra <= 1.5": True, "ekfac-ra < peer-singd": False}
    whole = {"seconds": found["seconds"], "ratio": 1.3, "parts": None}  # a peer, whose step is not taken apart
    contenders = {"ekfac-ra": found, "peer-singd": whole, "peer-asdl": {"error": "no wheel"}}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table({"net": "n", "period": 100, "contenders": contenders}))
    lines = [line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│")]
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    assert list(cells) == ["peer-singd", "ekfac-ra", "peer-asdl"]  # cheapest first
    assert cells["ekfac-ra"] == ["1.400", "1.20", "21.20", "0.200", "0.000", "0.100", "<= 1.5"]
    assert cells["peer-singd"] == ["1.300", "1.20", "21.20", "", "", "", ""]
    assert cells["peer-asdl"][0] == "no wheel"

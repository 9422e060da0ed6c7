"""What the proof of every route costs: calls with `verify=True` over calls with `verify=False`, in one run."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import nets, report
from benchmarks.linearized_step import best_times

HELP = """
The cost of the certificate: a call that proves its routes over the same call without a proof.

Both take turns on the same batches; the best of [bold]--reps[/] counts, of five times as many where a call is short. A call
over 20 batches of one shape makes one proof, and so does a call of one batch.

[bold]Result[/]: benchmarks/results/certificate.json and a table. Exit code 1 when a call over 20 batches pays more than 3 %
(10 outputs) or 10 % (one output).
"""
BATCHES = 20
TARGETS = {10: 1.03, 1: 1.10}


def networks(outputs: int) -> dict[str, tuple[nn.Module, Tensor]]:
    """Networks with one batch each."""
    torch.manual_seed(0)
    return {
        "MLP": (nets.mlp(512, 2, outputs=outputs), torch.randn(64, 784)),
        "ResNet18": (nets.ResNet18(16, outputs), torch.randn(16, 3, 32, 32)),
        "transformer": (nets.Transformer(64, 2, vocabulary=64, outputs=outputs), torch.randint(64, (32, 32))),
    }


def calls(model: nn.Module, batches: list[tuple[Tensor]]) -> dict[str, Callable[[bool], Any]]:
    """Operations by name, each taking `verify`; kernels, whose cost grows with the square, of a quarter of the examples."""
    import tangentlab as tl

    fewer = [(x[: len(x) // 4],) for (x,) in batches]
    return {
        "diagonal": lambda verify: tl.FIM(model, batches, tl.PMatDiag, "regression", verify=verify),
        "KFAC": lambda verify: tl.FIM(model, batches, tl.PMatMixed.default(), "regression", verify=verify),
        "kernel": lambda verify: tl.NTK(model, fewer, verify=verify),
    }


def measured(outputs: int, count: int, reps: int) -> list[dict[str, Any]]:
    """One row per network and operation."""
    rows = []
    for network, (model, x) in networks(outputs).items():
        for name, call in calls(model, [(x,)] * count).items():
            both = {"proved": lambda c=call: c(True), "not": lambda c=call: c(False)}  # type: ignore[misc]
            times = best_times(both, reps if count > 1 and network != "MLP" else 5 * reps)
            row = {"network": network, "call": name, "outputs": outputs, "batches": count, **times}
            rows.append(
                {**row, "ratio": times["proved"] / times["not"], "target": TARGETS[outputs] if count > 1 else None}
            )
    return rows


def main(
    reps: Annotated[int, typer.Option(help="Turns that count.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    name: Annotated[str, typer.Option(help="File name of the result.")] = "certificate",
) -> None:
    torch.set_num_threads(threads)
    rows = [row for outputs in TARGETS for count in (BATCHES, 1) for row in measured(outputs, count, reps)]
    console, table = (
        Console(),
        Table("network", "call", "outputs", "batches", "proved", "not proved", "ratio", "target"),
    )
    for row in rows:
        cells = [
            row["network"],
            row["call"],
            row["outputs"],
            row["batches"],
            f"{row['proved']:.4f} s",
            f"{row['not']:.4f} s",
        ]
        table.add_row(*map(str, cells), f"{row['ratio']:.3f}", f"{row['target'] or '-'}")
    console.print(table)
    result = {"date": datetime.date.today().isoformat(), "threads": threads, "torch": torch.__version__, "rows": rows}
    (report.RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    raise typer.Exit(int(any(row["target"] and row["ratio"] > row["target"] for row in rows)))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()

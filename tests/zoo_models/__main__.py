"""The models of others: `python -m tests.zoo_models --save` in an environment that has them (`make test-models`)."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import tangentlab
from tests.trial.summary import PAGE, page
from tests.zoo_models.all import SPECIMENS
from tests.zoo_models.base import Specimen
from tests.zoo_models.judge import EXACT, FAILURES, OPERATIONS, REFUSED, Subject, judged

RESULT = Path(__file__).parents[2] / "results" / "trial" / "models.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo_models", description=__doc__)
    parser.add_argument(
        "--save", action="store_true", help="write results/trial/models.json and the table of docs/models.md"
    )
    parser.add_argument("--only", default="", help="only specimens with this in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = [one for one in SPECIMENS if one.installed and options.only.lower() in str(one).lower()]
    rows = [examined(one) for one in chosen]
    packages = sorted({one.package for one in chosen})
    result = {
        "tangentlab": tangentlab.__version__,
        "torch": torch.__version__,
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "models": rows,
    }
    if options.save:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        PAGE.write_text(page(PAGE.read_text(), "models", table(result)))
    return int(any(verdict["outcome"] in FAILURES for row in rows for verdict in row["operations"].values()))


def table(result: dict[str, Any]) -> str:
    """The part of docs/models.md."""
    lines = ["| | models | exact | refused in words | failures | largest relative error in float64 |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for package, version in result["packages"].items():
        rows = [row for row in result["models"] if row["package"] == package]
        verdicts = [verdict for row in rows for verdict in row["operations"].values()]
        counts = [sum(v["outcome"] in some for v in verdicts) for some in ((EXACT,), (REFUSED,), FAILURES)]
        errors = [v["error"] for row in rows if row["plain"] for v in row["operations"].values() if "error" in v]
        cells = [f"{package} {version}", len(rows), *counts, f"{max(errors):.0e}"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def examined(one: Specimen) -> dict[str, Any]:
    """A row of the table."""
    start = time.perf_counter()
    subject = Subject(one)
    verdicts = {name: judged(subject, name) for name in OPERATIONS}
    cells = [
        f"{name} {verdict.outcome}" + (f" {verdict.error:.0e}" if verdict.error is not None else "")
        for name, verdict in verdicts.items()
    ]
    size = subject.rows.shape[-1]
    print(f"{one} ({size:,} parameters, {time.perf_counter() - start:.1f} s): {', '.join(cells)}", flush=True)
    for verdict in verdicts.values():
        if verdict.words:
            print(f"    {verdict.operation}: {verdict.words[:300]}", flush=True)
    operations = {
        name: {"outcome": v.outcome} | ({"error": v.error} if v.error is not None else {"words": v.words[:200]})
        for name, v in verdicts.items()
    }
    plain = one.dtype == torch.float64 and not one.rounds
    return {"model": one.name, "package": one.package, "parameters": size, "plain": plain, "operations": operations}


if __name__ == "__main__":
    sys.exit(main())

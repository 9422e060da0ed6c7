"""Committing desk results: `python -m tangentlab.bench.publish RUN ...` copies what belongs in the repository.

Claims, figures, config and compressed metrics of complete desk runs go to `results/desk/<experiment>/`; then
`docs/claims.md` is made again from everything that lies there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tangentlab.bench.claims_page import PAGE, RESULTS, write_claims_page
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.judging import judge_again
from tangentlab.bench.kept import keep
from tangentlab.bench.summary import read_summary
from tangentlab.bench.trend import FOLDER as TRENDS
from tangentlab.errors import InputError, TangentlabError
from tangentlab.files import disk_errors, make_folder


def publish(run: Path, results: Path = RESULTS) -> Path:
    """Copy a run's claims, config, SVG figures and metrics to `results`; an error when it is not fit to be shown."""
    summary = read_summary(run)
    if summary is None:
        raise InputError(f"{run} holds no claims.json; is it a run's folder?")
    if faults := unfit(summary):
        raise InputError(f"{run} cannot be published: {'; '.join(faults)}.")
    target = results / summary["experiment"]
    with disk_errors(target):
        made = Path(tempfile.mkdtemp(prefix=".", dir=make_folder(results)))
        try:
            _fill(made, run)
            if (target / TRENDS).exists():
                shutil.copytree(target / TRENDS, made / TRENDS)
            if changes := judge_again(RunFolder(made)).changes:
                raise InputError(f"{run} is not judged alike by what would be kept of it: {'; '.join(changes)}.")
            shutil.rmtree(target, ignore_errors=True)
            made.chmod(0o755)
            made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target


def _fill(target: Path, run: Path) -> None:
    folder = RunFolder.open(run)
    keep(folder, target, folder.config().build().dropped)
    (target / "figures").mkdir()
    for name in ("claims.json", "config.yaml", "figures/index.json"):
        shutil.copyfile(run / name, target / name)
    for figure in sorted((run / "figures").glob("*.svg")):
        shutil.copyfile(figure, target / "figures" / figure.name)


def unfit(summary: dict[str, Any]) -> list[str]:
    """Why a run is not a result: one reason each."""
    reasons = {
        "it did not come to its end": summary["status"] != "complete",
        f"its scale is {summary['scale']}, not desk": summary["scale"] != "desk",
        "it was cut short by --max-steps": summary["max_steps"] is not None,
        f"parameters were changed ({', '.join(summary['changed'])})": bool(summary["changed"]),
        "noise stood in for data": bool(summary["stand_ins"]),
        "claims were never measured": any(claim["status"] == "missing" for claim in summary["claims"]),
        "the sources were changed after the commit, or there is none": summary["provenance"]["commit"].endswith(
            ("+changes", "unknown")
        ),
    }
    return [reason for reason, true in reasons.items() if true]


def main(arguments: list[str]) -> int:
    """Publish the given runs and write the page of claims."""
    parser = argparse.ArgumentParser(prog="python -m tangentlab.bench.publish", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of complete desk runs; none: only write the page")
    chosen = parser.parse_args(arguments)
    try:
        for run in chosen.runs:
            print(publish(run))
    except TangentlabError as error:
        print(error, file=sys.stderr)
        return 1
    write_claims_page(RESULTS, PAGE)
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

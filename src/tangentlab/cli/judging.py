"""The commands `judge` and `trend`: results judged again, and whether a claim goes towards the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tangentlab.cli.common import DEFAULT_OUT, OUT_HELP, friendly_errors, run_one


def judge(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="RESULT", help="Folders of results or runs.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every result below results/desk.")] = False,
) -> None:
    """Judge results again from the metrics they keep: verdicts and figures, in seconds, and what has changed.

    `tangentlab judge results/desk/NAME` judges a committed result by today's claims; where its metrics were not kept, the
    numbers in claims.json are judged, and its figures stay.
    """
    from tangentlab.bench.claims_page import PAGE, RESULTS, write_claims_page
    from tangentlab.bench.errors import SettingError
    from tangentlab.bench.folder import RunFolder
    from tangentlab.bench.judging import judge_again
    from tangentlab.cli.console import show_judged

    with friendly_errors():
        if everything == bool(folders):
            raise SettingError("Name one or more folders of results, or give --all (not both).")
        chosen = sorted(RESULTS.glob("*/")) if everything else folders or []
        if not chosen:
            raise SettingError(f"There is no result below {RESULTS}: the command is run in the project's folder.")
        judged = [judge_again(RunFolder.open(folder)) for folder in chosen]
        show_judged(judged)
        if PAGE.exists() and any(one.folder.resolve().parent == RESULTS.resolve() for one in judged):
            write_claims_page(RESULTS, PAGE)


def trend(
    name: Annotated[str, typer.Argument(help="An experiment.")],
    claim: Annotated[str, typer.Argument(help="One of its claims.")],
    over: Annotated[str, typer.Option(metavar="SETTING=A,B,C", help="The ladder, as in --over width=64,128,256.")],
    scale: Annotated[str, typer.Option(help="What everything else is taken from.")] = "desk",
    seeds: Annotated[int | None, typer.Option(help="How many seeds at every rung.", show_default="its own")] = None,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = DEFAULT_OUT,
    into: Annotated[Path | None, typer.Option(help="Folder of a result that the trend is put into.")] = None,
    workers: Annotated[int | None, typer.Option(help="Parallel processes.", min=1, show_default="one per core")] = None,
) -> None:
    """Ask of a claim that fails at desk scale: does it go towards the paper? The same measure over a ladder of a setting.

    Rungs that were run before are not run again. `--into results/desk/NAME` puts the figure on the page of that result.
    """
    import yaml

    from tangentlab.bench.trend import climb, ladder, write_trend
    from tangentlab.cli.console import say

    with friendly_errors():
        setting, _, rungs = over.partition("=")
        values = [yaml.safe_load(rung) for rung in rungs.split(",")]
        configs = ladder(name, claim, setting.strip(), values, scale, seeds)
        found = climb(configs, claim, setting.strip(), lambda config: run_one(config, out, True, workers))
        file = write_trend(found, into or out)
        say(f"{claim} over {found.setting}: it goes {found.direction()}")
        say(f"trend    {file}")

"""The `tangentlab` command: from a question to its figure.

Nothing heavy is imported before a command needs it, so `--help` answers at once.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangentlab.cli.common import DEFAULT_OUT, OUT_HELP, friendly_errors, run_one
from tangentlab.cli.judging import judge, trend

if TYPE_CHECKING:
    from tangentlab.bench.folder import Config

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help=(
        "The laboratory for networks seen to first order in their parameters.\n\n"
        "An **experiment** is a question with claims that a run measures. Start here:\n\n"
        "- `tangentlab list` shows the experiments\n\n"
        "- `tangentlab run kl-expansion` answers one (half a minute) and writes a page to open\n\n"
        "- `tangentlab gallery` puts all your runs on one page\n\n"
        "- `tangentlab check mymodule:make_model` looks at your own network"
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from tangentlab import __version__

        typer.echo(f"tangentlab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Tell the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What the command takes before the name of a subcommand; its help is that of the app."""


@app.command("list")
def list_experiments(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tell all about these: question, claims, settings.", show_default="all")
    ] = None,
    chapter: Annotated[str, typer.Option(help="Only chapters whose title contains this.")] = "",
) -> None:
    """List the experiments: what they ask, how many claims they judge, how long they take at each scale."""
    from tangentlab.bench.errors import SettingError
    from tangentlab.bench.registry import entries, find
    from tangentlab.cli.console import show_experiment, show_experiments

    with friendly_errors():
        for name in names or []:
            show_experiment(find(name))
        if names:
            return
        known = entries()
        chosen = [entry for entry in known if chapter.lower() in entry.chapter.lower()]
        if not chosen:
            titles = dict.fromkeys(entry.chapter for entry in known)
            raise SettingError(
                f"No chapter with '{chapter}' in its title has experiments (there are: {', '.join(titles)})."
            )
        show_experiments(chosen)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, as `tangentlab list` names them.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every experiment, one after the other.")] = False,
    scale: Annotated[str, typer.Option(help="smoke: seconds. desk: minutes. paper: the paper's own numbers.")] = "desk",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a parameter, as in --set width=64. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds; they run in parallel.", show_default="its own")
    ] = None,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = DEFAULT_OUT,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the newest run of the same settings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell steps, memory and time.")] = False,
    max_steps: Annotated[int | None, typer.Option(help="Cut every loop after so many steps (to try things).")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when a tested claim is not held.")] = False,
    workers: Annotated[int | None, typer.Option(help="Parallel processes.", min=1, show_default="one per core")] = None,
) -> None:
    """Run experiments and write a folder for each: config, metrics, figures, claims and a page to open.

    A run that was interrupted or killed goes on with `--resume` and ends with the same numbers. Exit codes: 0 done; 1 a
    seed failed, a claim was never measured, or (`--strict`) a claim is not held; 2 wrong usage; 130 interrupted.
    """
    from tangentlab.cli.console import show_error, show_plan
    from tangentlab.errors import TangentlabError

    with friendly_errors():
        configs = _configs(names or [], everything, scale, settings or [], seed, seeds, max_steps)
        if dry_run:
            for config in configs:
                show_plan(config)
            return
    code = 0
    for config in configs:
        try:
            outcome = run_one(config, out, resume, workers)
            code = max(code, outcome.exit_code(strict))
        except TangentlabError as error:  # the experiments after it can still run
            show_error(f"{config.experiment}: {error}")
            code = max(code, 2)
            continue
        if outcome.interrupted:
            break
    if code:
        raise typer.Exit(code)


@app.command()
def show(
    which: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or an experiment (its newest run).")],
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = DEFAULT_OUT,
    redraw: Annotated[bool, typer.Option("--redraw", help="Judge, draw and write the page again.")] = False,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show what a run found: verdicts, figures, and where its page is."""
    from tangentlab.bench.folder import RunFolder
    from tangentlab.bench.page import write_report
    from tangentlab.cli.console import show_run

    with friendly_errors():
        folder = RunFolder.open(_find_run(which, out))
        if redraw:
            from tangentlab.bench.judging import judge_again

            judge_again(folder)
        if browse and not folder.report_file.exists() and folder.claims_file.exists():
            write_report(folder)
        show_run(folder)
        if browse and folder.report_file.exists():
            typer.launch(str(folder.report_file))


app.command()(judge)
app.command()(trend)


@app.command()
def gallery(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = DEFAULT_OUT,
    target: Annotated[
        Path | None, typer.Option("--to", help="The page to write.", show_default="in that folder")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Put the newest run of every experiment on one page: thumbnails, verdicts, a filter by chapter.

    `tangentlab gallery results/desk` shows the committed results.
    """
    from tangentlab.bench.errors import RunError
    from tangentlab.bench.folder import runs_below
    from tangentlab.bench.gallery import write_gallery
    from tangentlab.cli.console import say
    from tangentlab.files import make_folder

    with friendly_errors():
        if not folder.is_dir():
            raise RunError(f"There is no folder '{folder}'; `tangentlab run` makes run folders in '{DEFAULT_OUT}'.")
        page = target if target is not None else folder / "gallery.html"
        make_folder(page.parent)
        count = write_gallery([run.path for run in runs_below(folder)], page)
        say(f"{count} experiment{'s' if count != 1 else ''} in {page}")
        if browse:
            typer.launch(str(page))


@app.command()
def check(
    target: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that makes (model, inputs).")],
    shape: Annotated[
        str, typer.Option(help="Shape of one input, as in 3,32,32, when FACTORY gives a model only.")
    ] = "",
    examples: Annotated[int, typer.Option("-n", min=1, help="Number of examples to plan a tangent kernel for.")] = 1000,
) -> None:
    """Look at your own network: what the engine covers, whether it agrees with autograd, what memory it needs.

    FACTORY is called without arguments and returns a model, or a model and a small batch of inputs.
    """
    from tangentlab.cli.check import check_model

    with friendly_errors():
        if not check_model(target, shape, examples):
            raise typer.Exit(1)


@app.command()
def replay(
    config: Annotated[Path, typer.Argument(help="The config.yaml of a run.")],
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = DEFAULT_OUT,
    workers: Annotated[int | None, typer.Option(help="Parallel processes.", min=1, show_default="one per core")] = None,
) -> None:
    """Run a config again and compare every number with the first time.

    Exit code 1 when the metrics beside the config differ from the new ones.
    """
    from dataclasses import replace

    from tangentlab.bench.compare import compare_runs
    from tangentlab.bench.folder import RunFolder, read_config
    from tangentlab.bench.provenance import provenance
    from tangentlab.bench.row_files import read_rows
    from tangentlab.cli.console import show_comparison

    with friendly_errors():
        wanted = replace(read_config(config), provenance=provenance())
        first = RunFolder(config.parent)
        read_rows(first.metrics_file)  # damage is better told before the work than after it
        outcome = run_one(wanted, out, False, workers)
        code = outcome.exit_code()
        if not code and first.metrics_file.exists():
            comparison = compare_runs(first, outcome.folder)
            show_comparison(comparison)
            code = int(not comparison.identical)
    if code:
        raise typer.Exit(code)


def _configs(
    names: list[str],
    everything: bool,
    scale: str,
    settings: list[str],
    seed: int,
    seeds: int | None,
    max_steps: int | None,
) -> list[Config]:
    """The configs of all runs asked for, checked before the first of them starts."""
    from tangentlab.bench.errors import SettingError
    from tangentlab.bench.registry import all_experiments, find
    from tangentlab.bench.runner import make_config
    from tangentlab.bench.settings import parse_assignments

    if everything == bool(names):
        raise SettingError("Name one or more experiments, or give --all (not both); `tangentlab list` shows them.")
    if everything and settings:
        raise SettingError("--set belongs to one experiment; it cannot be used with --all.")
    kinds = all_experiments() if everything else [find(name) for name in names]
    return [
        make_config(
            kind.at(scale, **parse_assignments(kind, settings)),
            scale,
            first_seed=seed,
            seeds=seeds,
            max_steps=max_steps,
        )
        for kind in kinds
    ]


def _find_run(which: str, out: Path) -> Path:
    """A path as it is, or the newest run of the experiment with that name."""
    from tangentlab.bench.errors import RunError
    from tangentlab.bench.folder import runs_below
    from tangentlab.errors import TangentlabError

    if Path(which).exists():
        return Path(which)
    for folder in reversed(runs_below(out)):
        with suppress(TangentlabError):  # a damaged config of another run should not stop this one
            if folder.config().experiment == which:
                return folder.path
    raise RunError(f"There is no run folder '{which}' and no run of an experiment with that name below {out}.")


def main(arguments: list[str] | None = None) -> Any:
    """The command as a function, for `python -m tangentlab.cli`."""
    return app(arguments if arguments is not None else sys.argv[1:], prog_name="tangentlab")


if __name__ == "__main__":
    main()

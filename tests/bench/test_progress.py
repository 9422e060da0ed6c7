"""The live display: what is happening, numbers of the moment, and quiet where nobody watches."""

import io
from pathlib import Path

from rich.console import Console

from tangentlab.bench.display import ProgressDisplay, describe
from tangentlab.bench.folder import Config, RunFolder

EVENT = {"seed": 0, "what": "training the net", "done": 120, "total": 400, "steps": 120, "live": {"loss": 0.31234}}


def display(terminal: bool) -> tuple[ProgressDisplay, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160, color_system=None)
    return ProgressDisplay(Config("kl-expansion", "smoke", (0,), {}), console), stream


def test_an_event_reads_as_a_sentence():
    assert describe(EVENT) == "training the net 120/400, loss 0.312"
    assert describe({**EVENT, "total": None, "live": {"where": "x"}}) == "training the net, where x"


def test_going_on_with_a_run_of_another_version_is_said(tmp_path: Path):
    shown, stream = display(terminal=False)
    shown.announce(RunFolder.create(tmp_path, Config("kl-expansion", "smoke", (0,), {}, None, {"commit": "abc"})))
    assert "begun at commit abc, going on at None" in stream.getvalue()
    shown, stream = display(terminal=False)
    shown.announce(RunFolder.create(tmp_path, Config("kl-expansion", "smoke", (0,), {})))
    assert "begun" not in stream.getvalue()


def test_a_terminal_shows_seed_share_remaining_time_and_numbers():
    shown, stream = display(terminal=True)
    with shown:
        shown.event({**EVENT, "steps": 0})
        shown.event({**EVENT, "steps": 210})
        shown._progress.refresh()
    text = stream.getvalue()
    assert "seed 0" in text and "50 %" in text and "left" in text and "loss 0.312" in text


def test_a_log_file_gets_few_lines_and_the_end():
    shown, stream = display(terminal=False)
    with shown:
        for _ in range(100):
            shown.event(EVENT)
        shown.event({"seed": 0, "ended": True, "code": 0})
        shown.event({"seed": 1, "ended": True, "code": 1})
    lines = stream.getvalue().splitlines()
    assert lines == ["seed 0: training the net 120/400, loss 0.312", "seed 0: done", "seed 1: failed"]

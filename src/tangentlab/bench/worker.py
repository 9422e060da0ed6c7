"""One seed in a process of its own: `python -m tangentlab.bench.worker FOLDER SEED`.

Its standard output carries events for the process that started it, one JSON object per line. When its standard input
ends, because that process wants it to stop or has died, it writes a checkpoint and leaves.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tangentlab.bench.errors import RunStopped
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.lab import Event, Lab
from tangentlab.bench.seeds import derive, single_thread
from tangentlab.errors import TangentlabError

DONE, FAILED, STOPPED = 0, 1, 3
GRACE_SECONDS = 20.0


def run_seed(
    folder: RunFolder,
    seed: int,
    report: Callable[[Event], None] = lambda event: None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Run one seed of the run in `folder` to its end, from its last checkpoint if there is one."""
    import torch

    config = folder.config()
    experiment = config.build()
    with folder.seed_lock(seed), single_thread(), torch.random.fork_rng(devices=[]):
        # whatever an experiment draws outside of named streams must at least repeat with the seed
        torch.manual_seed(derive(seed, "global"))
        lab = Lab(experiment, folder, seed, max_steps=config.max_steps, report=report, stopping=stopping)
        try:
            experiment.run(lab)
            lab.finish()
        finally:
            lab.close()


def main(arguments: list[str]) -> int:
    """The process: 0 when the seed came to its end, 3 when it was stopped, 1 when it failed."""
    folder, seed = RunFolder.open(Path(arguments[0])), int(arguments[1])
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an experiment prints goes to the log, not between the events
    stop = threading.Event()
    threading.Thread(target=_watch_input, args=(stop,), daemon=True).start()

    def report(event: Event) -> None:
        try:
            events.write(json.dumps({"seed": seed, **event}) + "\n")
        except OSError:  # nobody listens any more; the watcher will stop us
            stop.set()

    try:
        run_seed(folder, seed, report, stop.is_set)
    except (RunStopped, KeyboardInterrupt):
        return STOPPED
    except Exception as error:
        if isinstance(error, TangentlabError):  # it was made to be read by itself; the way there is in the log
            report({"problem": str(error)})
        with suppress(OSError):  # a full disk takes no log either
            traceback.print_exc()
        return FAILED
    return DONE


def _watch_input(stop: threading.Event) -> None:
    """Set `stop` when standard input ends, and leave the hard way when that does not help."""
    while os.read(0, 1024):
        pass
    stop.set()
    timer = threading.Timer(GRACE_SECONDS, os._exit, (STOPPED,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

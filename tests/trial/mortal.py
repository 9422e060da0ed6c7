"""A worker that does not survive its tasks."""

import os
import time
from multiprocessing.connection import Connection


def mortal(connection: Connection, seed: int) -> None:
    """Task 1 ends the process, task 2 never ends."""
    connection.send(("ready", {}))
    while (task := connection.recv()) is not None:
        connection.send(("begun", {"operation": "ntk", "kinds": ["linear"]}))
        if task == 1:
            os.abort()
        if task == 2:
            time.sleep(600)
        connection.send(("done", {"outcome": "exact", "detail": str(task), "seconds": 0.0}))

"""Independent pieces of work side by side, with one thread each.

`torch.set_num_threads` writes two things: the count of the calling thread, and the count that threads started later
will begin with. A worker that sets its own count therefore never disturbs its caller, and the caller sets its own
unchanged count once more at the end to give later threads their old start.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from tangentlab.temporary import changed

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Runs the block with `count` threads and restores the count of the calling thread."""
    before = torch.get_num_threads()
    yield from changed(lambda: torch.set_num_threads(count), lambda: torch.set_num_threads(before))


def others_running() -> int:
    """Threads of other processes that want a processor right now (0 where the system does not say).

    A decomposition with p threads meets at barriers thousands of times; one processor taken by another process makes
    all of them wait for a time slice at each. Measured on two cores: eigh of 1024 x 1024 in float32 takes 0.10 s with
    two threads on an idle machine and 0.35 to 0.50 s next to one busy process, against 0.14 s with one thread in both.
    """
    try:
        runnable = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        own = sum(_is_running(task) for task in Path("/proc/self/task").iterdir())
    except (OSError, ValueError, IndexError):
        return 0
    return max(0, runnable - own)


def _is_running(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
    except (OSError, IndexError):
        return False


def processors_are_free(threads: int) -> bool:
    """Whether `threads` threads of this process would each find a processor of their own."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return threads + others_running() <= cores


def _like_caller() -> Callable[[], None]:
    """How a worker starts: one thread, and gradients and autocast as in the calling thread, since both belong to threads."""
    grad, autocast, dtype = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def start() -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(grad)
        torch.set_autocast_enabled("cpu", autocast)
        torch.set_autocast_dtype("cpu", dtype)

    return start


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], costs: Sequence[float]) -> list[Result]:
    """`[function(item) for item in items]`, one thread each, as many at once as the caller has threads.

    An item that would leave threads idle is done first, alone, with all threads, when the processors are free: with p
    threads one decomposition is about p^0.6 times faster. The caller's thread count is left as it was.

    Args:
        function: the work; must release the interpreter lock to gain anything (torch's linear algebra does).
        items: what to work on.
        costs: relative cost of each item.
    """
    results: dict[int, Result] = {}
    threads = torch.get_num_threads()
    queue = sorted(range(len(items)), key=lambda index: -costs[index])
    while queue and _dominates(queue, costs, threads) and processors_are_free(threads):
        results[queue[0]] = function(items[queue[0]])
        queue = queue[1:]
    workers = min(threads, len(queue))
    if workers <= 1 or sum(costs[index] for index in queue) < SMALL:
        with num_threads(1):
            results.update((index, function(items[index])) for index in queue)
    else:
        try:
            with ThreadPoolExecutor(workers, initializer=_like_caller()) as pool:
                results.update(zip(queue, pool.map(lambda index: function(items[index]), queue), strict=True))
        finally:
            torch.set_num_threads(threads)
    return [results[index] for index in range(len(items))]


SMALL = 64.0**3
"""Total cost (cubed sizes) below which starting a thread costs more than the work."""


def _dominates(queue: Sequence[int], costs: Sequence[float], threads: int) -> bool:
    """Whether all end sooner when the first of the queue is done before the others, with all threads."""
    first, ordered = costs[queue[0]], [costs[index] for index in queue]
    if threads == 1 or first < SMALL:
        return False
    alone = first / float(threads**0.6) + max(_shared_out(ordered[1:], threads)[1])
    return alone < max(_shared_out(ordered, threads)[1])


def _shared_out(costs: Sequence[float], count: int) -> tuple[list[list[int]], list[float]]:
    """Indices in `count` lists, largest cost first to the lightest list, and the load of each list."""
    lanes: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        lightest = loads.index(min(loads))
        lanes[lightest].append(index)
        loads[lightest] += costs[index]
    return lanes, loads


_LANE_OPERATIONS = 5e7
"""Operations below which starting threads costs more than they save."""


def in_lanes(work: Callable[[Sequence[Item]], Result], items: Sequence[Item], costs: Sequence[float]) -> list[Result]:
    """`[work(lane) for lane in lanes]`: the items in lanes of about equal cost, each lane on a core of its own.

    Small products run faster on one core each than on all cores one after the other. The lanes depend on costs and number
    of threads alone, never on timing, so sums over lanes repeat to the last bit. Items that cannot be balanced, and little
    work, make one lane with all threads.

    Args:
        work: gets the items of one lane, in their order; runs in a thread with one core.
        items: what to work on.
        costs: operations of each item.
    """
    threads = torch.get_num_threads()
    lanes = _balanced(costs, threads)
    if len(lanes) == 1:
        return [work(items)]
    like_caller = _like_caller()

    def run(lane: list[int]) -> Result:
        like_caller()
        return work([items[index] for index in lane])

    try:
        pool = _lane_threads(len(lanes))
        futures = [pool.submit(run, lane) for lane in lanes]
        wait(futures)  # an error leaves no lane behind that still works
        return [future.result() for future in futures]
    finally:
        torch.set_num_threads(threads)


@cache
def _lane_threads(count: int) -> ThreadPoolExecutor:
    """Threads that are kept: new ones start with no memory of their own, and would fault in every page they write."""
    return ThreadPoolExecutor(count, thread_name_prefix="tangentlab-lane")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_lane_threads.cache_clear)


def _balanced(costs: Sequence[float], count: int) -> list[list[int]]:
    """Indices in `count` lists whose costs differ little; else in one list."""
    lanes, loads = _shared_out(costs, count)
    even = sum(costs) / count
    if even < _LANE_OPERATIONS or max(loads) > 1.2 * even:
        return [list(range(len(costs)))]
    return [sorted(lane) for lane in lanes if lane]

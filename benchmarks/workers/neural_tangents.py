"""neural-tangents: the empirical kernel by each of its three implementations, compiled before the clock starts."""

from __future__ import annotations

import os
import sys
import types
from importlib.metadata import version

# The package imports its tensorflow bridge unconditionally; an empty module in its place spares us tensorflow.
sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")

import jax  # noqa: E402
import neural_tangents  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import nets_jax  # noqa: E402
from benchmarks.workers.base import Prepared, Task, serve  # noqa: E402


def _limit_threads(threads: int) -> None:
    """XLA sizes its thread pool by the cores it may use; call before the first computation."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-threads:] if threads < len(cores) else cores)


def ntk(task: Task) -> Prepared:
    """`empirical_ntk_fn` without traced or diagonal axes, `vmap` over the examples."""
    _limit_threads(task.threads)
    options = {**task.options, "one_hot": task.variant == "STRUCTURED_DERIVATIVES"}
    kernel = neural_tangents.empirical_ntk_fn(
        nets_jax.NETS[task.net](options),
        trace_axes=(),
        vmap_axes=0,
        implementation=getattr(neural_tangents.NtkImplementation, task.variant),
    )
    params = nets_jax.convert(task.net, task.weights)
    x = nets_jax.convert_inputs(task.x)
    compiled = jax.jit(lambda x, params: kernel(x, None, params)).lower(x, params).compile()

    def values(result: jax.Array) -> dict[str, np.ndarray]:
        return {"kernel": np.asarray(result).transpose(2, 0, 3, 1)}

    return Prepared(lambda: compiled(x, params).block_until_ready(), values)


TASKS = {"ntk": ntk}

if __name__ == "__main__":
    serve(TASKS, lambda: {name: version(name) for name in ("jax", "neural-tangents", "numpy")})

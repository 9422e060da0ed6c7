"""Kernel dynamics next to neural-tangents' `predict`, on one and the same kernel."""

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tangentlab import NTK
from tangentlab.linearized import GradientFlow, KernelDynamics, kernel_flow
from tangentlab.models import MLP

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".bench" / "neural_tangents" / "bin" / "python"
PEER = """
import sys
import types

# the package imports its tensorflow bridge unconditionally
sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax
from neural_tangents import predict

data = dict(np.load(sys.argv[1]))
kernel, cross, y, labels = (jnp.asarray(data[key]) for key in ("kernel", "cross", "y", "labels"))
train, test = jnp.asarray(data["train"]), jnp.asarray(data["test"])
times, found = data["times"], {}
mse = predict.gradient_descent_mse(kernel, y, learning_rate=0.5)
for place, t in enumerate([*times, None]):
    found[f"mse-train-{place}"], found[f"mse-test-{place}"] = mse(t, train, test, cross)
loss = lambda f, y: -(log_softmax(f) * y).sum(-1).mean()
run = predict.gradient_descent(loss, kernel, labels, learning_rate=0.5)
ball = predict.gradient_descent(lambda f, y: 0.5 * jnp.mean((f - y) ** 2), kernel, y, learning_rate=0.5, momentum=0.9)
for name, function in (("any", run), ("ball", ball)):
    for place, t in enumerate(times):
        found[f"{name}-train-{place}"], found[f"{name}-test-{place}"] = function(t, train, test, cross)
np.savez(sys.argv[2], **found)
"""
TIMES = (1.0, 10.0, 100.0)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="neural-tangents is not installed (benchmarks/run.py installs it)")
def test_flows_agree_with_neural_tangents_on_the_same_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = MLP((4, 64, 3), "tanh").double(), torch.randn(30, 4, dtype=torch.float64)
    labels = torch.arange(20) % 3
    y = F.one_hot(labels, 3).double()
    kernel, cross = (NTK(model, a, x[:20], outputs="trace").matrix() / 3 for a in (x[:20], x[20:]))
    train, test = model(x[:20]).detach(), model(x[20:]).detach()
    arrays = {"kernel": kernel, "cross": cross, "y": y, "labels": y, "train": train, "test": test}
    np.savez(tmp_path / "data.npz", times=np.array(TIMES), **{key: value.numpy() for key, value in arrays.items()})
    (tmp_path / "peer.py").write_text(PEER)
    command = [str(PYTHON), "peer.py", "data.npz", "found.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "found.npz")

    # neural-tangents' squared loss is the mean over examples and outputs
    flow = KernelDynamics(kernel, y, train, optimizer=GradientFlow(0.5, scale=1 / y.numel()))
    for place, time in enumerate([*TIMES, math.inf]):
        near(found[f"mse-train-{place}"], flow.train(time))
        near(found[f"mse-test-{place}"], flow.test(time, cross, test))
    run = kernel_flow(kernel, lambda f: F.cross_entropy(f, labels), train, TIMES, lr=0.5)
    ball = KernelDynamics(kernel, y, train, optimizer=GradientFlow(0.5, 0.9, scale=1 / y.numel()))
    for place, time in enumerate(TIMES):
        near(found[f"any-train-{place}"], run.train[place])
        near(found[f"any-test-{place}"], run.test(cross, test)[place])
        near(found[f"ball-train-{place}"], ball.train(time))
        near(found[f"ball-test-{place}"], ball.test(time, cross, test))


def near(peer: np.ndarray, ours: torch.Tensor) -> None:
    assert np.abs(peer - ours.numpy()).max() <= 1e-4

"""The exact and the Kronecker-factored Fisher of a network with 24 million parameters, in one process below 8 GiB."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def run(pytestconfig: pytest.Config) -> dict:
    """What `tests.large.resnet50` printed; its own process, so that its memory is its own."""
    root = pytestconfig.rootpath
    paths = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.large.resnet50"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_resnet50_runs_through_implicit_kfac_and_ekfac_below_eight_gibibytes(run):
    assert run["parameters"] == 23_917_832
    assert run["peak_gib"] < 8
    for name in ("implicit", "kfac", "ekfac"):
        values = run["values"][name]
        assert values["vTMv"] > 0 and values["mv"] > 0 and values["trace"] > 0
        assert values["residual"] < 1e-3


@pytest.mark.slow
def test_with_the_same_label_draws_the_trace_of_ekfac_is_exact_and_that_of_kfac_is_not(run):
    exact, kfac, ekfac = (run["values"][name]["trace"] for name in ("implicit", "kfac", "ekfac"))
    assert abs(ekfac - exact) < 1e-4 * exact
    assert abs(kfac - exact) > 1e-3 * exact


@pytest.mark.slow
def test_a_dense_matrix_is_refused_before_any_work_with_its_size(run):
    assert "23,917,832 parameters needs 2.3 PB" in run["dense"]

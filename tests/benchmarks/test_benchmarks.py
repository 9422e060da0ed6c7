import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks import fingerprint, jobs, nets, problems, recorder_overhead, scaling, systems, targets
from benchmarks.contender import Contender, ContenderFailed
from benchmarks.environments import ROOT

REQUIRED_JOBS = (
    "ntk_mlp ntk_lenet ntk_resnet18 ntk_resnet18_scalar ntk_transformer kfac_mlp kfac_sample_resnet18 ekfac_mlp"
)


def test_the_networks_have_the_sizes_of_the_catalogue():
    sizes = {name: sum(p.numel() for p in nets.build(name, {}).parameters()) for name in nets.NETS}
    assert sizes["mlp"] == 784 * 1024 + 1024 + 2 * (1024 * 1024 + 1024) + 1024 * 10 + 10
    assert sizes["lenet"] == 61706
    assert sizes["resnet18"] == 11_169_162


@pytest.mark.parametrize("job", jobs.select("all", is_tiny=True), ids=lambda job: job.name)
def test_every_job_has_a_contender_and_its_network_runs(job):
    assert systems.contenders(job, list(systems.SYSTEMS))
    x = nets.draw_inputs(job.net, job.options, job.n, torch.Generator())
    rows = (job.n, job.options["tokens"]) if job.net == "gpt" else (job.n,)
    columns = job.options["vocabulary"] if job.net == "gpt" else job.options["outputs"]
    assert nets.build(job.net, job.options)(x).shape == (*rows, columns)


def test_selections_by_name_prefix_group_and_minus():
    assert {job.name for job in jobs.select("all")} >= set(REQUIRED_JOBS.split())
    diagonals = ["diag_mlp", "diag_resnet18", "diag_empirical_gpt", "diag_small"]
    assert [job.name for job in jobs.select("diag,ntk_mlp")] == [*diagonals, "ntk_mlp"]
    assert "nt_products" not in systems.select("all,-nt_products")
    assert systems.select("-neural_tangents")[0] == "tangentlab"
    with pytest.raises(ValueError, match="there are"):
        jobs.select("nonsense")
    with pytest.raises(ValueError, match="there are"):
        systems.select("nonsense")


def test_a_sketch_keeps_relative_differences():
    a = np.random.RandomState(0).standard_normal(100_003)
    b = a + 1e-3 * np.random.RandomState(1).standard_normal(a.size)
    found = fingerprint.deviation(fingerprint.sketch(b), fingerprint.sketch(a))
    assert found == pytest.approx(fingerprint.deviation(b, a), rel=0.15)


def test_values_that_are_not_finite_or_of_another_shape_never_agree():
    assert fingerprint.deviation(np.array([np.nan]), np.array([1.0])) == np.inf
    assert fingerprint.deviation(np.ones(2), np.ones(3)) == np.inf


def _record(**systems_):
    return {"systems": systems_}


def test_targets_compare_with_the_fastest_and_know_what_was_not_measured():
    record = _record(
        tangentlab={"best": 1.0, "peak_bytes": 10},
        nngeometry={"best": 3.0},
        curvlinops={"best": 1.5},
    )
    rows = {(row["job"], row["measure"]): row for row in targets.evaluate({"kfac_mlp": record, "ekfac_mlp": record})}
    assert rows["kfac_mlp", "speedup"]["reached"] == 1.5
    assert rows["kfac_mlp", "speedup"]["met"] is False
    assert rows["fvp_resnet18", "speedup"]["met"] is None


def test_the_limit_counts_operations_at_the_rate_of_the_same_job():
    gemm = {"best": 0.5, "facts": {"operations": 100}}
    own = {"best": 3.0, "peak_bytes": 1, "facts": {"operations": 400}}
    rows = targets.evaluate({"ntk_mlp": _record(tangentlab=own, gemm=gemm)})
    limit = next(row for row in rows if row["measure"] == "limit" and row["job"] == "ntk_mlp")
    assert limit["reached"] == pytest.approx(1.5)
    assert limit["met"] is True


def test_scaling_studies_vary_one_axis_at_a_time():
    study = scaling.studies("fvp")[0]
    assert study.base.name == "fvp_mlp"
    widths = [(size, job.n, job.options["width"], job.options["outputs"]) for size, job in study.points("width")]
    assert all(size == width and (n, outputs) == (64, 8) for size, n, width, outputs in widths)


def test_the_slope_of_a_power_law_is_its_exponent():
    assert scaling.slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


def test_a_worker_measures_saves_values_and_reports_errors(tmp_path):
    job = jobs.select("ntk_mlp", is_tiny=True)[0]
    path, _ = problems.write(job)
    with Contender("torch_func", sys.executable, threads=1) as worker:
        worker.ask("prepare", 120, **job.message(), variant="", problem=str(path))
        answer = worker.ask("run", 120, memory=True, keep=True)
        assert answer["seconds"] > 0 and isinstance(answer["peak_bytes"], int)
        worker.ask("values", 120, path=str(tmp_path / "values.npz"))
        with pytest.raises(ContenderFailed, match="KeyError"):
            worker.ask("prepare", 120, **job.message() | {"kind": "kfac"}, variant="", problem=str(path))
    path.unlink()
    kernel = np.load(tmp_path / "values.npz")["kernel"]
    assert kernel.shape == (4, 8, 4, 8)
    assert np.allclose(kernel, kernel.transpose(2, 3, 0, 1), atol=1e-6)


def test_a_dead_worker_is_a_failure_with_a_reason():
    worker = Contender("torch_func", sys.executable, threads=1)
    with worker:
        worker._process.kill()
        with pytest.raises(ContenderFailed, match="killed|ended"):
            worker.ask("run", 60)


@pytest.mark.slow
def test_tangentlab_and_torch_agree_on_every_tiny_job():
    command = [sys.executable, "benchmarks/run.py", "--tiny", "--reps", "1", "--threads", "1", "--name", "test"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--systems", "tangentlab,torch_func"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = ROOT / "benchmarks" / "results" / "test.json"
    records = json.loads(result.read_text())["jobs"]
    for suffix in (".json", ".svg", ".png"):
        result.with_suffix(suffix).unlink(missing_ok=True)
    assert all("best" in record["systems"]["tangentlab"] for record in records.values() if record["kind"] == "ntk")


def test_the_recorder_is_judged_by_its_share_its_snapshots_and_the_steps_that_one_takes():
    found = {"resnet18": {"reached": 0.09, "snapshots": 11}, "vgg19 base-16": {"reached": 31.0}}
    assert list(recorder_overhead.judge(found).values()) == [True, False, False]
    assert all(recorder_overhead.judge({"resnet18": {"reached": 0.1, "snapshots": 12}}).values())


def test_a_recorder_of_fewer_steps_has_as_many_snapshots_as_one_of_a_thousand(tmp_path):
    training = recorder_overhead.Training(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)), 4)
    for steps in (24, 1000):
        recorder = recorder_overhead.default_recorder(training, steps, str(tmp_path))
        taken = {0, steps} | {step for step in range(1, steps + 1) if recorder.schedule.due(step)}
        assert len(taken) == recorder_overhead.SNAPSHOTS

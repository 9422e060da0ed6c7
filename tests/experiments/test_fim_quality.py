"""Figures 3.3 to 3.6: measurements against a dense truth, and how the claims are judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tangentlab import FIM_MonteCarlo, PMatDense, PMatEKFAC, PMatKFAC
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.runner import make_config
from tangentlab.experiments import Lab, find
from tangentlab.experiments.metrics import _fim_quality_claims as judge
from tangentlab.experiments.metrics import _fim_quality_measures as measure
from tangentlab.models import ResNet


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A bench for one seed of the smoke scale."""
    experiment = find("fim-quality").at("smoke")
    return Lab(experiment, RunFolder.create(tmp_path, make_config(experiment, "smoke")), 0)


@pytest.fixture
def small() -> tuple[nn.Module, list[torch.Tensor]]:
    """A residual network with 210 parameters, in double precision, and two batches of images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ResNet((1,), 3, base=3, norm=False, in_channels=1).double().eval()
        return model, [(part,) for part in torch.randn(8, 1, 4, 4, dtype=torch.float64).split(4)]


def truth_of(model: nn.Module, batches: list[torch.Tensor], lab: Lab) -> tuple[measure.Truth, torch.Tensor]:
    truth = measure.exact(model, batches, 5, 3, lab, 0)
    return truth, FIM_MonteCarlo(model, batches, PMatDense, samples=5, labels=truth.labels).to_dense()


def test_the_truth_is_the_dense_matrix_of_the_same_labels(small: tuple[nn.Module, list[torch.Tensor]], lab: Lab):
    truth, dense = truth_of(*small, lab)
    assert truth.trace.item() == pytest.approx(dense.trace().item(), rel=1e-6)
    torch.testing.assert_close(truth.products.flat, truth.vectors.flat @ dense)
    assert truth.vectors.flat.norm(dim=1).tolist() == pytest.approx([1, 1, 1], rel=1e-5)


def test_the_exact_matrix_has_no_error_in_any_operation(small: tuple[nn.Module, list[torch.Tensor]], lab: Lab):
    truth, dense = truth_of(*small, lab)
    exact = PMatDense.from_dense(truth.vectors.layout, dense)
    forward = measure.forward_errors(exact, truth)
    assert max(forward["trace"], forward["vTMv"], forward["residual"]) < 1e-4 and forward["cosine"] > 1 - 1e-6
    for damping in (1e-4, 1e-1, 1e2):
        errors = measure.solve_errors(exact, truth, damping)
        assert errors["residual"] < 1e-2 and errors["cosine"] > 1 - 1e-4


def test_errors_are_those_of_the_written_out_approximation(small: tuple[nn.Module, list[torch.Tensor]], lab: Lab):
    truth, dense = truth_of(*small, lab)
    matrix = FIM_MonteCarlo(*small, PMatEKFAC, samples=5, labels=truth.labels)
    approximate, v, damping = matrix.to_dense(), truth.vectors.flat, 0.03
    eye = torch.eye(len(dense), dtype=dense.dtype)
    back = torch.linalg.solve(approximate + damping * eye, (dense + damping * eye) @ v.t()).t()
    expected = ((v - back).norm(dim=1) / back.norm(dim=1)).mean().item()
    assert measure.solve_errors(matrix, truth, damping)["residual"] == pytest.approx(expected, rel=1e-3)
    relative = ((v @ (approximate - dense) * v).sum(1).abs() / (v @ dense * v).sum(1)).mean().item()
    assert measure.forward_errors(matrix, truth)["vTMv"] == pytest.approx(relative, rel=1e-3)


def test_the_factored_solve_is_another_matrix_than_the_exact_one(small: tuple[nn.Module, list[torch.Tensor]], lab: Lab):
    truth, _ = truth_of(*small, lab)
    rows = measure.compare(*small, ["KFAC"], 5, truth, "shared", [0.01], lab, 0)
    found = {row["representation"]: row["residual"] for row in rows if row["kind"] == "solve"}
    assert found.keys() == {"KFAC", measure.FACTORED} and found["KFAC"] != pytest.approx(found[measure.FACTORED])
    matrix = FIM_MonteCarlo(*small, PMatKFAC, samples=5, labels=truth.labels)
    assert found[measure.FACTORED] == measure.solve_errors(matrix, truth, 0.01, factored=True)["residual"]


def test_independent_draws_change_the_trace_of_the_diagonal_and_shared_ones_do_not(
    small: tuple[nn.Module, list[torch.Tensor]], lab: Lab
):
    truth, _ = truth_of(*small, lab)
    shared, independent = (
        measure.compare(*small, ["Diag"], 5, truth, draws, [], lab, 0)[0]["trace"] for draws in measure.DRAWS
    )
    assert shared < 1e-6 < 1e-3 < independent


def test_block_diagonals_take_part_only_where_their_largest_block_is_small_enough(
    small: tuple[nn.Module, list[torch.Tensor]],
):
    model, _ = small
    assert "BlockDiag" in measure.representations(model, 84) and "BlockDiag" not in measure.representations(model, 83)


def made_up(cosine: Callable[[str], float], trace: dict[str, float]) -> list[dict[str, Any]]:
    """Rows in which the quality of a representation depends on its name alone."""
    rows: list[dict[str, Any]] = []
    for step in (0, 10):
        for draws in measure.DRAWS:
            for name in judge.COMPETING:
                where = {"step": step, "draws": draws, "representation": name}
                quality = {"cosine": cosine(name), "residual": 1 - cosine(name)}
                if name != measure.FACTORED:
                    error = trace[name] if draws == "shared" else max(trace[name], 0.01)
                    rows.append({"kind": "forward", **where, **quality, "vTMv": 1 - cosine(name), "trace": error})
                for damping in (1e-6, 1e-2, 1e2):
                    solved = {"cosine": 0.9999, "residual": 1e-4} if damping == 1e2 else quality
                    rows.append({"kind": "solve", **where, "damping": damping, **solved})
    return rows


TRACES = {"Diag": 1e-7, "QuasiDiag": 2e-7, "EKFAC": 3e-7, "KFAC": 0.5}


def test_the_best_in_every_cell_gets_a_share_of_one_and_no_other_a_share():
    order = {"EKFAC": 0.9, "KFAC": 0.8, measure.FACTORED: 0.85, "QuasiDiag": 0.5, "Diag": 0.1}
    found = judge.numbers(made_up(order.__getitem__, TRACES))
    assert found["3.4-ekfac-cosine"] == found["3.4-ekfac-residual"] == found["3.5-ekfac"] == 1
    assert found["3.3-kfac-cosine"] == found["3.3-kfac-factored-residual"] == 0
    assert found["3.6-shared"] == 3e-7 and found["3.6-independent"] == pytest.approx(0.01)
    assert found["3.6-kfac"] == pytest.approx(50) and found["3.3-large-damping"] == 0.9999
    assert found["3-no-winner"] == 1, "EKFAC is among those with an exact trace and wins everything else"


def test_a_split_between_forward_and_inverse_operations_has_no_winner():
    rows = made_up({"EKFAC": 0.9, "KFAC": 0.8, measure.FACTORED: 0.85, "QuasiDiag": 0.5, "Diag": 0.1}.get, TRACES)
    for row in rows:
        if row["kind"] == "solve" and row["representation"] == "KFAC":
            row["cosine"] = 0.95
    found = judge.numbers(rows)
    assert found["3-no-winner"] == 0.75 and found["3.3-kfac-cosine"] == 1


def test_a_tie_is_no_win():
    found = judge.numbers(made_up(lambda name: 0.5, TRACES))
    assert found["3.4-ekfac-cosine"] == 0 and found["3.3-kfac-cosine"] == 0


def test_dampings_outside_of_the_practical_range_do_not_count():
    assert [d for d in (1e-6, 9e-5, 1e-4, 3e-2, 1e-1, 0.11) if judge.is_practical(d)] == [1e-4, 3e-2, 1e-1]


def test_block_diagonals_are_drawn_but_do_not_compete():
    order = {"EKFAC": 0.9, "KFAC": 0.8, measure.FACTORED: 0.85, "QuasiDiag": 0.5, "Diag": 0.1}
    rows = made_up(order.__getitem__, TRACES)
    better = [{**row, "representation": "BlockDiag", "cosine": 1.0} for row in rows if row["representation"] == "Diag"]
    assert judge.numbers(rows + better) == judge.numbers(rows)

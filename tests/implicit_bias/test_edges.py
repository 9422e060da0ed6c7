"""Inputs at the edge: units, dependent or missing rows, graphs, frozen weights, and problems without a solution."""

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, ModelError, SolveError
from tangentlab.implicit_bias import (
    Euclidean,
    FlowPotential,
    coordinate_descent,
    diagonal_predictor,
    follow_flow,
    fourier_norm,
    homogeneity,
    l1_margin,
    l2_margin,
    least_l1,
    least_l2,
    least_line_norm,
    least_nuclear,
    margin_stationarity,
    minimum_on,
    mirror_descent,
    product_kernel,
)
from tests.implicit_bias.test_potentials import problem

SCALES = [1e-150, 1e-30, 1e-8, 1e8, 1e30, 1e150]


@pytest.mark.parametrize("scale", SCALES)
def test_oracles_do_not_depend_on_units(scale):
    x, y = problem(3, 8)
    torch.testing.assert_close(least_l1(x, scale * y) / scale, least_l1(x, y))
    torch.testing.assert_close(least_l1(scale * x, y) * scale, least_l1(x, y))
    for margin in (l1_margin, l2_margin):
        torch.testing.assert_close(margin(scale * x, y.sign()) * scale, margin(x, y.sign()))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e8, 1e30])
def test_the_least_line_norm_does_not_depend_on_units(scale):
    x, y = torch.tensor([0, 1, 2, 3]), torch.tensor([0.0, 1, 0, 5], dtype=torch.float64)
    assert least_line_norm(x, scale * y).norm / scale == pytest.approx(8, rel=1e-5)
    assert least_line_norm(scale * x.double(), y).norm * scale == pytest.approx(8, rel=1e-5)


ORACLES = {
    "minimum_on": lambda x, y: minimum_on(x, y, FlowPotential(0.1)).beta,
    "least_l1": least_l1,
    "least_l2": least_l2,
    "l1_margin": l1_margin,
    "l2_margin": l2_margin,
    "least_nuclear": lambda x, y: least_nuclear(x, y, (x.shape[1], 1)).matrix,
    "coordinate_descent": lambda x, y: coordinate_descent(x, y, steps=3),
    "mirror_descent": lambda x, y: mirror_descent(x, y, Euclidean(), rate=0.1, steps=3),
}


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_tensors_with_a_graph_give_results_without_one(oracle):
    x, y = problem(3, 8)
    found = oracle(x.requires_grad_(), y.sign())
    assert not found.requires_grad and bool(found.isfinite().all())


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_empty_problems_are_refused(oracle, shape):
    with pytest.raises(InputError, match="not empty"):
        oracle(torch.zeros(shape), torch.ones(shape[0]))


@pytest.mark.parametrize("oracle", ["least_l1", "least_l2", "least_nuclear", "minimum_on"])
def test_targets_that_nothing_fits_are_refused(oracle):
    with pytest.raises(SolveError):
        ORACLES[oracle](torch.ones(2, 4), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("oracle", ["l1_margin", "l2_margin", "coordinate_descent"])
def test_labels_that_are_no_signs_are_refused(oracle):
    with pytest.raises(InputError, match=r"\+1 or -1"):
        ORACLES[oracle](torch.eye(2), torch.tensor([0.0, 2.0]))


def test_zero_targets_are_reached_from_a_start():
    x, y = problem(3, 8)
    start = torch.linspace(-1, 1, 8, dtype=torch.float64)
    expected = start - torch.linalg.pinv(x) @ (x @ start)
    torch.testing.assert_close(minimum_on(x, 0 * y, Euclidean(), start=start).beta, expected)
    assert float((x @ minimum_on(x, 0 * y, FlowPotential(0.1), start=start).beta).norm()) < 1e-9


def test_starts_of_another_shape_and_scales_out_of_range_are_refused():
    x, y = problem(3, 8)
    with pytest.raises(InputError, match="one entry per feature"):
        minimum_on(x, y, Euclidean(), start=torch.ones(3))
    with pytest.raises(InputError, match="one entry per feature"):
        mirror_descent(x, y, Euclidean(), rate=0.1, steps=1, start=torch.ones(3))
    with pytest.raises(InputError, match="closer to 1"):
        FlowPotential(1e200)
    with pytest.raises(SolveError, match="raise alpha"):
        minimum_on(x, y, FlowPotential(1e-6, depth=7))


def test_a_flow_that_starts_below_its_bound_ends_where_it_starts():
    path = follow_flow(lambda w: w.square().sum(), torch.full((2,), 1e-3), until=1, loss_below=1.0)
    torch.testing.assert_close(path.end, torch.full((2,), 1e-3, dtype=torch.float64))
    assert path.times.tolist() == [0.0]


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (lambda w: w.square(), {}),
        (lambda w: torch.tensor(1.0), {}),
        (lambda w: w.square().sum(), {"until": -1.0}),
        (lambda w: w.square().sum(), {"moments": 1}),
        (lambda w: w.square().sum(), {"method": "Euler"}),
    ],
    ids=["vector", "constant", "backwards", "moments", "method"],
)
def test_flows_that_make_no_sense_are_refused(loss, options):
    with pytest.raises(InputError):
        follow_flow(loss, torch.ones(2), **{"until": 1.0, **options})


def test_flows_run_in_inference_mode():
    with torch.inference_mode():
        end = follow_flow(lambda w: w.square().sum(), torch.ones(2), until=1).end
    assert float(end[0]) == pytest.approx(torch.e**-2, rel=1e-6)


def test_weights_that_do_not_fit_a_parametrization_are_refused():
    with pytest.raises(InputError, match="odd"):
        diagonal_predictor(torch.ones(3))
    with pytest.raises(InputError, match="two factors"):
        product_kernel(torch.ones(7), 2, 2)
    with pytest.raises(InputError, match="positive"):
        fourier_norm(torch.ones(3), 0)


def test_the_degree_of_a_model_in_train_mode_is_refused_and_leaves_it_alone():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1, bias=False))
    with pytest.raises(ModelError, match=r"model\.eval"):
        homogeneity(model, torch.randn(9, 3))
    assert model[1].running_mean.tolist() == [0.0] * 4
    with pytest.raises(InputError, match="factor"):
        homogeneity(model.eval(), torch.randn(9, 3), factor=1.0)


@pytest.mark.parametrize("mistake", ["frozen", "layers", "degree"])
def test_stationarity_refuses_weights_in_which_the_outputs_have_another_degree(mistake):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    points = torch.randn(10, 3)
    found = margin_stationarity(model, points, points[:, 0].sign(), degree=2)
    torch.testing.assert_close(found.margins, (points[:, 0].sign() * model(points)[:, 0]).detach().double())
    model[0].weight.requires_grad_(mistake != "frozen")
    options = {"layers": [model[2]]} if mistake == "layers" else {}
    with pytest.raises(ModelError, match="not homogeneous of degree"):
        margin_stationarity(model, points, points[:, 0].sign(), degree=3 if mistake == "degree" else 2, **options)

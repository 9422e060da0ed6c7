"""n F and the Gram matrix of its rows have one nonzero spectrum; eigenpairs by the cheapest exact route."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab import fisher_eigenpairs
from tangentlab.errors import InputError
from tangentlab.spectra import cheapest_route
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import ALL, EXAMPLES, case_of
from tangentlab.testing.truth import exact, weighted_rows


@pytest.mark.parametrize("name", ALL)
def test_nonzero_spectrum_of_n_times_fisher_is_that_of_the_gram_matrix_of_its_rows(name):
    case = case_of(name, split="uneven batches")
    rows = weighted_rows(case.model, case.inputs).flatten(0, 1)
    gram = torch.linalg.eigvalsh(rows @ rows.t()).flip(0)
    pairs = fisher_eigenpairs(case.model, case.batches, method="gram")
    count = len(pairs.values)
    rounding = 1e-9 * gram[0]
    assert float((EXAMPLES * pairs.values - gram[:count]).abs().max()) < rounding
    assert float(gram[count:].max()) < 1e-6 * gram[0]
    fisher = exact(name)
    residual = pairs.vectors.flat @ fisher - pairs.values[:, None] * pairs.vectors.flat
    assert float(residual.abs().max()) < rounding and float(pairs.residual_norms.max()) < rounding


def test_spectrum_of_the_regression_fisher_is_that_of_the_tangent_kernel():
    case = case_of("mlp")
    kernel = tl.NTK(case.model, case.inputs).eigvalsh().flip(0)
    pairs = fisher_eigenpairs(case.model, case.inputs, 5, likelihood="regression", method="gram")
    assert_close(EXAMPLES * pairs.values, kernel[:5])


@pytest.mark.parametrize("method", ["gram", "dense", "lanczos"])
@pytest.mark.parametrize("name", ["mlp", "grouped convolution", "embedding"])
def test_all_routes_find_the_same_eigenpairs(method, name):
    case = case_of(name, split="uneven batches")
    values, basis = torch.linalg.eigh(exact(name))
    pairs = fisher_eigenpairs(case.model, case.batches, 3, method=method)
    assert_close(pairs.values, values.flip(0)[:3])
    assert_close((pairs.vectors.flat @ basis.flip(1)[:, :3]).abs(), torch.eye(3, dtype=torch.float64), factor=1e3)
    assert_close(pairs.vectors.flat @ pairs.vectors.flat.t(), torch.eye(3, dtype=torch.float64), factor=10)
    assert pairs.converged


def test_gauss_newton_matrices_have_the_same_route():
    case = case_of("mlp")
    pairs = fisher_eigenpairs(case.model, case.batches, 3, loss=lambda f, y: f.square().sum(1), method="gram")
    assert_close(pairs.values, 2 * fisher_eigenpairs(case.model, case.batches, 3, "regression").values)


def test_route_is_the_cheapest_that_fits():
    assert cheapest_route(m=100, n=50, d=10_000, itemsize=4, k=None) == "gram"
    assert cheapest_route(m=10_000, n=5_000, d=100, itemsize=4, k=None) == "dense"
    assert cheapest_route(m=20_000, n=2_000, d=20_000, itemsize=4, k=5) == "lanczos"
    tl.set_memory_budget(10_000)
    try:
        with pytest.raises(InputError, match="give k"):
            cheapest_route(m=1_000, n=100, d=1_000, itemsize=4, k=None)
        assert cheapest_route(m=1_000, n=100, d=1_000, itemsize=4, k=3) == "lanczos"
    finally:
        tl.set_memory_budget(None)


def test_automatic_route_takes_the_gram_matrix_of_few_examples_and_says_so():
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    x = torch.randn(4, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = fisher_eigenpairs(model, x)
    assert len(pairs.values) == 4 and "Gram matrix of 4 rows" in pairs.message
    many = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert "over 9 parameters" in fisher_eigenpairs(nn.Linear(2, 3).double(), many).message


def test_options_that_mean_nothing_are_refused():
    case = case_of("mlp")
    with pytest.raises(InputError, match="method"):
        fisher_eigenpairs(case.model, case.inputs, method="magic")
    with pytest.raises(InputError, match="give k"):
        fisher_eigenpairs(case.model, case.inputs, method="lanczos")

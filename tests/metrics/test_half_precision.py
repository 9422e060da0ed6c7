"""bfloat16 and float16: every matrix of every likelihood is that of the same weights in double precision, up to rounding."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl

N, C = 6, 2
COVARIANCE = torch.tensor([[1.0, 0.3], [0.3, 2.0]])
REAL, CLASSES = torch.randn(N, C, generator=torch.Generator().manual_seed(3)), torch.arange(N) % C
LIKELIHOODS: dict[str, tuple[Any, Tensor]] = {
    "regression": ("regression", REAL),
    "variance": (tl.Regression(0.5), REAL),
    "variances": (tl.Regression(torch.tensor([0.5, 2.0])), REAL),
    "covariance": (tl.Regression(COVARIANCE), REAL),
    "classification": ("classification", CLASSES),
    "binary": ("binary", (REAL > 0).float()),
    "log_softmax": ("log_softmax", CLASSES),
}
KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        tl.PMatDense,
        tl.PMatBlockDiag,
        tl.PMatDiag,
        tl.PMatQuasiDiag,
        tl.PMatKFAC,
        tl.PMatEKFAC,
        tl.PMatKronSum,
        tl.PMatLowRank,
        tl.PMatImplicit,
    )
} | {"mixed": tl.PMatMixed.default()}
FACTORIES: dict[str, Callable[..., Any]] = {
    "FIM": tl.FIM,
    "FIM_Empirical": tl.FIM_Empirical,
    "GGN": lambda model, data, kind, likelihood: tl.GGN(model, data, kind, loss=likelihood),
    "GradientCovariance": lambda model, data, kind, likelihood: tl.GradientCovariance(
        model, data, kind, loss=likelihood
    ),
}
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
each = pytest.mark.parametrize("name", list(LIKELIHOODS))


def pair(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, Tensor]:
    """The model in half precision, the same numbers in double precision, and inputs."""
    torch.manual_seed(0)
    last = [nn.LogSoftmax(-1)] if name == "log_softmax" else []
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, C), *last).to(dtype)
    return model, copy.deepcopy(model).double(), torch.randn(N, 3).to(dtype)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@half
@each
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("factory", list(FACTORIES))
def test_matrices_agree_with_double_precision_and_can_be_used(
    factory: str, kind: str, name: str, dtype: torch.dtype
) -> None:
    model, exact, x = pair(name, dtype)
    likelihood, y = LIKELIHOODS[name]
    if (factory, name) == ("GGN", "log_softmax"):
        pytest.skip("the loss is linear in these outputs")
    found = FACTORIES[factory](model, (x, y), KINDS[kind], likelihood)
    truth = FACTORIES[factory](exact, (x.double(), y), KINDS[kind], likelihood)
    assert found.to_dense().dtype == dtype
    assert error(found.to_dense(), truth.to_dense()) < (0.06 if dtype == torch.bfloat16 else 0.01)
    ones = tl.PVector.ones(model)
    assert found.solve(ones, damping=0.5).dtype == dtype
    assert error((found @ ones).flat, (truth @ tl.PVector.ones(exact)).flat) < 0.1


@half
@each
def test_labels_are_drawn_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model, _, x = pair(name, dtype)
    likelihood, _ = LIKELIHOODS[name]
    sampled = tl.FIM_MonteCarlo(model, x, likelihood=likelihood, samples=3, generator=torch.Generator().manual_seed(0))
    dense = sampled.to_dense()
    assert dense.dtype == dtype and bool(torch.isfinite(dense).all()) and float(dense.diagonal().float().sum()) > 0


@half
@each
def test_gradients_and_hessians_agree_with_double_precision(name: str, dtype: torch.dtype) -> None:
    model, exact, x = pair(name, dtype)
    likelihood, y = LIKELIHOODS[name]
    half_data, data = (x, y), (x.double(), y)
    grads = [tl.per_example_grads(*pair_, likelihood=likelihood).flat for pair_ in ((model, half_data), (exact, data))]
    assert error(*grads) < 0.03
    norms = [tl.per_example_grad_norms(*pair_, likelihood=likelihood) for pair_ in ((model, half_data), (exact, data))]
    assert error(*norms) < 0.03
    hessians = [
        tl.Hessian(*pair_, tl.PMatDense, loss=likelihood).to_dense() for pair_ in ((model, half_data), (exact, data))
    ]
    assert error(*hessians) < 0.1


def test_kfra_of_half_precision_is_that_of_double_precision() -> None:
    model, exact, x = pair("classification", torch.bfloat16)
    found, truth = (tl.KFRA(net, (data, CLASSES)).to_dense() for net, data in ((model, x), (exact, x.double())))
    assert found.dtype == torch.bfloat16 and error(found, truth) < 0.05


def test_a_variance_per_output_needs_no_matrix_of_all_outputs() -> None:
    """50,000 outputs: a covariance matrix would take 20 GB."""
    outputs = torch.randn(2, 50_000, dtype=torch.float64)
    likelihood = tl.Regression(0.25)
    assert torch.allclose(likelihood.weigh(outputs, outputs), 4 * outputs)
    assert torch.allclose(likelihood.score(outputs, outputs[None] + 1), torch.full_like(outputs, 4.0)[None])
    assert likelihood.factor(outputs, range(7, 9))[:, 0].nonzero().tolist() == [[0, 7], [1, 8]]

"""Networks that nobody thought of: tangent kernel, diagonal and implicit Fisher against dense autograd in float64."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import tangentlab as tl
from tests.engine.generated import networks
from tests.engine.truth import dense_jacobian

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
QUICK = settings(max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=CHECKS)
THOROUGH = settings(QUICK, max_examples=10_000, derandomize=False)


def assert_close(found: Tensor, truth: Tensor) -> None:
    assert found.shape == truth.shape
    assert (found - truth).abs().max() <= 1e-9 * truth.abs().max().clamp_min(1.0)


def output_weights(model: nn.Module, batches: list[Tensor], likelihood: str) -> Tensor:
    """(examples, outputs, outputs): the identity, or diag(p) - p p^T."""
    with torch.no_grad():
        outputs = torch.cat([model(batch).flatten(1) for batch in batches])
    if likelihood == "regression":
        return torch.eye(outputs.shape[1], dtype=outputs.dtype).expand(len(outputs), -1, -1)
    p = outputs.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def agrees_with_dense_autograd(model: nn.Module, batches: list[Tensor]) -> None:
    jacobian = torch.cat([dense_jacobian(model, batch) for batch in batches], 1)
    kernel = torch.einsum("knd,lmd->knlm", jacobian, jacobian)
    data = [(batch,) for batch in batches]
    assert_close(tl.NTK(model, data).data, kernel)
    assert_close(tl.NTK(model, data, outputs="trace").data[0, :, 0], torch.einsum("knkm->nm", kernel))
    outputs = model(batches[0])
    likelihood = "classification" if outputs.ndim == 2 and outputs.shape[1] > 1 and len(batches) == 2 else "regression"
    weights = output_weights(model, batches, likelihood)
    fisher = torch.einsum("knd,nkl,lne->de", jacobian, weights, jacobian) / jacobian.shape[1]
    diagonal = tl.FIM(model, data, tl.PMatDiag, likelihood)
    assert_close(diagonal.diag().flat, fisher.diagonal())
    v = torch.randn(len(fisher), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    implicit = tl.FIM(model, data, tl.PMatImplicit, likelihood)
    vector = tl.PVector(implicit.layout, v)
    assert_close((implicit @ vector).flat, fisher @ v)
    assert_close(tl.Jacobian(model, data, tl.PushForwardImplicit).mv(vector).data, jacobian @ v)


@QUICK
@given(networks())
def test_kernel_diagonal_and_products_of_any_network_are_those_of_dense_autograd(
    network: tuple[nn.Module, list[Tensor]],
) -> None:
    agrees_with_dense_autograd(*network)


@pytest.mark.slow
@THOROUGH
@given(networks())
def test_kernel_diagonal_and_products_of_ten_thousand_networks_are_those_of_dense_autograd(
    network: tuple[nn.Module, list[Tensor]],
) -> None:
    agrees_with_dense_autograd(*network)

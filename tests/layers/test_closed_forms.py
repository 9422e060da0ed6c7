"""Per-example gradients of every registered layer, in every configuration, against one backward pass per example."""

import pytest
import torch
from torch import nn

from tangentlab.testing import LayerContract, layer_case
from tangentlab.testing.layer_contract import cotangents_of, factors_of, groups_of, true_rows
from tests.layers.cases import CASES


class TestRegisteredLayers(LayerContract):
    cases = CASES.values()
    in_networks = list(CASES.values())[::9]
    refused = [
        (nn.BatchNorm1d(3), "batch statistics"),
        (nn.BatchNorm2d(3, track_running_stats=False).eval(), "batch statistics"),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "running statistics"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "batch counts"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.GRU(2, 2), "no closed form is registered for GRU"),
    ]


@pytest.mark.parametrize("memory", ["channels_last", "transposed", "expanded"])
def test_convolution_patches_follow_the_strides_of_the_input(memory: str) -> None:
    layer, x = layer_case(nn.Conv2d, 2, 3, (3, 2), shape=(3, 2, 5, 5)).make()
    if memory == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    else:
        x = x.transpose(2, 3) if memory == "transposed" else x[:1].expand(3, -1, -1, -1)
    grads = cotangents_of(layer, x)
    for group in groups_of(layer):
        truth = true_rows(layer, x, grads, group)
        assert torch.allclose(factors_of(layer, x, grads, group).rows(), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_embedding_takes_the_index_types_that_torch_takes(dtype: torch.dtype) -> None:
    layer, x = layer_case(nn.Embedding, 5, 3, shape=(4, 3), tokens=5).make()
    grads = cotangents_of(layer, x.to(dtype))
    rows = factors_of(layer, x.to(dtype), grads, ("weight",)).rows()
    assert torch.allclose(rows, true_rows(layer, x, grads, ("weight",)), atol=1e-12)


def test_the_output_size_argument_of_a_transposed_convolution_changes_nothing_in_its_closed_form() -> None:
    layer, x = layer_case(nn.ConvTranspose1d, 2, 3, 3, stride=3, shape=(2, 2, 4)).make()
    outputs = layer(x, output_size=[14])
    assert outputs.shape[-1] != layer(x).shape[-1]
    grads = torch.randn(2, *outputs.shape, dtype=torch.float64)
    rows = factors_of(layer, x, grads, ("weight",)).rows()
    for k in range(2):
        for n in range(2):
            (truth,) = torch.autograd.grad(outputs[n], layer.weight, grads[k, n], retain_graph=True)
            assert torch.allclose(rows[k, n], truth.flatten(), atol=1e-12)

"""Gram matrices of layers whose gradients do not fit at once, or that two batches hold in different forms."""

import pytest
import torch
from torch import nn

from tangentlab.layers import OuterSum, concatenate
from tangentlab.layers.contractions import Workspace
from tangentlab.layers.conv import convolution
from tangentlab.layers.gram import gram
from tangentlab.layers.gram_positions import positions_gram


def once(layer: nn.Conv2d, examples: int) -> OuterSum:
    x, grads = (torch.randn(*size, dtype=torch.float64) for size in ((examples, 4, 3, 3), (2, examples, 4, 3, 3)))
    return convolution(layer, x, grads, ("weight",))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("memory", [float("inf"), 1000, 300])
def test_a_layer_used_once_meets_the_same_layer_used_twice(groups: int, memory: float) -> None:
    """Blocks of the two must hold the same entries of the weight."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 1, bias=False, groups=groups).double()
    one, two = once(layer, 3), concatenate([once(layer, 2), once(layer, 2)])
    truth = torch.einsum("kni,lmi->knlm", one.rows(), two.rows())
    torch.testing.assert_close(gram(one, two, route="rows", memory=memory), truth)


def test_batches_in_closed_form_and_written_out_are_not_joined() -> None:
    linear = OuterSum(torch.randn(2, 3, 1, 1, 4), torch.randn(1, 3, 1, 1, 5))
    assert linear.join_examples([OuterSum.explicit(torch.randn(2, 3, 20))]) is None
    assert linear.join_examples([OuterSum(linear.left, linear.right, bias=True)]) is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_sums_of_many_16_bit_products_do_not_come_to_a_halt(side: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 2, 1, stride=2, bias=False)
    x, grads = torch.rand(400, 2, 64, 64) + 0.5, torch.rand(1, 400, 2, 32, 32) + 0.5
    truth = convolution(layer, x, grads, ("weight",)).side_covariance(side, "expand")
    found = convolution(layer, x.bfloat16(), grads.bfloat16(), ("weight",)).side_covariance(side, "expand")
    assert found.dtype == torch.bfloat16
    assert float((found.float() - truth).norm() / truth.norm()) < 6e-3


@pytest.mark.parametrize("memory", [1, 10, 10**9])
def test_products_of_positions_stay_within_the_memory_or_are_of_one_pair_of_examples(memory: int) -> None:
    torch.manual_seed(0)
    one, two = (once(nn.Conv2d(4, 4, 1, bias=False).double(), examples) for examples in (5, 7))
    pair = 9 * 9 * 8  # bytes
    for other in (one, two):
        workspace = Workspace(limit=pair * memory)
        found = positions_gram(one, other, True, workspace)
        torch.testing.assert_close(found, torch.einsum("kni,kmi->nm", one.rows(), other.rows()))
        assert all(buffer.nbytes <= pair * memory for buffer in workspace._buffers.values())

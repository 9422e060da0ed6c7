"""The cheaper orders of computation for convolutions, each against the plain one."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tangentlab.layers import conv
from tangentlab.layers.conv import ConvSum, known_zeros, pad_input, patch_columns
from tangentlab.layers.covariance import lagged_covariance, lags_apply, window_sums
from tangentlab.testing import LayerCase, layer_case
from tangentlab.testing.layer_contract import cotangents_of, factors_of, true_rows
from tests.layers.cases import CASES

CONVOLUTIONS = [one for one in CASES.values() if one.kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)]
PLANES = [
    layer_case(nn.Conv2d, 2, 2, kernel, dilation=gap, padding=padding, padding_mode=mode, shape=(3, 2, 7, 6))
    for kernel, gap, padding, mode in product(
        [(3, 3), (1, 3), (2, 2), (4, 1)], [(1, 1), (2, 1)], [0, (1, 2), "same"], ["zeros", "circular", "reflect"]
    )
] + [
    layer_case(nn.Conv2d, 2, 2, (7, 6), shape=(2, 2, 7, 6)),
    layer_case(nn.Conv2d, 2, 2, 3, padding=3, shape=(2, 2, 2, 1)),
]


def patches_of(layer: nn.Module, x: Tensor) -> Tensor:
    """(N, groups, columns, T)."""
    return patch_columns(layer, pad_input(layer, x), tuple(layer(x).shape[2:]))  # type: ignore[arg-type]


@pytest.mark.parametrize("one", [one for one in CONVOLUTIONS if one.kind is nn.Conv2d], ids=str)
def test_patches_are_those_of_unfold(one: LayerCase) -> None:
    layer, x = one.make()
    assert isinstance(layer, nn.Conv2d)
    padded = pad_input(layer, x)
    unfolded = nn.functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
    assert torch.equal(patches_of(layer, x).flatten(1, 2), unfolded)


@pytest.mark.parametrize("one", PLANES, ids=str)
def test_lagged_covariance_is_the_sum_of_patch_outer_products(one: LayerCase) -> None:
    layer, x = one.make()
    assert isinstance(layer, nn.Conv2d)
    assert lags_apply(layer)
    patches = patches_of(layer, x)[:, 0]
    truth = torch.einsum("nat,nbt->ab", patches, patches)
    size = tuple(layer(x).shape[2:])
    for zeros in {(0, 0), known_zeros(layer)}:
        found = lagged_covariance(layer, pad_input(layer, x), size, zeros)
        assert torch.allclose(found, truth, rtol=0, atol=1e-11 * float(truth.abs().max()))


@pytest.mark.parametrize("one", CONVOLUTIONS[::3], ids=str)
def test_window_sums_are_sums_of_patches(one: LayerCase) -> None:
    layer, x = one.make()
    sums = window_sums(layer, pad_input(layer, x), tuple(layer(x).shape[2:]))  # type: ignore[arg-type]
    assert torch.allclose(sums, patches_of(layer, x).sum((0, 3)), atol=1e-12)


@pytest.mark.parametrize("cotangents", [1, 40])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (4, 1), (4, 9)])
@pytest.mark.parametrize("side", [3, 12])
def test_rotations_onto_few_or_many_directions_give_the_same_squares(
    side: int, height: int, width: int, cotangents: int
) -> None:
    """Sizes for which rotating the factors first is cheaper, and sizes for which rotating finished gradients is."""
    layer, x = layer_case(nn.Conv2d, 1, 4, 3, bias=False, shape=(2, 1, side, side)).make()
    generator = torch.Generator().manual_seed(3)
    grads = torch.randn((cotangents, *layer(x).shape), generator=generator, dtype=torch.float64)
    left, right = (torch.randn(1, n, n, generator=generator, dtype=torch.float64) for n in (4, 9))
    left, right = left[..., :height], right[..., :width]
    matrices = true_rows(layer, x, grads, ("weight",)).unflatten(-1, (1, 4, 9))
    truth = (left.transpose(1, 2) @ matrices @ right).square().sum((0, 1))
    found = factors_of(layer, x, grads, ("weight",)).rotated_square_sum(left, right)
    assert torch.allclose(found, truth, rtol=1e-10)


@pytest.mark.parametrize("one", CONVOLUTIONS[::7], ids=str)
def test_examples_taken_one_at_a_time_give_the_same_as_all_at_once(
    one: LayerCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = one.make()
    grads = cotangents_of(layer, x)
    whole = factors_of(layer, x, grads, ("weight",))
    covariance = whole.side_covariance("right", "expand")
    monkeypatch.setattr(conv, "CACHE_BYTES", 1)
    assert isinstance(whole, ConvSum)
    assert len(list(whole.example_chunks())) == len(x)
    truth = true_rows(layer, x, grads, ("weight",))
    assert torch.allclose(whole.rows(), truth, rtol=0, atol=1e-11 * float(truth.abs().max()))
    assert torch.allclose(whole.side_covariance("right", "expand"), covariance, atol=1e-11)

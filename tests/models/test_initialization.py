"""The initialization without batch norm: variances per layer, and what they do to the activations."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError
from tangentlab.models import VGG11, VGG19, AutoEncoder, ResNet, ResNet18, ResNet34, ResNet50, fan_in_normal_, glorot_
from tangentlab.models.init import initialize_plain_
from tangentlab.models.resnet import ResidualBlock

pytestmark = pytest.mark.usefixtures("seed")


def relative_variance(layer: nn.Module) -> float:
    """Variance of the weights times the fan-in."""
    weight = layer.get_parameter("weight").detach()
    return float(weight.var() * weight[0].numel())


def tolerance(layer: nn.Module) -> float:
    """Five standard deviations of the sample variance of as many normal numbers, relative to the variance."""
    return 5 * (2 / layer.get_parameter("weight").numel()) ** 0.5


def expected_variance(name: str, depth: int) -> float:
    if "downsample" in name or name in ("conv1", "fc"):
        return 1.0
    return 0.2 if name.endswith(f"conv{depth}") else 2.0


@pytest.mark.parametrize(("make", "depth"), [(ResNet18, 2), (ResNet34, 2), (ResNet50, 3)])
def test_resnet_without_norm_has_the_three_variances_of_its_initialization(
    make: Callable[..., ResNet], depth: int
) -> None:
    model = make(base=16, norm=False)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    assert len(layers) == {ResNet18: 21, ResNet34: 37, ResNet50: 54}[make]
    for name, layer in layers.items():
        expected = expected_variance(name, depth)
        assert relative_variance(layer) == pytest.approx(expected, rel=tolerance(layer)), name
        assert not layer.get_parameter("bias").any(), name


def test_vgg_is_he_normal_after_a_lecun_normal_first_layer() -> None:
    model = VGG11(base=16)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == 9
    for place, layer in enumerate(layers):
        assert relative_variance(layer) == pytest.approx(1.0 if place == 0 else 2.0, rel=tolerance(layer)), place
        assert not layer.get_parameter("bias").any()


@torch.no_grad()
def second_moments(model: nn.Module, kind: type[nn.Module], pixels: int = 16) -> list[float]:
    """Mean square of the outputs of all modules of a kind, on noise images of unit variance."""
    moments: list[float] = []
    for module in model.modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda _, __, output: moments.append(float(output.square().mean())))
    model(torch.randn(8, 3, pixels, pixels))
    return moments


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("make", [ResNet18, ResNet34, ResNet50])
def test_activations_stay_bounded_through_a_resnet_without_norm(make: Callable[..., ResNet], stem: str) -> None:
    moments = second_moments(make(base=16, norm=False, stem=stem), ResidualBlock)
    assert len(moments) == {ResNet18: 8, ResNet34: 16, ResNet50: 16}[make]
    assert min(moments) > 0.02
    assert max(moments) < 10


def test_activations_explode_if_the_last_convolution_of_a_block_is_not_scaled_down() -> None:
    scaled, unscaled = ResNet34(base=16, norm=False), ResNet34(base=16, norm=False)
    for block in unscaled.modules():
        if isinstance(block, ResidualBlock):
            fan_in_normal_(block.get_submodule("conv2"), 2.0)
    assert second_moments(unscaled, ResidualBlock)[-1] > 100 * second_moments(scaled, ResidualBlock)[-1]


def test_activations_neither_vanish_nor_explode_through_vgg19_where_padding_is_a_small_part_of_the_image() -> None:
    moments = second_moments(VGG19(base=16), nn.ReLU, pixels=64)
    assert len(moments) == 16
    assert min(moments) > 0.05
    assert max(moments) < 50


def test_vgg19_loses_its_signal_to_the_padding_if_small_images_are_pooled_to_one_pixel() -> None:
    pooled, adapted = VGG19(base=16), VGG19(base=16, image_size=16)
    assert second_moments(pooled, nn.ReLU)[-1] < 1e-2 * second_moments(adapted, nn.ReLU)[-1]


def test_zero_init_residual_starts_each_block_as_its_skip() -> None:
    model = ResNet18(base=4, zero_init_residual=True)
    block = model.get_submodule("layer1.1")
    x = torch.rand(2, 4, 5, 5)
    torch.testing.assert_close(block(x), x)
    assert not torch.equal(ResNet18(base=4).get_submodule("layer1.1")(x), x)


def test_fan_in_counts_the_channels_of_one_group_and_the_kernel() -> None:
    layer = nn.Conv2d(64, 256, 3, groups=4)
    fan_in_normal_(layer, 3.0)
    assert float(layer.weight.detach().var()) == pytest.approx(3.0 / (16 * 9), rel=tolerance(layer))


def test_the_generator_decides_the_draw() -> None:
    first, second = nn.Linear(5, 4), nn.Linear(5, 4)
    for layer in (first, second):
        fan_in_normal_(layer, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(first.weight, second.weight, rtol=0, atol=0)


def test_plain_initialization_takes_a_variance_per_place() -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 200))
    initialize_plain_(model, first=0.5, hidden=4.0, last=7.0)
    assert [relative_variance(model[place]) for place in (0, 2, 4)] == pytest.approx([0.5, 4.0, 7.0], rel=0.05)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.ReLU(), nn.ConvTranspose2d(3, 4, 2)])
def test_a_module_without_a_fan_in_raises(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=type(layer).__name__):
        fan_in_normal_(layer)


def test_glorot_keeps_the_signal_of_sigmoids_alive() -> None:
    torch.manual_seed(0)
    x, spread = torch.rand(500, 64), {}
    for name in ("torch", "glorot"):
        model = AutoEncoder((64, 200, 100, 50))
        if name == "glorot":
            assert glorot_(model) is model
        spread[name] = float(model(x).std(dim=0).mean())
    assert spread["glorot"] > 0.05 > 2e-3 > spread["torch"]
    weight, bias = model.encoder[0].weight, model.encoder[0].bias
    assert float(weight.var()) == pytest.approx(16 * 2 / (64 + 200), rel=0.1)
    assert not bias.any()


def test_glorot_takes_layers_without_bias() -> None:
    layer = glorot_(nn.Sequential(nn.Linear(300, 200, bias=False)))[0]
    assert float(layer.weight.var()) == pytest.approx(2 * 16 / 500, rel=0.05)

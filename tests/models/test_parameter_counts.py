"""Numbers of parameters against published ones, counted without allocating anything."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tangentlab.models import (
    GPT,
    MLP,
    VGG11,
    VGG13,
    VGG16,
    VGG19,
    AutoEncoder,
    LeNet5,
    LSTMClassifier,
    ResNet18,
    ResNet20,
    ResNet34,
    ResNet50,
)


def count(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


@pytest.mark.parametrize(
    ("make", "n_classes", "published"),
    [
        (ResNet18, 1000, 11_689_512),
        (ResNet34, 1000, 21_797_672),
        (ResNet50, 1000, 25_557_032),
        (ResNet50, 200, 23_917_832),
    ],
)
def test_resnet_with_the_imagenet_stem_has_the_published_number_of_parameters(
    make: Callable[..., nn.Module], n_classes: int, published: int
) -> None:
    assert count(lambda: make(n_classes, stem="imagenet")) == published


@pytest.mark.parametrize(
    ("make", "published"),
    [(ResNet18, 11_173_962), (ResNet34, 21_282_122), (ResNet50, 23_520_842), (ResNet20, 272_474)],
)
def test_resnet_with_the_cifar_stem_has_the_published_number_of_parameters(
    make: Callable[..., nn.Module], published: int
) -> None:
    assert count(make) == published


@pytest.mark.parametrize(
    ("make", "published", "with_batch_norm"),
    [
        (VGG11, 132_863_336, 9_231_114),
        (VGG13, 133_047_848, 9_416_010),
        (VGG16, 138_357_544, 14_728_266),
        (VGG19, 143_667_240, 20_040_522),
    ],
)
def test_vgg_has_the_published_number_of_parameters(
    make: Callable[..., nn.Module], published: int, with_batch_norm: int
) -> None:
    imagenet_head = (25_088 + 1) * 4_096 + (4_096 + 1) * 4_096 + (4_096 + 1) * 1_000
    assert count(make) - (512 + 1) * 10 == published - imagenet_head
    assert count(lambda: make(batch_norm=True)) == with_batch_norm


def test_autoencoder_lenet_and_mlp_have_the_numbers_of_parameters_of_the_papers() -> None:
    assert count(AutoEncoder) == 2_837_314
    assert count(lambda: LeNet5(in_channels=3, image_size=32, n_classes=1)) == 136_121
    assert count(lambda: LeNet5(padding="classic")) == 61_706
    assert count(lambda: LeNet5(3, 32, padding="classic")) == 62_006
    assert count(lambda: MLP((3072, 100, 100, 1))) == 317_501
    assert count(lambda: MLP((3072, 100, 100, 1), bias=False)) == 317_501 - 201


def test_gpt_at_the_size_of_gpt2_has_its_number_of_parameters() -> None:
    def gpt2(**options: bool) -> nn.Module:
        return GPT(vocab_size=50_257, context=1_024, n_layers=12, n_heads=12, width=768, **options)

    assert count(lambda: gpt2(tied=True)) == 124_439_808
    assert count(gpt2) == 124_439_808 + 50_257 * 768


def test_lstm_counts_four_gates_with_two_biases_each_per_direction() -> None:
    gates = 4 * (8 * 16 + 16 * 16 + 2 * 16)
    assert count(lambda: LSTMClassifier(3, hidden=16, input_size=8)) == gates + 3 * 17
    assert count(lambda: LSTMClassifier(3, hidden=16, input_size=8, vocab_size=50)) == 50 * 8 + gates + 3 * 17
    assert count(lambda: LSTMClassifier(3, hidden=16, input_size=8, bidirectional=True)) == 2 * gates + 3 * 33


def test_a_resnet_without_norm_trades_scales_and_shifts_for_biases() -> None:
    with torch.device("meta"):
        plain = ResNet18(norm=False)
        normed = ResNet18()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    convolutions = [module for module in plain.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 20
    assert all(convolution.bias is not None for convolution in convolutions)
    assert all(module.bias is None for module in normed.modules() if isinstance(module, nn.Conv2d))
    channels = sum(convolution.out_channels for convolution in convolutions)
    assert count(ResNet18) - count(lambda: ResNet18(norm=False)) == channels

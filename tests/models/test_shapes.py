"""Output shapes over resolutions and options, and the errors for arguments that cannot work."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError
from tangentlab.models import (
    GPT,
    MLP,
    VGG11,
    VGG19,
    AutoEncoder,
    LeNet5,
    LSTMClassifier,
    ResNet,
    ResNet18,
    ResNet20,
    ResNet34,
    ResNet50,
)


@pytest.mark.parametrize("pixels", [16, 32, 64])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("make", [ResNet18, ResNet20, ResNet34, ResNet50])
def test_resnet_maps_images_of_any_resolution_to_logits(
    make: Callable[..., ResNet], norm: bool, stem: str, pixels: int
) -> None:
    model = make(7, base=4, norm=norm, stem=stem, in_channels=1).eval()
    assert model(torch.randn(2, 1, pixels, pixels)).shape == (2, 7)


@pytest.mark.parametrize(("stem", "first_stage"), [("cifar", 32), ("imagenet", 8)])
def test_the_stem_sets_the_resolution_of_the_first_stage(stem: str, first_stage: int) -> None:
    model = ResNet18(base=4, stem=stem).eval()
    sizes = []
    for stage in model.stages:
        model.get_submodule(stage).register_forward_hook(lambda _, __, output: sizes.append(output.shape[-1]))
    model(torch.randn(1, 3, 32, 32))
    assert sizes == [first_stage, first_stage // 2, first_stage // 4, first_stage // 8]


def test_resnet_names_its_weights_as_torchvision_does() -> None:
    with torch.device("meta"):
        names = set(ResNet50(1000, stem="imagenet").state_dict())
    assert len(names) == 320
    assert {
        "conv1.weight",
        "bn1.num_batches_tracked",
        "layer1.0.downsample.1.running_var",
        "layer3.5.conv3.weight",
        "layer4.2.bn3.bias",
        "fc.bias",
    } <= names


def test_a_block_adds_its_branch_to_its_skip_before_the_activation(seed: Callable[[int], torch.Generator]) -> None:
    model = ResNet18(base=4, norm=False).double()
    block = model.get_submodule("layer1.0")
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    convolution1, convolution2 = block.get_submodule("conv1"), block.get_submodule("conv2")
    torch.testing.assert_close(block(x), torch.relu(x + convolution2(torch.relu(convolution1(x)))))


@pytest.mark.parametrize("pixels", [8, 16, 32, 64])
@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("make", [VGG11, VGG19])
def test_vgg_maps_images_of_any_resolution_to_logits(
    make: Callable[..., nn.Module], batch_norm: bool, pixels: int
) -> None:
    images = torch.randn(2, 3, pixels, pixels)
    for image_size in (32, pixels):
        assert make(5, base=4, batch_norm=batch_norm, image_size=image_size).eval()(images).shape == (2, 5)


@pytest.mark.parametrize(("pixels", "poolings"), [(4, 2), (8, 3), (16, 4), (31, 4), (32, 5), (64, 5)])
def test_vgg_pools_small_images_only_as_often_as_they_can_be_halved(pixels: int, poolings: int) -> None:
    model = VGG11(base=4, image_size=pixels)
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == poolings
    assert isinstance(model.features[-1], nn.MaxPool2d)


@pytest.mark.parametrize(("channels", "pixels"), [(1, 28), (3, 32), (1, 16)])
@pytest.mark.parametrize("padding", ["same", "classic"])
def test_lenet_maps_images_to_logits(channels: int, pixels: int, padding: str) -> None:
    model = LeNet5(channels, pixels, 4, padding=padding)
    assert model(torch.randn(3, channels, pixels, pixels)).shape == (3, 4)


def test_mlp_and_autoencoder_flatten_images() -> None:
    images = torch.rand(3, 1, 28, 28)
    assert MLP((784, 5, 2))(images).shape == (3, 2)
    assert AutoEncoder()(images).shape == (3, 784)


def test_mlp_without_activation_is_the_product_of_its_matrices(seed: Callable[[int], torch.Generator]) -> None:
    model = MLP((4, 6, 5, 3), activation="identity", bias=False).double()
    first, second, third = model.parameters()
    x = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(model(x), x @ (third @ second @ first).T)


def test_the_code_of_the_autoencoder_is_squashed_unless_it_is_linear() -> None:
    squashed, linear = AutoEncoder((6, 4, 3)), AutoEncoder((6, 4, 3), linear_code=True)
    assert isinstance(squashed.encoder[-1], nn.Sigmoid)
    assert isinstance(linear.encoder[-1], nn.Linear)
    assert isinstance(squashed.decoder[-1], nn.Linear)
    normed = AutoEncoder((6, 4, 3), batch_norm=True)
    assert sum(isinstance(module, nn.BatchNorm1d) for module in normed.modules()) == 3


def test_gpt_gives_token_logits_or_class_logits() -> None:
    tokens = torch.randint(11, (2, 5))
    assert GPT(11, 8)(tokens).shape == (2, 5, 11)
    assert GPT(11, 8, n_classes=3)(tokens).shape == (2, 3)


def test_lstm_classifies_tokens_or_features() -> None:
    assert LSTMClassifier(3, vocab_size=11, n_layers=2)(torch.randint(11, (2, 5))).shape == (2, 3)
    assert LSTMClassifier(3, input_size=4, bidirectional=True)(torch.randn(2, 5, 4)).shape == (2, 3)


def test_a_bidirectional_lstm_sees_the_final_state_of_each_direction(seed: Callable[[int], torch.Generator]) -> None:
    model = LSTMClassifier(3, hidden=6, input_size=4, n_layers=2, bidirectional=True)
    x = torch.randn(2, 5, 4)
    outputs, _ = model.lstm(x)
    final = torch.cat([outputs[:, -1, :6], outputs[:, 0, 6:]], dim=1)
    torch.testing.assert_close(model(x), model.head(final))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP((3,)), "at least"),
        (lambda: MLP((3, 0, 1)), r"widths\[1\]"),
        (lambda: MLP((3, 1), activation="rellu"), "Unknown activation 'rellu'"),
        (lambda: MLP((3, 4, 1), activation=nn.ReLU()), "instance"),
        (lambda: AutoEncoder((3,)), "at least"),
        (lambda: LeNet5(image_size=10, padding="classic"), "too small"),
        (lambda: LeNet5(padding="valid"), "'classic'"),
        (lambda: ResNet18(stem="tiny"), "'imagenet'"),
        (lambda: ResNet18(base=0), "base"),
        (lambda: ResNet18(norm=False, zero_init_residual=True), "zero_init_residual"),
        (lambda: GPT(11, 8, n_heads=3), "multiple"),
        (lambda: GPT(11, 8, tied=True, n_classes=2), "tied"),
        (lambda: GPT(11, 4)(torch.zeros(1, 5, dtype=torch.long)), "5 positions"),
        (lambda: LSTMClassifier()(torch.zeros(2, 5)), "positions, input_size"),
        (lambda: LSTMClassifier(vocab_size=5)(torch.zeros(2, 5, 32)), "tokens"),
    ],
)
def test_arguments_that_cannot_work_raise_an_input_error_that_names_them(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make()

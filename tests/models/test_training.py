"""Every network learns: a few gradient steps on one batch lower its loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tangentlab.models import GPT, MLP, VGG11, AutoEncoder, LeNet5, LSTMClassifier, ResNet18, ResNet20, ResNet50

pytestmark = pytest.mark.usefixtures("seed")


def images(channels: int, pixels: int) -> Tensor:
    return torch.rand(8, channels, pixels, pixels)


def tokens() -> Tensor:
    return torch.randint(11, (8, 6))


def token_loss(logits: Tensor, inputs: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())


def class_loss(logits: Tensor, inputs: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(len(inputs)) % logits.shape[1])


def pixel_loss(logits: Tensor, inputs: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, inputs.flatten(1))


Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    ("make", "data", "loss"),
    [
        pytest.param(lambda: MLP((64, 32, 4)), lambda: images(1, 8), class_loss, id="mlp"),
        pytest.param(lambda: MLP((64, 32, 4), "tanh", False), lambda: images(1, 8), class_loss, id="mlp-tanh"),
        pytest.param(lambda: LeNet5(n_classes=4), lambda: images(1, 28), class_loss, id="lenet"),
        pytest.param(lambda: VGG11(4, base=8), lambda: images(3, 16), class_loss, id="vgg"),
        pytest.param(lambda: VGG11(4, base=8, batch_norm=True), lambda: images(3, 32), class_loss, id="vgg-norm"),
        pytest.param(lambda: ResNet18(4, base=8), lambda: images(3, 16), class_loss, id="resnet18"),
        pytest.param(lambda: ResNet18(4, base=8, norm=False), lambda: images(3, 16), class_loss, id="resnet18-plain"),
        pytest.param(lambda: ResNet20(4, base=8, norm=False), lambda: images(3, 16), class_loss, id="resnet20-plain"),
        pytest.param(lambda: ResNet50(4, base=8, norm=False), lambda: images(3, 16), class_loss, id="resnet50-plain"),
        pytest.param(lambda: AutoEncoder((64, 32, 8)), lambda: images(1, 8), pixel_loss, id="autoencoder"),
        pytest.param(lambda: GPT(11, 8), tokens, token_loss, id="gpt"),
        pytest.param(lambda: GPT(11, 8, tied=True), tokens, token_loss, id="gpt-tied"),
        pytest.param(lambda: GPT(11, 8, n_classes=4), tokens, class_loss, id="gpt-classifier"),
        pytest.param(lambda: LSTMClassifier(4, vocab_size=11), tokens, class_loss, id="lstm"),
    ],
)
def test_gradient_steps_lower_the_loss_and_reach_every_parameter(
    make: Callable[[], nn.Module], data: Callable[[], Tensor], loss: Loss
) -> None:
    model, inputs = make(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    values = []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(model(inputs), inputs)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < values[0]
    untouched = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []

"""The networks of the papers: the engine against plain autograd in float64, to 1e-10, and the routes it takes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.models import GPT, MLP, VGG11, AutoEncoder, LeNet5, LSTMClassifier, ResNet18, ResNet50
from tests.engine.truth import dense_jacobian, relative_error

TOLERANCE = 1e-10


class BothRoutes(nn.Module):
    """Convolutions and norms with closed forms; a GRU, attention and a PReLU without."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.PReLU(6), nn.Conv2d(6, 8, 3, padding=1)
        )
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.block(self.rnn(steps)[0]).mean(1))


def images(channels: int, pixels: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(3, channels, pixels, pixels)


def tokens(vocabulary: int, positions: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(vocabulary, (3, positions))


SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP": (lambda: MLP([12, 16, 16, 4]), lambda: torch.randn(3, 12)),
    "LeNet5": (lambda: LeNet5(), images(1, 28)),
    "AutoEncoder": (lambda: AutoEncoder(), lambda: torch.randn(2, 784)),
    "ResNet18": (lambda: ResNet18(base=8), images(3, 16)),
    "ResNet18 without norm": (lambda: ResNet18(base=8, norm=False), images(3, 16)),
    "ResNet50": (lambda: ResNet50(base=4), images(3, 16)),
    "ResNet50 without norm": (lambda: ResNet50(base=4, norm=False), images(3, 16)),
    "VGG11": (lambda: VGG11(base=8), images(3, 32)),
    "VGG11 with norm": (lambda: VGG11(base=8, batch_norm=True), images(3, 32)),
    "GPT tied, tokens": (lambda: GPT(11, 6, width=16, tied=True), tokens(11, 6)),
    "GPT, tokens": (lambda: GPT(11, 3, width=16), tokens(11, 3)),
    "GPT classifier": (lambda: GPT(11, 6, width=16, n_classes=4), tokens(11, 6)),
    "LSTM of tokens": (lambda: LSTMClassifier(3, hidden=8, vocab_size=11, input_size=6), tokens(11, 5)),
    "LSTM of features": (lambda: LSTMClassifier(3, hidden=8, input_size=6, n_layers=2), lambda: torch.randn(3, 5, 6)),
    "both routes": (BothRoutes, images(1, 12)),
}
FULL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "ResNet18": (lambda: ResNet18(), images(3, 32)),
    "ResNet18 without norm": (lambda: ResNet18(norm=False), images(3, 32)),
    "ResNet50": (lambda: ResNet50(), images(3, 32)),
    "ResNet50 without norm": (lambda: ResNet50(norm=False), images(3, 32)),
    "VGG11": (lambda: VGG11(), images(3, 32)),
    "GPT tied, tokens": (lambda: GPT(256, 32, n_layers=4, n_heads=4, width=64, tied=True), tokens(256, 32)),
    "LSTM of tokens": (lambda: LSTMClassifier(10, hidden=64, vocab_size=256), tokens(256, 16)),
}
FALLBACK = {
    "LSTM of tokens": {"lstm"},
    "LSTM of features": {"lstm"},
    "both routes": {"stem.2", "rnn"},
}


def with_statistics(model: nn.Module) -> nn.Module:
    """In eval mode, with running statistics and affine parameters that are not those of the initialization."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                assert isinstance(module.running_mean, Tensor) and isinstance(module.running_var, Tensor)
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.normal_(1, 0.1)
                module.bias.normal_(0, 0.1)
    return model.eval()


@pytest.mark.parametrize("name", list(SMALL))
def test_check_passes_to_1e_10(name: str) -> None:
    make, batch = SMALL[name]
    assert tl.check(with_statistics(make()), batch()).error < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FULL))
def test_check_passes_to_1e_10_at_full_size(name: str) -> None:
    make, batch = FULL[name]
    assert tl.check(with_statistics(make()), batch()[:2], max_outputs=2).error < TOLERANCE


@pytest.mark.parametrize("name", list(SMALL))
def test_everything_but_recurrence_and_slopes_has_a_closed_form(name: str) -> None:
    make, batch = SMALL[name]
    rows = tl.coverage(make().eval(), batch()).rows
    fallback = {name.rpartition(".")[0] for row in rows if row.route == "fallback" for name in row.names}
    assert fallback == FALLBACK.get(name, set())
    assert not [row for row in rows if row.route == "unused"]


@pytest.mark.parametrize("name", list(SMALL))
def test_products_by_automatic_differentiation_are_those_of_the_rows(name: str) -> None:
    make, batch = SMALL[name]
    model, x = with_statistics(make()).double(), batch()
    x = x.double() if x.is_floating_point() else x

    def first_outputs(output: Tensor, batch: Tensor) -> Tensor:
        return output.flatten(1)[:, :5]

    implicit = tl.Jacobian(model, x, tl.PushForwardImplicit, function=first_outputs)
    dense = tl.Jacobian(model, x, function=first_outputs)
    v = tl.PVector.random_unit(model)
    image = (dense @ v).data
    assert relative_error((implicit @ v).data, image) < TOLERANCE
    u = tl.FVector(torch.randn_like(image))
    assert relative_error((implicit.T @ u).flat, (dense.T @ u).flat) < TOLERANCE


def test_kernel_of_a_small_resnet_is_that_of_dense_autograd() -> None:
    model, x = with_statistics(ResNet18(base=4)).double(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    jacobian = dense_jacobian(model, x)
    truth = torch.einsum("knd,lmd->knlm", jacobian, jacobian)
    assert relative_error(tl.NTK(model, [(x[:2],), (x[2:],)]).data, truth) < TOLERANCE


def test_single_precision_networks_are_exact_to_single_precision() -> None:
    model, x = GPT(11, 6, width=16, tied=True), torch.randint(11, (2, 6))
    truth = dense_jacobian(model, x)
    assert relative_error(tl.Jacobian(model, x).data, truth) < 1e-4

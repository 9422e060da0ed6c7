"""The networks of tables C.1 to C.10: the shapes of every layer, as printed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models import ConvDiscriminator, ConvEncoder, ConvGenerator

# Height, width and feature maps after every convolution, as the tables print them.
TABLES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], list[tuple[int, int, int]]]] = {
    "C.1": (
        lambda: ConvGenerator(100, (512, 256, 128, 64), (2, 4, 7, 14, 28), channels=3),
        ((100,),),
        [(4, 4, 256), (7, 7, 128), (14, 14, 64), (28, 28, 3)],
    ),
    "C.2": (
        lambda: ConvDiscriminator(3, 28, (64, 128, 256, 512), activation="relu"),
        ((3, 28, 28),),
        [(14, 14, 64), (7, 7, 128), (4, 4, 256), (2, 2, 512)],
    ),
    "PacGAN, table 3, generator": (
        lambda: ConvGenerator(256, (64, 32, 16, 8), (4, 7, 14, 28), channels=3, kernel=3),
        ((256,),),
        [(7, 7, 32), (14, 14, 16), (28, 28, 8), (28, 28, 3)],
    ),
    "PacGAN, table 3, discriminator": (
        lambda: ConvDiscriminator(3, 28, (2, 4, 8), packed=2, kernel=3, norm_first=True),
        ((6, 28, 28),),
        [(14, 14, 2), (7, 7, 4), (4, 4, 8)],
    ),
    "C.4": (
        lambda: ConvEncoder(1, 28, (64, 128, 256), noise=128, latent=128),
        ((1, 28, 28),),
        [(14, 14, 64), (7, 7, 128), (4, 4, 256), (1, 1, 256)],
    ),
    "C.5": (
        lambda: ConvGenerator(128, (256, 128, 64), (4, 7, 14, 28), channels=1),
        ((128,),),
        [(7, 7, 128), (14, 14, 64), (28, 28, 1)],
    ),
    "C.6": (
        lambda: ConvDiscriminator(1, 28, (64, 128, 256), latent=128, head=1024),
        ((1, 28, 28), (128,)),
        [(14, 14, 64), (7, 7, 128), (4, 4, 256)],
    ),
    "C.8": (
        lambda: ConvEncoder(3, 64, (64, 128, 256, 512), noise=256, latent=256),
        ((3, 64, 64),),
        [(32, 32, 64), (16, 16, 128), (8, 8, 256), (4, 4, 512), (1, 1, 512)],
    ),
    "C.9": (
        lambda: ConvGenerator(256, (512, 256, 128, 64), (4, 8, 16, 32, 64), channels=3),
        ((256,),),
        [(8, 8, 256), (16, 16, 128), (32, 32, 64), (64, 64, 3)],
    ),
    "C.10": (
        lambda: ConvDiscriminator(3, 64, (64, 128, 256, 512), latent=256, head=1024),
        ((3, 64, 64), (256,)),
        [(32, 32, 64), (16, 16, 128), (8, 8, 256), (4, 4, 512)],
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_convolution_has_the_printed_shape(table: str) -> None:
    make, shapes, printed = TABLES[table]
    model, seen = make(), []

    def record(module: nn.Module, inputs: object, output: Tensor) -> None:
        seen.append((*output.shape[2:], output.shape[1]))

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_hook(record)
    with torch.no_grad():
        out = model(*(torch.randn(2, *shape) for shape in shapes))
    assert seen == printed
    printed_output = {ConvGenerator: (2, *printed[-1][::-1]), ConvDiscriminator: (2,)}
    assert out.shape == printed_output.get(type(model), (2, {"C.4": 128, "C.8": 256}.get(table)))


def test_generators_end_in_a_tanh_and_have_no_norm_on_the_pixels() -> None:
    for batch_norm in (True, False):
        layers = ConvGenerator(3, (4, 2), (4, 7, 14), 1, batch_norm).layers
        assert isinstance(layers[-1], nn.Tanh) and isinstance(layers[-2], nn.ConvTranspose2d)
        assert sum(isinstance(layer, nn.BatchNorm2d) for layer in layers) == (2 if batch_norm else 0)


def test_encoders_depend_on_their_noise_and_draw_it_where_none_is_given() -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder(1, 8, (8, 8), noise=2, latent=2).eval()
    images, noise = torch.randn(4, 1, 8, 8), torch.randn(4, 2)
    assert torch.equal(encoder(images, noise), encoder(images, noise))
    assert not torch.equal(encoder(images), encoder(images))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="sizes"):
        ConvGenerator(3, (4, 2), (4, 9, 14), 1)
    with pytest.raises(InputError, match="latent"):
        ConvDiscriminator(1, 8, (2,), latent=3)(torch.randn(2, 1, 8, 8))
    with pytest.raises(InputError, match="latent"):
        ConvDiscriminator(1, 8, (2,))(torch.randn(2, 1, 8, 8), torch.randn(2, 3))

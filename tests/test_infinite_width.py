"""Kernels of infinite width against quadrature, Monte Carlo over networks, and networks of growing width."""

import math

import mpmath
import pytest
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.kernels import wide_convolution_kernels, wide_mlp_kernels
from tangentlab.kernels.infinite_width import MOMENTS, Pairs

ACTIVATIONS = {"relu": torch.relu, "erf": torch.erf}


class Scaled(nn.Module):
    """A layer in the NTK parametrization: standard normal parameters, factors outside."""

    def __init__(self, layer: nn.Module, fan_in: int, weight_std: float, bias_std: float, generator) -> None:
        super().__init__()
        self.layer, self.scale, self.bias_std = layer, weight_std / math.sqrt(fan_in), bias_std
        self.bias = nn.Parameter(torch.randn(layer.weight.shape[0], generator=generator, dtype=torch.float64))
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))

    def forward(self, x):
        out = self.scale * self.layer(x)
        shape = (1, -1) + (1,) * (out.ndim - 2)
        return out + self.bias_std * self.bias.reshape(shape)


class Activation(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x):
        return ACTIVATIONS[self.name](x)


def mlp(sizes, activation, weight_std, bias_std, seed):
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        linear = nn.Linear(fan_in, fan_out, bias=False, dtype=torch.float64)
        layers += [Scaled(linear, fan_in, weight_std, bias_std, generator), Activation(activation)]
    return nn.Sequential(*layers[:-1])


def convolutional(channels, activation, weight_std, bias_std, seed, pixels):
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(channels, channels[1:]):
        layer = nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False, dtype=torch.float64)
        layers += [Scaled(layer, 9 * fan_in, weight_std, bias_std, generator), Activation(activation)]
    linear = nn.Linear(channels[-1] * pixels, 1, bias=False, dtype=torch.float64)
    return nn.Sequential(*layers, nn.Flatten(), Scaled(linear, channels[-1] * pixels, weight_std, bias_std, generator))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_moments_agree_with_quadrature(activation):
    p, q, c = 1.3, 0.7, 0.4
    t = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    u, v = torch.meshgrid(t, t, indexing="ij")
    root = torch.linalg.cholesky(torch.tensor([[p, c], [c, q]], dtype=torch.float64))
    first, second = root[0, 0] * u, root[1, 0] * u + root[1, 1] * v
    weight = torch.exp(-(u.square() + v.square()) / 2)
    weight = weight / weight.sum()
    values = [one.clone().requires_grad_() for one in (first, second)]
    outputs = [ACTIVATIONS[activation](one) for one in values]
    slopes = [torch.autograd.grad(out.sum(), one)[0] for out, one in zip(outputs, values)]
    products = float((weight * outputs[0] * outputs[1]).sum())
    derivatives = float((weight * slopes[0] * slopes[1]).sum())
    given = (c, p, q, p + q - 2 * c, p + q + 2 * c)
    pairs, both = MOMENTS[activation](Pairs(*(torch.tensor([one], dtype=torch.float64) for one in given)))
    assert float(pairs.cross) == pytest.approx(products, rel=1e-4)
    for power, sign in ((pairs.apart, -1), (pairs.together, 1)):
        assert float(power) == pytest.approx(
            float((weight * (outputs[0] + sign * outputs[1]).square()).sum()), rel=1e-4
        )
    assert float(both) == pytest.approx(derivatives, rel=5e-3 if activation == "relu" else 1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias_std", [0.0, 0.3])
def test_kernels_of_wide_networks_come_close_with_the_width(activation, bias_std):
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64)
    limit = wide_mlp_kernels(x, depth=3, activation=activation, weight_std=1.3, bias_std=bias_std).tangent
    errors = []
    for width in (64, 1024):
        off = [
            float(
                (NTK(mlp([5, width, width, 1], activation, 1.3, bias_std, seed), x).matrix() - limit).norm()
                / limit.norm()
            )
            for seed in range(6)
        ]
        errors.append(sum(off) / len(off))
    assert errors[1] < 0.1
    assert 2.5 < errors[0] / errors[1] < 7  # 4 by the rate width^-1/2


def test_the_process_is_the_covariance_of_outputs_at_initialization():
    torch.manual_seed(0)
    x = torch.randn(4, 5, dtype=torch.float64)
    limit = wide_mlp_kernels(x, depth=2, bias_std=0.2).process
    outputs = torch.stack([mlp([5, 256, 1], "relu", math.sqrt(2), 0.2, seed)(x)[:, 0].detach() for seed in range(4000)])
    covariance = outputs.t() @ outputs / len(outputs)
    spread = (limit.diagonal()[:, None] * limit.diagonal()).sqrt() * math.sqrt(2 / 4000)
    assert bool(((covariance - limit).abs() < 5 * spread).all())


def test_convolutional_kernels_come_close_with_the_width():
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    limit = wide_convolution_kernels(x, depth=3, bias_std=0.1)
    errors = []
    for width in (16, 256):
        off = [
            float(
                (
                    NTK(convolutional([2, width, width], "relu", math.sqrt(2), 0.1, seed, 20), x).matrix()
                    - limit.tangent
                ).norm()
                / limit.tangent.norm()
            )
            for seed in range(4)
        ]
        errors.append(sum(off) / len(off))
    assert errors[1] < 0.06
    assert errors[0] > 2 * errors[1]


def test_two_sets_of_inputs_are_a_block_of_one_kernel():
    torch.manual_seed(0)
    x = torch.randn(7, 4, dtype=torch.float64)
    for name in ("process", "tangent"):
        whole = getattr(wide_mlp_kernels(x, depth=4, bias_std=0.1), name)
        block = getattr(wide_mlp_kernels(x[:3], x[3:], depth=4, bias_std=0.1), name)
        torch.testing.assert_close(block, whole[:3, 3:])
        assert float(torch.linalg.eigvalsh(whole).min()) > -1e-9
    images = torch.randn(5, 2, 4, 4, dtype=torch.float64)
    whole = wide_convolution_kernels(images, depth=3).tangent
    torch.testing.assert_close(wide_convolution_kernels(images[:2], images[2:], depth=3).tangent, whole[:2, 2:])


def test_depth_one_is_linear_and_zero_inputs_have_no_kernel():
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(wide_mlp_kernels(x, depth=1, weight_std=1.0).tangent, x @ x.t() / 4)
    zero = wide_mlp_kernels(torch.zeros(2, 4), depth=3)
    assert float(zero.tangent.abs().max()) == 0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: wide_mlp_kernels(torch.zeros(2, 3), depth=2, activation="tanh"), "tanh"),
        (lambda: wide_mlp_kernels(torch.zeros(2, 3), depth=0), "layer"),
        (lambda: wide_mlp_kernels(torch.zeros(2, 3, 4), depth=2), "features"),
        (lambda: wide_convolution_kernels(torch.zeros(2, 3, 4, 4), depth=2, kernel_size=2), "odd"),
        (lambda: wide_convolution_kernels(torch.zeros(2, 3, 4, 4), depth=1), "depth=2"),
    ],
)
def test_what_has_no_closed_form_is_refused(call, word):
    with pytest.raises(InputError, match=word):
        call()


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_relu_kernels_scale_with_the_square_of_the_inputs_beyond_the_range_of_their_products(scale):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = wide_mlp_kernels(x, depth=3).tangent
    torch.testing.assert_close(wide_mlp_kernels(scale * x, depth=3).tangent / scale**2, expected, rtol=1e-6, atol=0)


def test_erf_kernels_of_large_inputs_are_finite():
    x = 1e9 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert bool(wide_mlp_kernels(x, depth=4, activation="erf").tangent.isfinite().all())


@pytest.mark.parametrize("inputs", [torch.zeros(0, 3), torch.zeros(3, 0), torch.full((2, 2), float("nan"))])
def test_empty_or_infinite_inputs_have_no_wide_kernels(inputs):
    with pytest.raises(InputError, match="finite"):
        wide_mlp_kernels(inputs, depth=2)


def test_wide_networks_have_whole_depths_and_positive_kernel_sizes():
    with pytest.raises(InputError, match="whole number"):
        wide_mlp_kernels(torch.ones(2, 3), depth=2.5)
    with pytest.raises(InputError, match="odd"):
        wide_convolution_kernels(torch.ones(2, 1, 3, 3), depth=2, kernel_size=-1)


# ---------------------------------------------------------------- inputs that nearly agree


def precise_relu_kernel(x, y, depth, weight_std, bias_std):
    """The recursion of Cho and Saul for one pair of inputs, with 60 digits."""
    with mpmath.workdps(60):
        x, y = ([mpmath.mpf(float(entry)) for entry in one] for one in (x, y))
        w, b = mpmath.mpf(weight_std) ** 2, mpmath.mpf(bias_std) ** 2
        c, p, q = (w * mpmath.fdot(one, two) / len(x) + b for one, two in ((x, y), (x, x), (y, y)))
        tangent = c
        for _ in range(depth - 1):
            size = mpmath.sqrt(p * q)
            t = mpmath.acos(min(c / size, mpmath.mpf(1)))
            slope = (mpmath.pi - t) / (2 * mpmath.pi)
            c = w * size * (mpmath.sin(t) + (mpmath.pi - t) * mpmath.cos(t)) / (2 * mpmath.pi) + b
            p, q = w * p / 2 + b, w * q / 2 + b
            tangent = c + w * slope * tangent
        return float(tangent)


@pytest.mark.parametrize("bias_std", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("step", [0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_angle_between_nearly_equal_and_nearly_opposite_inputs_has_all_digits(bias_std, scale, step, sign):
    torch.manual_seed(0)
    x = scale * torch.randn(40, 7, dtype=torch.float64)
    y = sign * x + scale * step * torch.randn(40, 7, dtype=torch.float64)
    found = wide_mlp_kernels(x, y, depth=4, weight_std=1.3, bias_std=bias_std).tangent.diagonal()
    expected = torch.tensor([precise_relu_kernel(*pair, 4, 1.3, bias_std) for pair in zip(x, y)], dtype=torch.float64)
    # rounding of the inputs' products moves the angle by no more than this
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14 * scale**2)


@pytest.mark.parametrize("length", [1e-8, 1e-4, 1e4, 1e8])
def test_inputs_of_very_different_lengths_lose_no_digits(length):
    torch.manual_seed(0)
    x = torch.randn(20, 7, dtype=torch.float64)
    y = length * (x + 0.3 * torch.randn(20, 7, dtype=torch.float64))
    found = wide_mlp_kernels(x, y, depth=4).tangent.diagonal()
    expected = torch.tensor(
        [precise_relu_kernel(*pair, 4, math.sqrt(2), 0.0) for pair in zip(x, y)], dtype=torch.float64
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_the_kernel_of_an_image_with_itself_has_all_digits():
    torch.manual_seed(0)
    x = torch.randn(5, 2, 4, 3, dtype=torch.float64)
    x[:, :, :2] = 0  # black pixels
    one, other = (wide_convolution_kernels(x, y, depth=4) for y in (x, x + 1e-13))
    torch.testing.assert_close(one.tangent, other.tangent, rtol=1e-12, atol=0)
    same = torch.stack([wide_convolution_kernels(x[n : n + 1], depth=4).tangent[0, 0] for n in range(5)])
    torch.testing.assert_close(one.tangent.diagonal(), same, rtol=1e-14, atol=0)

"""The NTK parametrization: outputs, plain layers, and a kernel that comes to its limit."""

import math

import torch

from tangentlab import NTK, coverage
from tangentlab.kernels import wide_mlp_kernels
from tangentlab.models import WideMLP


def test_outputs_are_those_of_the_formula():
    torch.manual_seed(0)
    model = WideMLP([3, 5, 2], weight_std=1.5)
    first, last = (module.weight for module in model.layers if isinstance(module, torch.nn.Linear))
    x = torch.randn(4, 3)
    expected = (x @ first.t() * 1.5 / math.sqrt(3)).relu() @ last.t() * 1.5 / math.sqrt(5)
    torch.testing.assert_close(model(x), expected)


def test_weights_are_standard_normal():
    torch.manual_seed(0)
    weights = WideMLP([100, 400, 1]).layers[1].weight
    assert abs(float(weights.std()) - 1) < 0.02


def test_every_layer_has_a_closed_form_and_the_kernel_is_near_its_limit():
    torch.manual_seed(0)
    x = torch.randn(5, 7)
    model = WideMLP([7, 1024, 1024, 1])
    assert "fallback" not in str(coverage(model, x))
    limit = wide_mlp_kernels(x, depth=3).tangent
    assert float((NTK(model, x).matrix() - limit).norm() / limit.norm()) < 0.15

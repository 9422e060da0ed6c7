"""The network of the theorems: a fixed output layer of random signs."""

import math

import torch

import tangentlab as tl
from tangentlab.models import FixedOutputMLP


def test_the_output_layer_is_fixed_at_signs_of_its_scale_and_the_hidden_one_is_standard_normal():
    torch.manual_seed(0)
    model = FixedOutputMLP(100, 400, 3)
    output = model.layers[2].weight
    assert torch.allclose(output.abs(), torch.full((3, 400), 1 / math.sqrt(1200)))
    assert abs(output.sign().mean()) < 0.1 and not output.requires_grad
    assert abs(model.layers[0].weight.std() - 1) < 0.02


def test_its_kernel_has_the_closed_form_of_hidden_derivatives_times_inputs():
    torch.manual_seed(0)
    model, x = FixedOutputMLP(5, 7, 2).double(), torch.randn(4, 5, dtype=torch.float64)
    slopes = torch.sigmoid(x @ model.layers[0].weight.detach().T)
    weighted = model.layers[2].weight[:, None, :] * slopes  # (outputs, examples, width)
    expected = torch.einsum("cnk,dmk->cndm", weighted, weighted) * (x @ x.T)[None, :, None, :]
    assert torch.allclose(tl.NTK(model, x).data, expected)

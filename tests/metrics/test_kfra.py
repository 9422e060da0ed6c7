"""KFRA against its recursion by loops, and where it is exact."""

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import StructureError
from tangentlab.layers import registry
from tangentlab.layers.linear import linear
from tangentlab.layers.registry import register
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import EXAMPLES, case_of
from tests.metrics.curvature_truth import cross_entropy, output_hessian


def deep(activation: nn.Module, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(3, 5), activation, nn.Linear(5, 4, bias=False), activation, nn.Linear(4, 3)
        ).double()


def kfra_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, G) per layer, by loops over examples and units."""
    layers = {name: module for name, module in model.named_children() if isinstance(module, nn.Linear)}
    inputs, slopes, h = {}, {}, x
    for name, module in model._modules.items():
        if isinstance(module, nn.Linear):
            inputs[name] = torch.cat([h, torch.ones(len(h), 1)], 1) if module.bias is not None else h
            h = module(h)
            last = name
        else:
            s = h.detach().requires_grad_()
            h = module(s)
            slopes[last] = torch.autograd.grad(h.sum(), s)[0]
    G = sum(output_hessian(cross_entropy, f, t) for f, t in zip(h, y)) / len(x)
    result, names = {}, list(layers)
    for place in range(len(names) - 1, -1, -1):
        if place < len(names) - 1:
            W = layers[names[place + 1]].weight.detach()
            terms = [torch.diag(s) @ W.t() @ G @ W @ torch.diag(s) for s in slopes[names[place]]]
            G = sum(terms) / len(terms)
        a = inputs[names[place]].detach()
        result[names[place]] = a.t() @ a / len(a), G
    return result


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.Sigmoid()])
def test_kfra_is_its_recursion(activation):
    case = case_of("mlp", split="uneven batches")
    model = deep(activation)
    K = tl.KFRA(model, case.batches)
    assert K.examples == EXAMPLES
    for name, (a, g) in kfra_by_hand(model, case.inputs, case.targets).items():
        block = next(block for names, block in K.blocks.items() if names[0] == f"{name}.weight")
        assert_close(block.right[0], a)
        assert_close(block.left[0], g)


def test_kfra_is_exact_for_one_example():
    case = case_of("mlp")
    model, one = deep(nn.Tanh()), (case.inputs[:1], case.targets[:1])
    assert_close(tl.KFRA(model, one).to_dense(), tl.GGN(model, one, tl.PMatBlockDiag).to_dense())


def test_kfra_is_exact_for_linear_chains_with_a_quadratic_loss():
    case = case_of("mlp")
    targets = torch.zeros(EXAMPLES, 3, dtype=torch.float64)
    model = deep(nn.Identity())
    exact = tl.GGN(model, (case.inputs, targets), tl.PMatBlockDiag, loss="regression")
    assert_close(tl.KFRA(model, (case.inputs, targets), loss="regression").to_dense(), exact.to_dense())


def test_kfra_leaves_the_model_without_hooks_and_refuses_what_is_no_chain():
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.last(h.tanh()) + h

    case = case_of("mlp")
    skip = Skip().double()
    with pytest.raises(StructureError, match="not a chain"):
        tl.KFRA(skip, case.batches)
    softmax = nn.Sequential(nn.Linear(3, 4), nn.Softmax(1), nn.Linear(4, 3)).double()
    with pytest.raises(StructureError, match="not a chain"):
        tl.KFRA(softmax, case.batches)
    convolution = case_of("grouped convolution")
    with pytest.raises(StructureError):
        tl.KFRA(convolution.model, convolution.batches)
    for model in (skip, softmax, convolution.model):
        assert not any(module._forward_hooks for module in model.modules())


def test_kfra_of_a_selection_has_only_its_layers():
    case = case_of("mlp")
    model = deep(nn.Tanh())
    whole, part = tl.KFRA(model, case.batches), tl.KFRA(model, case.batches, layers=["0.weight", "4"])
    assert part.layout.names == ("0.weight", "4.weight", "4.bias")
    slices = whole.layout.slices
    expected = whole.to_dense()[slices["0.weight"], slices["0.weight"]]
    assert_close(part.to_dense()[: len(expected), : len(expected)], expected)


class Renamed(nn.Module):
    """A linear layer of somebody else, with parameters that are called otherwise."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.randn(units, inputs)), nn.Parameter(torch.randn(units))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel.T + self.offset


def test_kfra_asks_the_rule_of_a_layer_not_its_class():
    case = case_of("mlp")
    plain, other = deep(nn.Tanh()), deep(nn.Tanh())
    other[2], plain[2] = Renamed(5, 4).double(), nn.Linear(5, 4).double()
    plain[2].load_state_dict({"weight": other[2].kernel.detach(), "bias": other[2].offset.detach()})
    with pytest.raises(StructureError, match="not a chain|entrywise"):
        tl.KFRA(other, case.batches)
    before = dict(registry._RULES)
    try:
        register(Renamed, groups=(("kernel", "offset"),), pointwise=True)(linear)
        found = tl.KFRA(other, case.batches)
    finally:
        registry._RULES.clear()
        registry._RULES.update(before)
    assert_close(found.to_dense(), tl.KFRA(plain, case.batches).to_dense())
    assert ("2.kernel", "2.offset") in found.blocks

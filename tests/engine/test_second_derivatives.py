"""Second derivatives are trusted after they were seen to be symmetric; those of some operations of torch are wrong."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import tangentlab as tl
from tangentlab.errors import ModelError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NORMED: dict[str, Callable[[nn.Module], nn.Module]] = {
        "parametrization": parametrizations.weight_norm,
        "older": nn.utils.weight_norm,
    }


def make(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), wrap(nn.Linear(4, 2))).double()


def slopes_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = 0.5 * (model(x) - y).square().sum() / len(x)
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, list(model.parameters()))])


def by_differences(model: nn.Module, x: Tensor, y: Tensor, step: float = 1e-5) -> Tensor:
    """The Hessian from differences of plain gradients."""
    columns = []
    for parameter in model.parameters():
        for entry in parameter.data.view(-1).split(1):
            entry += step
            ahead = slopes_of(model, x, y)
            entry -= 2 * step
            columns.append((ahead - slopes_of(model, x, y)) / (2 * step))
            entry += step
    return torch.stack(columns, 1)


X, Y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)


@pytest.mark.parametrize("case", list(NORMED))
@pytest.mark.parametrize("representation", [tl.PMatDense, tl.PMatDiag, tl.PMatBlockDiag, tl.PMatImplicit])
def test_hessians_that_torch_gets_wrong_are_refused_by_name(case: str, representation: type) -> None:
    model = make(NORMED[case])
    with pytest.raises(ModelError, match=r"for '2\..*' are not symmetric"):
        matrix = tl.Hessian(model, (X, Y), representation, "regression")
        matrix @ tl.PVector.ones(model)


def test_the_same_layer_with_its_norm_written_out_has_its_hessian() -> None:
    class Written(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w / w.norm(dim=1, keepdim=True)

    def wrap(layer: nn.Module) -> nn.Module:
        return nn.utils.parametrize.register_parametrization(layer, "weight", Written())

    model = make(wrap)
    found = tl.Hessian(model, (X, Y), tl.PMatDense, "regression").to_dense()
    truth = by_differences(model, X, Y)
    assert float((found - truth).abs().max()) < 1e-7 * float(truth.abs().max())


def test_first_derivatives_of_weight_norm_are_right_in_both_directions() -> None:
    model = make(parametrizations.weight_norm)
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    dense, implicit = (tl.Jacobian(model, X, kind) @ v for kind in (tl.PushForwardDense, tl.PushForwardImplicit))
    assert torch.allclose(dense.data, implicit.data, atol=1e-12)


@pytest.mark.parametrize("representation", [tl.PMatDense, tl.PMatDiag, tl.PMatImplicit])
def test_hooks_on_parameters_change_what_an_optimizer_sees_and_no_second_derivative(representation: type) -> None:
    model = make(lambda layer: layer)
    truth = tl.Hessian(model, (X, Y), tl.PMatDense, "regression").to_dense()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: 2 * grad)
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    found = tl.Hessian(model, (X, Y), representation, "regression")
    expected = torch.diag(truth.diagonal()) if representation is tl.PMatDiag else truth
    assert torch.allclose((found @ v).flat, expected @ v.flat, atol=1e-12)
    assert all(len(parameter._backward_hooks) == 1 for parameter in model.parameters())

"""Models whose parameters have several floating-point types: every result is of the widest one, and as exact as that allows."""

import copy

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import ModelError

KINDS = (
    tl.PMatDense,
    tl.PMatBlockDiag,
    tl.PMatKFAC,
    tl.PMatEKFAC,
    tl.PMatKronSum,
    tl.PMatQuasiDiag,
    tl.PMatDiag,
    tl.PMatLowRank,
    tl.PMatImplicit,
    tl.PMatMixed.default(),
)


class FollowsItsParameters(nn.Module):
    """A linear layer, a bare scale (which takes the fallback) and a linear layer, each in its own type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(4, 3), nn.Parameter(torch.rand(3) + 0.5), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.to(self.first.weight.dtype))).to(self.scale.dtype) * self.scale
        return self.last(hidden.to(self.last.weight.dtype))


@pytest.fixture
def models() -> tuple[nn.Module, nn.Module]:
    """One model in two types, narrow first, and the same numbers in double precision."""
    torch.manual_seed(0)
    mixed = FollowsItsParameters()
    truth = copy.deepcopy(mixed).double()
    mixed.last.double()
    return mixed, truth


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: getattr(kind, "__name__", "mixed"))
def test_every_representation_agrees_with_the_model_in_double_precision(kind, models) -> None:
    x, layers = torch.randn(6, 4), ["first", "last"]  # the bare scale has no Kronecker structure
    found, expected = (tl.FIM(model, x.to(model.last.weight.dtype), kind, layers=layers) for model in models)
    v = tl.PVector.random_unit(models[1], layers)
    assert tl.PVector.ones(models[0], layers).dtype == v.dtype == torch.float64
    for operation in (lambda F: F @ v, lambda F: F.solve(v, damping=0.1), lambda F: F.diag()):
        one, other = operation(found), operation(expected)
        assert one.dtype == torch.float64
        torch.testing.assert_close(one.flat, other.flat, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.trace(), expected.trace(), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.vTMv(v), expected.vTMv(v), rtol=1e-4, atol=1e-7)


def test_implicit_products_agree_by_rows_and_by_differentiation(models) -> None:
    (mixed, truth), x = models, torch.randn(6, 4)
    v = tl.PVector.random_unit(truth)
    matrix = tl.FIM(mixed, x, tl.PMatImplicit)
    exact = (tl.FIM(truth, x.double()) @ v).flat
    flat = v.flat[None]
    for found in (matrix._product_by_rows(flat), matrix._product_by_autograd(flat)):
        torch.testing.assert_close(found[0], exact, rtol=1e-4, atol=1e-5)


def test_kernels_and_gradients_agree_too(models) -> None:
    (mixed, truth), x = models, torch.randn(6, 4)
    found, expected = tl.NTK(mixed, x).matrix(), tl.NTK(truth, x.double()).matrix()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert tl.check(mixed, x).passed


def test_a_check_of_a_model_that_fixes_its_types_says_so(models) -> None:
    class FixesItsTypes(FollowsItsParameters):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x.float()).double())

    model = FixesItsTypes()
    model.last.double()
    assert tl.NTK(model, torch.randn(3, 4)).data.isfinite().all()
    with pytest.raises(ModelError, match="does not run in float64.*follow the parameters"):
        tl.check(model, torch.randn(3, 4))


def test_a_check_of_a_model_with_kernels_of_single_precision_says_so() -> None:
    class Kernel(FollowsItsParameters):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise RuntimeError("Expected mat_a to be Float32")
            return super().forward(x)

    with pytest.raises(ModelError, match="does not run in float64.*kernel of single precision"):
        tl.check(Kernel(), torch.randn(3, 4))


def test_a_check_of_a_model_that_does_not_run_at_all_raises_its_own_error() -> None:
    class Broken(FollowsItsParameters):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("a wrong type of mistake")

    with pytest.raises(RuntimeError, match="a wrong type of mistake"):
        tl.check(Broken(), torch.randn(3, 4))

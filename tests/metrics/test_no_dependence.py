"""Where every derivative would be zero there is nothing to compute: refused by every factory, with the way out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import InputError, ModelError
from tangentlab.linearized import linearize

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(6) % 2


class WithSpare(nn.Module):
    """A layer that is never called beside one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


FACTORIES: dict[str, Callable[..., Any]] = {
    "FIM": tl.FIM,
    "FIM_MonteCarlo": tl.FIM_MonteCarlo,
    "FIM_Empirical": tl.FIM_Empirical,
    "NTK": tl.NTK,
    "NTK per layer": lambda *args, **options: tl.NTK(*args, per_layer=True, **options),
    "implicit NTK": lambda *args, **options: tl.NTK(*args, representation=tl.FMatImplicit, **options),
    "implicit NTK per layer": lambda *args, **options: tl.NTK(
        *args, representation=tl.FMatImplicit, per_layer=True, **options
    ),
    "Jacobian": tl.Jacobian,
    "Hessian": tl.Hessian,
    "dense Hessian": lambda *args, **options: tl.Hessian(*args, tl.PMatDense, **options),
    "GGN": tl.GGN,
    "GradientCovariance": tl.GradientCovariance,
    "per_example_grads": tl.per_example_grads,
    "per_example_grad_norms": tl.per_example_grad_norms,
    "check": lambda model, data, **options: tl.check(model, data, **options),
    "fisher_eigenpairs": tl.fisher_eigenpairs,
} | {
    f"{kind.__name__}": lambda *args, kind=kind, **options: tl.FIM(*args, kind, **options)
    for kind in (tl.PMatBlockDiag, tl.PMatDiag, tl.PMatImplicit, tl.PMatLowRank, tl.PMatQuasiDiag)
} | {
    f"{kind.__name__}": lambda *args, kind=kind, **options: tl.Jacobian(*args, kind, **options)
    for kind in (tl.PushForwardImplicit, tl.PullBackDense, tl.PullBackImplicit)
}  # fmt: skip
each = pytest.mark.parametrize("name", list(FACTORIES))


@each
def test_outputs_of_another_model_are_refused(name: str) -> None:
    model, other = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    with pytest.raises(ModelError, match="do not depend on any selected parameter.*forward="):
        FACTORIES[name](model, (X, Y), forward=lambda net, batch: other(batch[0]))


@each
@pytest.mark.parametrize("layers", ["spare", "scale", ["spare", "scale"]], ids=str)
def test_layers_that_take_no_part_in_the_outputs_are_refused_alone(name: str, layers: Any) -> None:
    with pytest.raises(ModelError, match="do not depend on any selected parameter.*layers="):
        FACTORIES[name](WithSpare().double(), (X, Y), layers=layers)


def test_parameters_that_are_not_used_beside_others_that_are_have_zero_rows() -> None:
    model = WithSpare().double()
    J = tl.Jacobian(model, X).data
    used = tl.LayerCollection.from_model(model).slices
    for name in ("spare.weight", "spare.bias", "scale"):
        assert not J[..., used[name]].any()
    for implicit in (False, True):
        kernels = tl.NTK(model, X, per_layer=True, representation=tl.FMatImplicit if implicit else tl.FMatDense)
        assert not kernels["spare"].tensor().any() and kernels["used"].tensor().any()


class Switch(nn.Module):
    """Two experts; an example goes to the one that the sign of its first input says."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        right = x[:, 0] > 0
        out = x.new_zeros(len(x), 2)
        for expert, chosen in ((self.left, ~right), (self.right, right)):
            if chosen.any():
                out = out.index_put((chosen.nonzero()[:, 0],), expert(x[chosen]))
        return out


@each
def test_a_batch_that_leaves_the_selected_parameters_out_is_taken_with_others_that_do_not(name: str) -> None:
    if name == "check":
        pytest.skip("takes one batch")
    x = X.clone()
    x[:3, 0], x[3:, 0] = -1.0, 1.0
    model = Switch().double()
    batches = [(x[:3], Y[:3]), (x[3:], Y[3:])]
    FACTORIES[name](model, batches, layers="right")
    with pytest.raises(ModelError, match="do not depend on any selected parameter"):
        FACTORIES[name](model, batches[:1], layers="right")


def test_a_linearized_network_with_nothing_to_move_is_refused() -> None:
    with pytest.raises(ModelError, match="do not depend on any selected parameter"):
        linearize(WithSpare().double(), layers="spare")(X)
    with pytest.raises(ModelError, match="do not depend on any selected parameter"):
        linearize(WithSpare().double(), layers="scale", order=2)(X)
    linearize(WithSpare().double())(X)


@pytest.mark.parametrize(
    "factory",
    [tl.FIM, tl.FIM_MonteCarlo, tl.FIM_Empirical, tl.GGN, tl.Hessian, tl.GradientCovariance, tl.per_example_grads],
    ids=lambda factory: factory.__name__,
)
@pytest.mark.parametrize("flat", [True, False], ids=["(n,)", "(n, 1)"])
def test_a_network_with_one_output_is_no_classifier(factory: Callable[..., Any], flat: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 1), *([nn.Flatten(0)] if flat else [])).double()
    with pytest.raises(InputError, match="softmax over one output.*'regression'.*'binary'"):
        factory(model, (X, torch.zeros(6, dtype=torch.long)))
    option = "loss" if factory in (tl.GGN, tl.Hessian, tl.GradientCovariance) else "likelihood"
    for kind in ("regression", "binary"):
        factory(model, (X, Y.double()), **{option: kind})

"""One result, whatever form the data come in; order is asked for only where it matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tangentlab as tl
from tangentlab.errors import InputError

X, Y = torch.randn(7, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64), torch.arange(7) % 2
FORMS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "tuple": lambda: (X, Y),
    "uneven list": lambda: [(X[:1],), (X[1:5],), (X[5:],)],
    "list of a loader": lambda: [X, Y],
    "list of tuples": lambda: [(X[:4], Y[:4]), (X[4:], Y[4:])],
    "generator": lambda: (part for part in X.split(3)),
    "iterator": lambda: iter([X[:2], X[2:]]),
    "loader": lambda: DataLoader(TensorDataset(X, Y), 3),
    "one by one": lambda: DataLoader(TensorDataset(X), 1),
    "dicts": lambda: [{"input": X[:3], "labels": Y[:3]}, {"input": X[3:], "labels": Y[3:]}],
}


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)).double()


class Named(nn.Module):
    """Takes its input by the name `input`, as a dict gives it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.inner(input)


@pytest.mark.parametrize("form", list(FORMS))
def test_kernels_matrices_and_products_do_not_depend_on_the_form_of_the_data(model: nn.Module, form: str) -> None:
    net = Named(model)
    v = tl.PVector(tl.LayerCollection.from_model(net), torch.linspace(-1, 1, 27, dtype=torch.float64))
    for build in (
        lambda data: tl.NTK(net, data).data,
        lambda data: tl.FIM(net, data).to_dense(),
        lambda data: tl.FIM(net, data, tl.PMatDiag).diag().flat,
        lambda data: tl.FIM(net, data, tl.PMatEKFAC, layers="inner.0").to_dense(),
        lambda data: (tl.FIM(net, data, tl.PMatImplicit) @ v).flat,
        lambda data: tl.Jacobian(net, data).data,
    ):
        assert torch.allclose(build(FORMS[form]()), build(X), rtol=1e-9, atol=1e-12)


ORDERED = {
    "NTK": lambda model, data: tl.NTK(model, data),
    "cross NTK": lambda model, data: tl.NTK(model, X, data),
    "Jacobian": lambda model, data: tl.Jacobian(model, data),
    "implicit Jacobian": lambda model, data: tl.Jacobian(model, data, tl.PushForwardImplicit),
    "per_example_grads": lambda model, data: tl.per_example_grads(model, data),
    "per_example_grad_norms": lambda model, data: tl.per_example_grad_norms(model, data),
}


@pytest.mark.parametrize("name", list(ORDERED))
def test_a_shuffling_loader_is_refused_where_the_order_of_examples_shows(model: nn.Module, name: str) -> None:
    loader = DataLoader(TensorDataset(X, Y), 3, shuffle=True)
    with pytest.raises(InputError, match="shuffle=False"):
        ORDERED[name](model, loader)
    ORDERED[name](model, list(loader))


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatDiag, tl.PMatImplicit], ids=lambda kind: kind.__name__)
def test_a_shuffling_loader_gives_the_same_matrix_where_order_does_not_show(model: nn.Module, kind: Any) -> None:
    shuffled, plain = (tl.FIM(model, DataLoader(TensorDataset(X, Y), 3, shuffle=s), kind) for s in (True, False))
    assert torch.allclose(shuffled.to_dense(), plain.to_dense(), rtol=1e-10)


def test_a_batch_of_another_kind_needs_a_forward(model: nn.Module) -> None:
    class Sealed:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    with pytest.raises(InputError, match="pass forward="):
        tl.NTK(model, [Sealed(X)])
    sealed = tl.NTK(model, [Sealed(X[:3]), Sealed(X[3:])], forward=lambda net, batch: net(batch.x))
    assert torch.allclose(sealed.data, tl.NTK(model, X).data, rtol=1e-10)

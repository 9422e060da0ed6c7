"""Data in forms that somebody will pass one day: the right result, or a refusal that says how to write it."""

from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import tangentlab as tl
from tangentlab.errors import InputError

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y = torch.arange(6) % 2
Named = namedtuple("Named", "x y")
SET = TensorDataset(X, Y)


class Encoding(UserDict):
    """A mapping that is no dict, as tokenizers give it, with items as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("data", {}):
            raise AttributeError(name)
        return self.data[name]


class ModelOutput(OrderedDict):
    """An ordered dict with a class of its own."""


@dataclass
class Plain:
    x: Tensor
    y: Tensor


@dataclass
class Parts:
    inputs: Tensor
    targets: Tensor


class Examples(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y))


class BatchesOfThree(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X.split(3), Y.split(3)))


class Rows:
    """Neither a Dataset nor a loader; gives its examples one by one, as dicts of numbers."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter({"input": x.tolist(), "labels": int(y)} for x, y in zip(X, Y))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, input: Tensor) -> Tensor:
        return self.layers(input)


ARRAYS = "torch.from_numpy"
RIGHT: dict[str, Callable[[], Any]] = {
    "named tuple": lambda: Named(X, Y),
    "tuple of one": lambda: (X,),
    "list of one": lambda: [X],
    "tuple with text": lambda: (X, Y, ["a"] * 6, {"more": 3}),
    "list as loaders yield it": lambda: [X, Y],
    "list with weights": lambda: [X, Y, torch.ones(6)],
    "list of lists": lambda: [[X[:2], Y[:2]], [X[2:], Y[2:]]],
    "mapping that is no dict": lambda: Encoding(input=X, labels=Y),
    "ordered dict": lambda: ModelOutput(input=X, labels=Y),
    "list of mappings": lambda: [Encoding(input=X[:2]), Encoding(input=X[2:])],
    "object with inputs and targets": lambda: Parts(X, Y),
    "list of such objects": lambda: [Parts(X[:1], Y[:1]), Parts(X[1:], Y[1:])],
    "loader of lists": lambda: DataLoader(SET, 4),
    "loader of tensors": lambda: DataLoader(X, 4),  # type: ignore[arg-type]
    "loader of dicts": lambda: DataLoader([{"input": x, "labels": y} for x, y in zip(X, Y)], 4),  # type: ignore[arg-type]
    "loader of an iterable dataset": lambda: DataLoader(Examples(), 4),
    "loader of ready batches": lambda: DataLoader(BatchesOfThree(), None),
    "zip": lambda: zip(X.split(4), Y.split(4)),
    "map": lambda: map(torch.clone, X.split(4)),
    "values of a dict": lambda: {"a": X[:2], "b": X[2:]}.values(),
    "with a graph": lambda: X.clone().requires_grad_() * 1,
    "parameter": lambda: nn.Parameter(X),
    "transposed": lambda: X.t().contiguous().t(),
    "strided": lambda: torch.stack([X, -X], 1)[:, 0],
    "buffer": lambda: nn.Buffer(X),
    "deque": lambda: deque([(X[:2],), (X[2:],)]),
    "read-only mapping": lambda: MappingProxyType({"input": X}),
    "sparse targets in a pair": lambda: (X.to_sparse(), Y),
    "targets of 32 bits": lambda: (X, Y.int()),
    "targets of bytes": lambda: (X, Y.byte()),
    "one-hot targets": lambda: (X, nn.functional.one_hot(Y).double()),
    "batches of unequal length": lambda: [(X[:1], Y[:1]), (X[1:2], Y[1:2]), (X[2:], Y[2:])],
    "batches of different forms": lambda: [(X[:1], Y[:1]), {"input": X[1:2], "labels": Y[1:2]}, [X[2:], Y[2:]]],
    "sparse": lambda: X.to_sparse(),
    "sparse rows": lambda: X.to_sparse_csr(),
}
WITHOUT_TARGETS = {
    "tuple of one", "list of one", "list of mappings", "loader of tensors", "map", "values of a dict", "with a graph",
    "parameter", "transposed", "sparse", "sparse rows", "read-only mapping", "strided", "deque", "buffer",
}  # fmt: skip
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "inputs in a tuple": (lambda: ((X, X), Y), "starts with a tuple to the model: pass forward="),
    "loader of inputs in a tuple": (lambda: DataLoader([((x, x), y) for x, y in zip(X, Y)], 6), "starts with a list"),  # type: ignore[arg-type]
    "tuple of batches": (lambda: ((X[:3], Y[:3]), (X[3:], Y[3:])), "or several batches as a list"),
    "tuple of pieces": (lambda: X.split(4), "write several batches as a list of tuples"),
    "tensors and text": (lambda: [X, ["a"] * 6], "may be one batch or several"),
    "no examples": (lambda: X[:0], "at least one example"),
    "no examples in one batch": (lambda: [(X, Y), (X[:0], Y[:0])], "at least one example"),
    "one example": (lambda: X[0], r"Write one example as x\[None\]"),
    "one example with its label": (lambda: SET[0], "one example without an axis for examples"),
    "one example with a number": (lambda: (X[0], 1), "one example without an axis for examples"),
    "one example as a dict": (lambda: {"input": X[0], "labels": Y[0]}, "one example without an axis for examples"),
    "loader without batches": (lambda: DataLoader(SET, None), "one example without an axis for examples"),
    "a number": (lambda: X[0, 0], "a tensor without axes"),
    "dataset": (lambda: SET, r"TensorDataset: wrap it, as in DataLoader\(data"),
    "part of a dataset": (lambda: Subset(SET, [0, 1]), "Subset: wrap it"),
    "joined datasets": (lambda: ConcatDataset([SET, SET]), "ConcatDataset: wrap it"),
    "iterable dataset": (lambda: Examples(), r"Examples: wrap it.*batch_size=None where it yields batches"),
    "rows": (lambda: Rows(), "one example without an axis|holds no tensors"),
    "dataclass": (lambda: Plain(X, Y), r"from a Plain: .* or \[batch\] with forward="),
    "list of dataclasses": (lambda: [Plain(X, Y)], "feed a Plain to the model: pass forward="),
    "array": (lambda: X.numpy(), ARRAYS),
    "arrays": (lambda: (X.numpy(), Y.numpy()), ARRAYS),
    "list of arrays": (lambda: [X.numpy(), X.numpy()], ARRAYS),
    "dict of arrays": (lambda: {"input": X.numpy()}, ARRAYS),
    "arrays in a loader": (lambda: iter([X.numpy()]), ARRAYS),
    "dict of lists": (lambda: {"input": X.tolist(), "labels": Y}, "holds no tensors.*return_tensors='pt'"),
    "empty tuple": (lambda: (), "empty tuple or list"),
    "empty dict": (lambda: {}, "holds no tensors"),
    "empty list": (lambda: [], "The loader is empty"),
    "set": (lambda: {X}, "A set has no order"),
    "text": (lambda: "text", "feed a str to the model"),
    "numbered batches": (lambda: enumerate(DataLoader(SET, 3)), "starts with a int"),
    "function": (lambda: lambda: X, "Cannot take batches from a function"),
    "model": (lambda: nn.Linear(3, 2), "Cannot take batches from a Linear"),
    "nested tensor": (lambda: torch.nested.nested_tensor([X[:2], X[2:]], layout=torch.jagged), "to_padded_tensor"),
    "complex": (lambda: X.to(torch.complex128), "torch.complex128"),
    "nothing": (lambda: None, "No data"),
}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Network().double()


def truth_of(model: nn.Module, x: Tensor = X) -> Tensor:
    """The Jacobian (outputs, examples, d) by one plain gradient per entry of one plain call."""
    outputs = model(x)
    rows = [
        [torch.autograd.grad(outputs[n, k], list(model.parameters()), retain_graph=True) for n in range(len(x))]
        for k in range(outputs.shape[1])
    ]
    return torch.stack([torch.stack([torch.cat([g.flatten() for g in grads]) for grads in line]) for line in rows])


def fisher_of(model: nn.Module, x: Tensor = X) -> Tensor:
    """E over labels of the squared gradient of the log-probability, label by label."""
    logits, jacobian = model(x).detach(), truth_of(model, x)
    p = logits.softmax(1)
    scores = [jacobian[k] - torch.einsum("nk,knd->nd", p, jacobian) for k in range(2)]
    return sum(torch.einsum("n,ni,nj->ij", p[:, k], scores[k], scores[k]) for k in range(2)) / len(x)


@pytest.mark.parametrize("form", list(RIGHT))
def test_the_result_is_that_of_plain_autograd(model: nn.Module, form: str) -> None:
    jacobian, fisher = truth_of(model), fisher_of(model)
    kernel = torch.einsum("knd,lmd->knlm", jacobian, jacobian)
    assert torch.allclose(tl.Jacobian(model, RIGHT[form]()).data, jacobian, atol=1e-12)
    assert torch.allclose(tl.NTK(model, RIGHT[form]()).data, kernel, atol=1e-12)
    assert torch.allclose(tl.FIM(model, RIGHT[form]()).to_dense(), fisher, atol=1e-12)
    implicit = tl.FIM(model, RIGHT[form](), tl.PMatImplicit)
    assert implicit.examples == 6 and torch.allclose(implicit.to_dense(), fisher, atol=1e-12)


WITH_TARGETS = [form for form in RIGHT if form not in {*WITHOUT_TARGETS, "one-hot targets"}]


@pytest.mark.parametrize("form", WITH_TARGETS)
def test_gradients_of_the_loss_are_those_of_plain_autograd(model: nn.Module, form: str) -> None:
    losses = nn.functional.cross_entropy(model(X), Y, reduction="none")
    grads = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    truth = torch.stack([torch.cat([g.flatten() for g in one]) for one in grads])
    assert torch.allclose(tl.per_example_grads(model, RIGHT[form]()).flat, truth, atol=1e-12)
    assert torch.allclose(tl.FIM_Empirical(model, RIGHT[form]()).to_dense(), truth.T @ truth / 6, atol=1e-12)


def test_one_hot_targets_are_refused_where_classes_are_needed(model: nn.Module) -> None:
    with pytest.raises(InputError, match=r"y.argmax\(-1\) in place of one-hot labels"):
        tl.per_example_grads(model, RIGHT["one-hot targets"]())


@pytest.mark.parametrize("form", sorted(WITHOUT_TARGETS))
def test_data_without_targets_are_refused_where_these_are_needed(model: nn.Module, form: str) -> None:
    with pytest.raises(InputError, match="This needs targets"):
        tl.per_example_grads(model, RIGHT[form]())


@pytest.mark.parametrize("form", list(REFUSED))
def test_what_cannot_be_read_is_refused_in_words(model: nn.Module, form: str) -> None:
    make, message = REFUSED[form]
    for factory in (tl.FIM, tl.NTK, tl.Jacobian, tl.Hessian, tl.per_example_grads):
        with pytest.raises(InputError, match=message):
            factory(model, make())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor | PackedSequence) -> Tensor:
        if isinstance(x, PackedSequence):
            hidden, lengths = pad_packed_sequence(self.rnn(x)[0], batch_first=True)
            return self.head(hidden[torch.arange(len(lengths)), lengths - 1])
        return self.head(self.rnn(x)[0][:, -1])


def test_packed_sequences_are_the_input_and_not_a_tuple() -> None:
    torch.manual_seed(0)
    model, x = Recurrent().double(), torch.randn(4, 5, 3, dtype=torch.float64)
    lengths = [5, 3, 3, 2]
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    truth = torch.cat([tl.Jacobian(model, x[n : n + 1, :length]).data for n, length in enumerate(lengths)], 1)
    for data in (packed, (packed, Y[:4]), [(packed, Y[:4])]):
        assert torch.allclose(tl.Jacobian(model, data).data, truth, atol=1e-12)


def test_a_sparse_matrix_beside_the_inputs_is_left_whole() -> None:
    """A graph with a sparse adjacency matrix, one node is one example only where the matrix is diagonal."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor, scales: Tensor) -> Tensor:
            return torch.sparse.mm(scales, self.head(x).tanh())

    model, scales = Scaled().double(), torch.diag(torch.linspace(1, 2, 6, dtype=torch.float64))
    sparse = tl.NTK(model, {"x": X, "scales": scales.to_sparse()})
    dense = tl.NTK(model, (X, scales), forward=lambda net, b: b[1].diagonal()[:, None] * net.head(b[0]).tanh())
    assert torch.allclose(sparse.data, dense.data, atol=1e-12)


def test_a_mapping_stays_one_whatever_its_keys_are_called() -> None:
    class Scored(Network):
        def forward(self, inputs: Tensor, bonus: Tensor) -> Tensor:
            return self.layers(inputs) + bonus

    model, batch = Scored().double(), Encoding(inputs=X, bonus=torch.ones(6, 1), targets=Y)
    assert tl.NTK(model, batch).examples == 6
    assert torch.allclose(tl.per_example_grads(model, batch).flat, tl.per_example_grads(model, dict(batch)).flat)


def test_an_opaque_batch_is_taken_by_a_forward_of_ones_own(model: nn.Module) -> None:
    data = [Plain(X[:2], Y[:2]), Plain(X[2:], Y[2:])]
    found = tl.NTK(model, data, forward=lambda net, batch: net(batch.x))
    assert torch.allclose(found.data, tl.NTK(model, X).data)


def test_arrays_are_taken_by_a_forward_of_ones_own(model: nn.Module) -> None:
    pair = (X.numpy(), np.zeros(6))
    found = tl.NTK(model, pair, forward=lambda net, batch: net(torch.from_numpy(batch[0])))
    assert torch.allclose(found.data, tl.NTK(model, X).data)

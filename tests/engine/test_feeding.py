"""From a batch to the model: moved to its device, passed by name, and refused in words where names or types do not fit."""

from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import tangentlab as tl
from tangentlab.engine.batches import parts_of
from tangentlab.engine.feeding import beside, moved
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.losses import like_outputs, per_example
from tangentlab.engine.network import Network
from tangentlab.errors import InputError

Pair = namedtuple("Pair", "inputs labels")
X, Y = torch.randn(4, 3), torch.arange(4) % 2
META = torch.device("meta")


class Encoding(UserDict):
    """A mapping that knows how to move, as tokenizers give it."""

    def to(self, device: torch.device) -> "Encoding":
        return Encoding({key: value.to(device) for key, value in self.items()})


def on_meta(model: nn.Module) -> Network:
    """A model on a device without values: what is to be seen is where its inputs go."""
    return Network(model.to(META), LayerCollection.from_model(model))


@pytest.mark.parametrize("batch", [X, (X, Y), [X, Y], Pair(X, Y)], ids=["tensor", "tuple", "list", "named"])
def test_batches_go_where_the_model_is(batch: Any) -> None:
    assert on_meta(nn.Linear(3, 2))(batch).device == META


@pytest.mark.parametrize(
    "batch", [{"input": X, "labels": Y}, UserDict(input=X), Encoding(input=X)], ids=lambda b: type(b).__name__
)
def test_mappings_go_where_the_model_is(batch: Any) -> None:
    assert on_meta(nn.Linear(3, 2))(batch).device == META


def test_forward_and_function_are_given_the_batch_where_the_model_is() -> None:
    seen: list[Any] = []

    def forward(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch)
        return model(batch["x"])

    def function(output: Tensor, batch: Any) -> Tensor:
        seen.append(batch)
        return output

    model = nn.Linear(3, 2).to(META)
    network = Network(model, LayerCollection.from_model(model), forward, function)
    network({"x": X, "more": [X, "text"]})
    for batch in seen:
        assert batch["x"].device == batch["more"][0].device == META and batch["more"][1] == "text"


@dataclass(frozen=True)
class Sample:
    x: Tensor
    name: str


class Graph:
    """Holds its tensors out of sight, and moves itself, not a copy, as graphs do."""

    def __init__(self, x: Tensor) -> None:
        self._store = x

    def to(self, device: torch.device) -> "Graph":
        self._store = self._store.to(device)
        return self


def test_tensors_move_however_deep_they_lie_and_the_batch_stays_as_it_is() -> None:
    batch = Encoding(x=Encoding(a=[Sample(X, "one"), (X, {"b": Pair(X, "text")})]), y=MappingProxyType({"c": X}))
    there = moved(batch, META)
    assert isinstance(there, Encoding) and isinstance(there["x"], Encoding)
    sample, (second, third) = there["x"]["a"]
    assert isinstance(sample, Sample) and sample.x.device == META and sample.name == "one"
    assert second.device == third["b"].inputs.device == there["y"]["c"].device == META
    assert third["b"].labels == "text" and isinstance(third["b"], Pair)
    assert all(part.device == X.device for part in parts_of(batch)) and len(parts_of(batch)) == 4


def test_objects_that_move_themselves_are_copied_first() -> None:
    graph, model = Graph(X), nn.Linear(3, 2)
    assert beside(model, graph) is graph
    there = beside(model.to(META), graph)
    assert there._store.device == META and graph._store.device == X.device
    network = Network(model, LayerCollection.from_model(model), lambda net, g: net(g._store))
    assert network(graph).device == META


def test_encodings_that_move_themselves_stay_where_they_were() -> None:
    class InPlace(UserDict):
        def to(self, device: torch.device) -> "InPlace":
            raise AssertionError("moves the user's own batch")

    batch = InPlace(input=X)
    assert on_meta(nn.Linear(3, 2))(batch).device == META and batch["input"] is X


def test_a_batch_that_need_not_move_is_passed_on_as_it_is() -> None:
    for batch in ({"x": X}, (X, Y), Encoding(x=X), "text"):
        assert beside(nn.Linear(3, 2), batch) is batch


def test_a_model_on_several_devices_is_given_the_batch_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 2).to(META), nn.Linear(2, 2))
    assert beside(model, (X, Y))[0] is X
    assert beside(nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2).to(META)), X) is X
    assert beside(nn.Flatten(), X) is X


def test_targets_and_packed_sequences_move_too() -> None:
    assert moved(pack_sequence([X[:3], X[:1]]), META).data.device == META
    assert moved((pack_sequence([X]), Y), META)[0].data.device == META
    assert like_outputs(X[None], X.to(META)).device == META
    losses = per_example(lambda f, y: (f - y).square(), X.to(META), (X, X))
    assert losses.device == META and losses.shape == (4,)


class Named(nn.Module):
    """Takes tokens by name; the mask is optional."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(tokens if mask is None else tokens * mask)


class Sequence2Sequence(Named):
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(source + target)


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (Named, {"input_ids": X}, "The batch has 'input_ids', and Named takes 'tokens', 'mask' .*missing a required"),
        (Named, {"tokens": X, "masc": X, "labels": Y}, "'tokens', 'masc', 'labels', and Named takes .*unexpected"),
        (Named, {"mask": X}, "missing a required argument: 'tokens'"),
        (Sequence2Sequence, {"source": X, "target": X}, "'target' is kept back as the target"),
        (lambda: nn.DataParallel(Named()), {"ids": X}, "and Named takes 'tokens', 'mask'"),
    ],
    ids=["other", "misspelt", "missing", "target", "wrapped"],
)
@pytest.mark.parametrize("factory", [tl.FIM, tl.NTK, tl.Jacobian, tl.coverage, tl.check], ids=lambda f: f.__name__)
def test_wrong_keys_are_told_with_those_that_the_model_takes(
    factory: Any, model: Any, batch: Any, message: str
) -> None:
    with pytest.raises(InputError, match=f"{message}.*pass forward="):
        factory(model(), batch)


def test_errors_of_a_forward_with_the_right_names_reach_the_user() -> None:
    class Broken(Named):
        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            raise TypeError("unsupported kind of attention")

    with pytest.raises(TypeError, match="^unsupported kind of attention$"):
        tl.FIM(Broken(), {"tokens": X})


def recurrent() -> nn.Module:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0][:, -1]

    return Recurrent()


TYPES: dict[str, tuple[Any, Tensor, str]] = {
    "double to linear": (
        lambda: nn.Linear(3, 2),
        X.double(),
        r"torch.float32 .* torch.float64 .*x.to\(torch.float32\)",
    ),
    "single to double": (
        lambda: nn.Linear(3, 2).double(),
        X,
        r"torch.float64 .*torch.float32 .*model.to\(torch.float32\)",
    ),
    "double to convolution": (lambda: nn.Conv1d(1, 2, 2), X[:, None].double(), "torch.float32 .* torch.float64"),
    "double to recurrent": (recurrent, X[:, None].double(), "torch.float32 .* torch.float64"),
    "double to norm": (lambda: nn.LayerNorm(3), X.double(), "torch.float32 .* torch.float64"),
    "half": (lambda: nn.Linear(3, 2), X.half(), "torch.float32 .* torch.float16"),
    "bfloat16": (lambda: nn.Linear(3, 2), X.bfloat16(), "torch.float32 .* torch.bfloat16"),
    "integers to linear": (lambda: nn.Linear(3, 2), X.long(), r"torch.float32 .* torch.int64 .*x.to\(torch.float32\)"),
    "integers to convolution": (lambda: nn.Conv1d(1, 2, 2), X[:, None].long(), "torch.float32 .* torch.int64"),
    "bytes to convolution": (lambda: nn.Conv1d(1, 2, 2), X[:, None].byte(), "torch.float32 .* torch.uint8"),
    "truth values": (lambda: nn.Linear(3, 2), X > 0, "torch.float32 .* torch.bool"),
    "complex": (lambda: nn.Linear(3, 2), X.to(torch.complex64), "torch.float32 .* torch.complex64"),
    "real indices": (lambda: nn.Embedding(5, 2), X.abs(), r"torch.float32 .*indices.*x.long\(\)"),
}


@pytest.mark.parametrize("name", list(TYPES))
@pytest.mark.parametrize("how", ["tensor", "tuple", "dict", "forward"])
def test_inputs_of_another_type_are_refused_with_both_types_and_the_way_out(name: str, how: str) -> None:
    build, x, message = TYPES[name]
    model, options = build(), {}
    batch: Any = {"tensor": x, "tuple": (x, Y), "dict": {next(iter(_arguments(model))): x}, "forward": x}[how]
    if how == "forward":
        options["forward"] = lambda net, b: net(b)
    with pytest.raises(InputError, match=f"The model has parameters of {message}"):
        tl.NTK(model, batch, **options)


def _arguments(model: nn.Module) -> list[str]:
    import inspect

    return list(inspect.signature(model.forward).parameters)


def test_errors_that_speak_of_other_types_reach_the_user() -> None:
    class Fixed(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.head, self.kind = nn.Linear(3, 2), dtype

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.to(self.kind))

    with pytest.raises(RuntimeError, match="^mat1 and mat2 must have the same dtype"):
        tl.FIM(Fixed(torch.float64), X)


@pytest.mark.parametrize(
    "factory", [tl.FIM_Empirical, tl.GGN, tl.Hessian, tl.per_example_grads], ids=lambda f: f.__name__
)
def test_real_labels_of_classes_are_refused_with_the_way_out(factory: Any) -> None:
    with pytest.raises(
        InputError, match=r"must be integers of shape \(4,\).*torch.float32 of shape \(4,\).*'regression'"
    ):
        factory(nn.Linear(3, 2), (X, Y.float()))

"""From loaders, tensors, tuples and dicts to batches: what counts as one, in which order, and what is refused."""

import random
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tangentlab import (
    FIM,
    GGN,
    NTK,
    FIM_Empirical,
    GradientCovariance,
    Hessian,
    Jacobian,
    PMatEKFAC,
    PMatImplicit,
    per_example_grads,
)
from tangentlab.data import Dataset
from tangentlab.engine.batches import Batches, common_length, take_examples, targets_of
from tangentlab.engine.feeding import call_model
from tangentlab.engine.snapshot import RandomState
from tangentlab.errors import InputError

DATA = TensorDataset(torch.arange(6.0)[:, None], torch.arange(6))
DIGITS = Dataset(torch.randn(6, 2), torch.arange(6) % 3, "noise")
Pair = namedtuple("Pair", "inputs labels")


def test_one_tensor_tuple_namedtuple_or_dict_is_one_batch() -> None:
    x, y = torch.randn(3, 2), torch.arange(3)
    for batch in (x, (x, y), (x,), Pair(x, y), ((x, x), y), {"x": x, "labels": y}, UserDict(x=x)):
        assert len(list(Batches(batch))) == 1
        assert list(Batches(iter([batch, batch, batch])))[1] is batch


def test_iterators_are_kept_so_that_several_passes_see_the_same() -> None:
    batches = Batches(torch.full((2, 1), float(i)) for i in range(3))
    assert len(batches) == 3
    assert [float(b[0]) for b in batches] == [float(b[0]) for b in batches] == [0, 1, 2]


@pytest.mark.parametrize(
    "nothing", [[], iter([]), DataLoader(TensorDataset(torch.zeros(0, 2)))], ids=["list", "iterator", "loader"]
)
def test_an_empty_loader_is_refused_when_it_is_gone_through(nothing: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        list(Batches(nothing))


@pytest.mark.parametrize(("data", "message"), [(None, "No data"), (3, "Cannot take batches from a int")])
def test_what_is_no_data_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Batches(data)


def like(x: Tensor) -> Tensor:
    return torch.randn_like(x)


@pytest.mark.parametrize(
    "x",
    [torch.randn(6, 1), torch.randn(6), torch.randn(4, 2, 3), torch.arange(5)],
    ids=lambda x: "x".join(map(str, x.shape)),
)
@pytest.mark.parametrize("count", [2, 3])
def test_a_list_of_tensors_of_one_shape_and_type_is_refused_with_both_spellings(x: Tensor, count: int) -> None:
    with pytest.raises(InputError, match=r"\(x, y\).*\[\(a,\), \(b,\)\]"):
        Batches([x.clone() for _ in range(count)])
    assert len(Batches(tuple(x.clone() for _ in range(count)))) == 1
    assert len(Batches([(x.clone(),) for _ in range(count)])) == count


@pytest.mark.parametrize(
    "parts",
    [
        [torch.randn(6, 2), torch.arange(6)],
        [torch.randn(6, 3), torch.randn(6, 1)],
        [torch.randn(6, 1), torch.randn(6, 1, dtype=torch.float64)],
        [torch.randn(6, 3), torch.randn(6, 1), torch.randn(6, 1)],
        [torch.randn(6, 3)],
    ],
    ids=["classes", "another width", "another type", "with weights", "inputs only"],
)
def test_any_other_list_of_tensors_is_one_batch_as_a_loader_yields_it(parts: list[Tensor]) -> None:
    (batch,) = Batches(parts)
    assert batch is parts
    (loaded,) = DataLoader(TensorDataset(*parts), 6)
    assert type(loaded) is list
    model = nn.Sequential(nn.Linear(parts[0].shape[1], 2))
    assert torch.equal(FIM(model, loaded).to_dense(), FIM(model, tuple(parts)).to_dense())


def test_a_list_of_tuples_lists_or_dicts_is_a_list_of_batches() -> None:
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    for batch in ((x, y), [x, y], {"x": x}, UserDict(x=x), Pair(x, y)):
        assert len(list(Batches([batch, batch]))) == 2
        assert list(Batches([batch])) == [batch]


@pytest.mark.parametrize("rest", [["a", "b"], {"boxes": torch.ones(3)}, (torch.ones(3),), 3.0, None], ids=str)
def test_a_list_of_a_tensor_and_something_else_is_refused_with_both_spellings(rest: Any) -> None:
    for data in ([torch.randn(3, 2), rest], [rest, torch.randn(3, 2)]):
        with pytest.raises(InputError, match="beside other things may be one batch or several"):
            Batches(data)
    assert len(Batches((torch.randn(3, 2), rest))) == 1


def test_pieces_of_one_set_of_inputs_are_not_taken_for_inputs_and_targets() -> None:
    x, model = torch.randn(7, 2), nn.Linear(2, 3)
    for data in (x.split(4), list(x.split(4)), list(DataLoader(x, 4)), iter([x.split(4)])):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"4 examples and 3: write several batches as a list of tuples"):
            FIM(model, data)
    whole = FIM(model, x).to_dense()
    for data in (DataLoader(x, 4), iter(x.split(4)), [(part,) for part in x.split(4)]):  # type: ignore[arg-type]
        assert torch.allclose(FIM(model, data).to_dense(), whole, atol=1e-6)


def test_scalar_regression_and_auto_encoders_are_not_read_as_twice_the_inputs() -> None:
    x, model = torch.randn(6, 2), nn.Linear(2, 2)
    (batch,) = DataLoader(TensorDataset(x, like(x)), 6)
    for factory in (FIM, FIM_Empirical, NTK, Jacobian, per_example_grads, Hessian, GGN, GradientCovariance):
        with pytest.raises(InputError, match=r"may be one batch or several"):
            factory(model, batch)
    assert FIM(model, tuple(batch), likelihood="regression").examples == 6


@pytest.mark.parametrize("size", [2, 4], ids=["equal", "uneven"])
def test_a_shuffling_loader_of_plain_tensors_is_kept_in_one_order(size: int) -> None:
    x, model = torch.randn(6, 2, dtype=torch.float64), nn.Linear(2, 3).double()
    loader = DataLoader(x, size, shuffle=True)  # type: ignore[arg-type]
    fixed = Batches(loader).replayable()
    assert torch.equal(torch.cat(list(fixed)), torch.cat(list(fixed)))
    assert torch.allclose(FIM(model, loader).to_dense(), FIM(model, x).to_dense())
    with pytest.raises(InputError, match=r"\[\(x,\) for x in loader\] where it yields tensors"):
        NTK(model, loader)
    assert NTK(model, [(part,) for part in loader]).examples == 6


def test_batches_of_batches_are_the_same_batches() -> None:
    x = torch.randn(3, 2)
    assert len(Batches(Batches((x, x)))) == 1
    assert [part is x for batch in Batches(Batches((x, x))) for part in batch] == [True, True]
    assert [float(batch[0]) for batch in Batches(Batches(torch.full((1,), float(i)) for i in range(3)))] == [0, 1, 2]
    with pytest.raises(InputError, match="shuffles"):
        Batches(Batches(DataLoader(DATA, 2, shuffle=True)), ordered=True)


class Shuffling(Sampler):
    """A sampler of one's own, which draws from one of the random generators."""

    def __init__(self, permutation: Callable[[], list[int]]) -> None:
        self.permutation = permutation

    def __iter__(self) -> Iterator[int]:
        return iter(self.permutation())

    def __len__(self) -> int:
        return 6


class Pairs(Shuffling):
    """The same for whole batches."""

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        order = self.permutation()
        return iter([order[:3], order[3:]])


OWN_GENERATOR = torch.Generator().manual_seed(5)
DRAWS: dict[str, Callable[[], list[int]]] = {
    "of torch": lambda: torch.randperm(6).tolist(),
    "of python": lambda: random.sample(range(6), 6),
    "of numpy": lambda: np.random.permutation(6).tolist(),
    "of a generator": lambda: torch.randperm(6, generator=OWN_GENERATOR).tolist(),
}


@pytest.mark.parametrize("kind", [Shuffling, Pairs], ids=["examples", "batches"])
@pytest.mark.parametrize("draw", list(DRAWS))
def test_a_sampler_of_ones_own_that_shuffles_is_noticed(kind: type[Shuffling], draw: str) -> None:
    options = (
        {"sampler": kind(DRAWS[draw]), "batch_size": 2} if kind is Shuffling else {"batch_sampler": kind(DRAWS[draw])}
    )
    loader = DataLoader(DATA, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="this DataLoader shuffles"):
        Batches(loader, ordered=True)
    fixed = Batches(loader).replayable()
    assert [b[1].tolist() for b in fixed] == [b[1].tolist() for b in fixed]


@pytest.mark.parametrize("kind", [Shuffling, Pairs], ids=["examples", "batches"])
def test_a_sampler_of_ones_own_with_a_fixed_order_is_used_as_it_is(kind: type[Shuffling]) -> None:
    sampler = kind(lambda: [5, 4, 3, 2, 1, 0])
    loader = DataLoader(DATA, 3, sampler=sampler) if kind is Shuffling else DataLoader(DATA, batch_sampler=sampler)  # type: ignore[arg-type]
    batches = Batches(loader, ordered=True)
    assert batches.replayable() is batches
    assert [b[1].tolist() for b in batches] == [[5, 4, 3], [2, 1, 0]]


def shuffling_loaders() -> dict[str, DataLoader]:
    weights = WeightedRandomSampler([1.0] * 6, 6)
    return {
        "shuffle": DataLoader(DATA, 2, shuffle=True),
        "subset": DataLoader(DATA, 2, sampler=SubsetRandomSampler(range(6))),
        "weighted": DataLoader(DATA, 2, sampler=weights),
        "batches": DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, False)),
        "distributed": DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 1, 0, shuffle=True)),
    }


@pytest.mark.parametrize("name", list(shuffling_loaders()))
def test_a_shuffling_loader_is_refused_where_order_matters_and_fixed_where_it_does_not(name: str) -> None:
    loader = shuffling_loaders()[name]
    with pytest.raises(InputError, match=r"use shuffle=False, or fix one order by list\(loader\)"):
        Batches(loader, ordered=True)
    fixed = Batches(loader).replayable()
    assert [b[1].tolist() for b in fixed] == [b[1].tolist() for b in fixed]
    assert len(list(Batches(list(loader), ordered=True))) == 3


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 2),
        DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 2, False)),
        DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 1, 0, shuffle=False)),
        DataLoader(DATA, 2, sampler=[4, 2, 0]),
    ],
    ids=["sequential", "batches", "distributed", "own order"],
)
def test_a_loader_with_a_fixed_order_is_used_as_it_is(loader: DataLoader) -> None:
    batches = Batches(loader, ordered=True)
    assert batches.replayable() is batches
    assert len(batches) == len(loader)


class Noisy(TensorDataset):
    """Draws from torch's global generator for every example, as augmentations do."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return (self.tensors[0][index] + torch.rand(1),)


def test_going_through_a_loader_leaves_the_random_stream_of_the_caller_alone() -> None:
    torch.manual_seed(3)
    loader = DataLoader(Noisy(torch.zeros(6, 1)), 2)
    state, seen = torch.get_rng_state(), []
    for batch in Batches(loader):
        seen.append(batch[0])
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.cat(seen).unique().numel() == 6
    assert torch.equal(torch.get_rng_state(), state)


class Augmented(TensorDataset):
    """Draws from all generators for every example."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return (
            self.tensors[0][index] + torch.rand(1) + random.random() + float(np.random.rand()),
            self.tensors[1][index],
        )


CALLS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "dense": lambda model, data: FIM(model, data),
    "two passes": lambda model, data: FIM(model, data, PMatEKFAC),
    "products": lambda model, data: FIM(model, data, PMatImplicit).trace(),
    "gradients": per_example_grads,
    "hessian": Hessian,
}


@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("form", ["shuffling", "sequential", "iterator", "augmented"])
def test_no_call_on_a_loader_advances_a_random_generator(call: str, form: str) -> None:
    data = Augmented(torch.randn(6, 3), torch.arange(6) % 2)
    plain, model = TensorDataset(*data.tensors), nn.Linear(3, 2)
    loader: Any = {
        "shuffling": lambda: DataLoader(plain, 2, shuffle=call != "gradients"),
        "sequential": lambda: DataLoader(plain, 2),
        "iterator": lambda: iter(DataLoader(plain, 2, shuffle=True)),
        "augmented": lambda: DataLoader(data, 2),
    }[form]()
    states = RandomState.now()
    CALLS[call](model, loader)
    assert not states.drawn()


def test_every_pass_sees_the_same_augmentations() -> None:
    batches = Batches(DataLoader(Augmented(torch.zeros(6, 1), torch.zeros(6)), 2))
    assert all(torch.equal(one[0], two[0]) for one, two in zip(batches, batches, strict=True))


def test_what_the_consumer_draws_between_batches_stays_drawn() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    drawn = [float(torch.rand(1)) for _ in Batches(DataLoader(DATA, 2))]
    assert drawn == expected


def test_leaving_a_loader_early_or_by_an_exception_leaves_the_random_stream_alone() -> None:
    def broken() -> Iterator[Tensor]:
        yield torch.rand(2, 1)
        torch.rand(5)
        raise OSError("disk")

    class Stream:
        def __iter__(self) -> Iterator[Tensor]:
            return broken()

    state = torch.get_rng_state()
    next(iter(Batches(DataLoader(DATA, 2, shuffle=True))))
    with pytest.raises(OSError, match="disk"):
        list(Batches(Stream()))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_default_forward_feeds_inputs_and_leaves_targets_out() -> None:
    seen: list[Any] = []

    class Model(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> int:
            seen.append((args, kwargs))
            return 0

    x, y = torch.randn(2, 3), torch.arange(2)
    for batch in (x, (x, y), [x, y], Pair(x, y)):
        call_model(Model(), batch)
        assert seen.pop() == ((x,), {})
    call_model(Model(), {"input_ids": x, "mask": y, "labels": y})
    assert set(seen.pop()[1]) == {"input_ids", "mask"}
    with pytest.raises(InputError, match="pass forward="):
        call_model(Model(), "text")


def test_targets_are_the_second_entry_or_the_labels() -> None:
    x, y = torch.randn(2, 3), torch.arange(2)
    for batch in ((x, y), [x, y], {"x": x, "labels": y}, {"x": x, "targets": y}):
        assert targets_of(batch) is y
    for batch in (x, (x,), {"x": x}):
        with pytest.raises(InputError, match="needs targets"):
            targets_of(batch)


def test_examples_are_taken_from_every_tensor_of_a_batch() -> None:
    batch = {"x": torch.arange(4), "more": [torch.arange(8).reshape(4, 2), torch.tensor(7)], "name": "text"}
    taken = take_examples(batch, [2, 0])
    assert taken["x"].tolist() == [2, 0]
    assert taken["more"][0].tolist() == [[4, 5], [0, 1]]
    assert int(taken["more"][1]) == 7
    assert taken["name"] == "text"


def test_the_length_of_a_batch_is_that_of_all_its_tensors() -> None:
    batch = UserDict(x=torch.arange(4), more=[torch.ones(4, 2), torch.tensor(7)], name="text")
    assert common_length(batch) == 4
    assert common_length({**batch, "mask": torch.ones(5)}) is None
    assert common_length("text") is None


def test_inputs_and_targets_in_one_object_are_one_batch() -> None:
    (batch,) = Batches(DIGITS)
    assert batch is DIGITS and len(Batches([DIGITS, DIGITS])) == 2
    model = nn.Linear(2, 3)
    assert torch.equal(call_model(model, DIGITS), model(DIGITS.inputs))
    assert targets_of(DIGITS) is DIGITS.targets and common_length(DIGITS) == 6
    inputs, targets = take_examples(DIGITS, [4, 1])
    assert torch.equal(inputs, DIGITS.inputs[[4, 1]]) and targets.tolist() == [1, 1]
    pair = tuple(DIGITS)
    assert torch.equal(FIM(model, DIGITS).to_dense(), FIM(model, pair).to_dense())
    assert torch.equal(FIM_Empirical(model, DIGITS).to_dense(), FIM_Empirical(model, pair).to_dense())


def test_a_torch_dataset_is_sent_to_a_loader() -> None:
    with pytest.raises(InputError, match=r"TensorDataset: wrap it, as in DataLoader\(data"):
        Batches(DATA)

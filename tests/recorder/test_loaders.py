"""Probes from the loaders and datasets of a training, which go on as if nobody had read them."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tangentlab.errors import InputError
from tangentlab.recorder import TangentRecorder
from tests.recorder.trainings import STEADY, convolutional, digits_like


class Noisy(Dataset):
    """Images with noise from Python, numpy and torch, and from generators of its own."""

    def __init__(self) -> None:
        self.images, self.labels = digits_like(20)
        self.draw = random.Random(1)
        self.source = np.random.default_rng(2)
        self.old_source = np.random.RandomState(3)
        self.generator = torch.Generator().manual_seed(4)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + self.draw.random() + self.source.random() + self.old_source.rand()
        noise = noise + torch.rand(1) + torch.rand(1, generator=self.generator)
        return self.images[index] + noise, self.labels[index]


def shuffled_by_a_generator():
    return DataLoader(TensorDataset(*digits_like(20)), 5, shuffle=True, generator=torch.Generator().manual_seed(5))


class Batched:
    """A batch sampler with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)

    def __iter__(self):
        yield from torch.randperm(20, generator=self.generator).split(5)

    def __len__(self) -> int:
        return 4


def of_a_batch_sampler():
    return DataLoader(TensorDataset(*digits_like(20)), batch_sampler=Batched())


def with_persistent_workers():
    return DataLoader(Noisy(), 5, shuffle=True, num_workers=1, persistent_workers=True)


def of_a_noisy_part():
    return DataLoader(Subset(Noisy(), range(18)), 5, shuffle=True)


def batches_seen(make, recorded: bool, epochs: int = 2):
    """What a training sees that makes a recorder with its loader as a probe before each epoch."""
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    loader, model, seen = make(), convolutional(), []
    for _ in range(epochs):
        if recorded:
            TangentRecorder(model, {"train": loader}, size=(8, 2), **STEADY)
        seen += [batch for images, labels in loader for batch in (images, labels)]
    return [*seen, torch.rand(1), torch.tensor([random.random(), np.random.rand()])]


@pytest.mark.parametrize(
    "make", [shuffled_by_a_generator, of_a_batch_sampler, of_a_noisy_part, with_persistent_workers]
)
def test_a_loader_that_is_a_probe_gives_the_training_the_same_batches(make):
    pairs = list(zip(batches_seen(make, False), batches_seen(make, True), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)


def test_persistent_workers_stay_those_of_the_training():
    loader = with_persistent_workers()
    TangentRecorder(convolutional(), {"train": loader}, size=(8, 2), **STEADY)
    assert loader._iterator is None
    next(iter(loader))
    workers = loader._iterator
    TangentRecorder(convolutional(), {"train": loader}, size=(8, 2), **STEADY)
    assert loader._iterator is workers


def test_the_loader_is_left_alone_also_when_reading_it_fails():
    class Broken(Noisy):
        def __getitem__(self, index):
            super().__getitem__(index)
            raise LookupError("no such file")

    data = Broken()
    state, place = data.generator.get_state(), random.getstate()
    with pytest.raises(LookupError):
        TangentRecorder(convolutional(), {"train": DataLoader(data, 5)}, **STEADY)
    assert torch.equal(data.generator.get_state(), state) and random.getstate() == place


def test_examples_of_a_dataset_are_drawn_by_chance_and_no_others_are_read():
    x, y = digits_like(90)
    order, asked = y.argsort(), []

    class Counting(TensorDataset):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    recorder = TangentRecorder(convolutional(), {"train": Counting(x[order], y[order])}, size=(30, 3), **STEADY)
    recorder.start()
    probe = recorder._observer.probes["train"]
    assert probe.examples == len(asked) == 30 and len(probe.labels.unique()) == 3
    assert "train/cka" in recorder.snapshots[0]["values"]


def test_a_loader_of_a_single_batch_is_that_batch():
    loader = DataLoader(TensorDataset(*digits_like(12)), batch_size=12)
    recorder = TangentRecorder(convolutional(), {"train": loader}, **STEADY)
    recorder.start()
    assert {"train/cka", "train/hessian_trace"} <= recorder.snapshots[0]["values"].keys()


def arrays():
    x, y = digits_like(12)
    return x.numpy(), y.numpy()


@pytest.mark.parametrize("data", [arrays(), arrays()[0], {"x": arrays()[0]}, [arrays(), arrays()], iter([arrays()])])
def test_arrays_of_numpy_are_refused_with_the_way_out(data):
    with pytest.raises(InputError, match=r"'train'.*from_numpy"):
        TangentRecorder(convolutional(), {"train": data}, **STEADY)


def test_batches_that_cannot_be_put_together_are_refused():
    x, _ = digits_like(12)
    with pytest.raises(InputError, match="fit together"):
        TangentRecorder(convolutional(), {"train": [{"x": x, "name": "a"}, {"x": x, "name": "b"}]}, **STEADY)

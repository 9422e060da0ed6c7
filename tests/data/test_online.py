"""Fetching into the cache, against a local fake of ``fetch_openml``."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tangentlab.data.images as images_module
from tangentlab.data import load
from tangentlab.data.images import ImageSet
from tangentlab.data.online import OnlineSource
from tangentlab.errors import DataFileError
from tangentlab.files import write_atomically


@pytest.fixture(autouse=True)
def small_sets_and_an_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)
    monkeypatch.delenv("TANGENTLAB_OFFLINE", raising=False)
    for name, shape, folders, source in (
        ("mnist", (1, 28, 28), ("mnist",), OnlineSource("mnist_784", 6, 8, 784)),
        ("cifar10", (3, 32, 32), ("cifar10",), OnlineSource("CIFAR_10", 10, 12, 3072)),
    ):
        monkeypatch.setitem(images_module.IMAGE_SETS, name, ImageSet(shape, source.train, 2, folders, source))


class FakeOpenML:
    """Answers like ``fetch_openml`` with whole-number pixels and string labels, and counts the calls."""

    def __init__(self, count: int, features: int, **broken: Any) -> None:
        rng = np.random.default_rng(0)
        self.data = rng.integers(0, 256, (count, features)).astype(np.float64)
        self.target = np.array([str(k % 10) for k in range(count)], dtype=object)
        self.calls: list[str] = []
        for key, value in broken.items():
            setattr(self, key, value)

    def __call__(self, name: str, **options: Any) -> SimpleNamespace:
        assert options["as_frame"] is False and options["cache"] is False
        self.calls.append(name)
        return SimpleNamespace(data=self.data, target=self.target)


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())


def test_mnist_is_fetched_once_then_read_from_the_cache(tmp_path: Path):
    fake = FakeOpenML(8, 784)
    train, test = load("mnist", fetcher=fake), load("mnist", "test", fetcher=fake)
    assert fake.calls == ["mnist_784"]
    assert np.allclose(train.inputs.reshape(6, -1).numpy() * 255, fake.data[:6])
    assert test.targets.tolist() == [6, 7]


def test_cifar_is_stored_in_its_own_batches(tmp_path: Path):
    fake = FakeOpenML(12, 3072)
    train = load("cifar10", fetcher=fake)
    assert cached(tmp_path) == [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    assert np.allclose(train.inputs.reshape(10, -1).numpy() * 255, fake.data[:10])


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"data": np.zeros((7, 784))}, "shape"),
        ({"data": np.full((8, 784), 256.0)}, "pixels"),
        ({"data": np.full((8, 784), np.nan)}, "pixels"),
        ({"data": np.full((8, 784), 0.5)}, "pixels"),
        ({"target": np.full(8, "11", dtype=object)}, "labels"),
        ({"target": np.full(8, "cat", dtype=object)}, "labels"),
    ],
)
def test_a_wrong_answer_is_an_error_and_stores_nothing(tmp_path: Path, broken: dict[str, Any], complaint: str):
    with pytest.raises(DataFileError, match=complaint):
        load("mnist", fetcher=FakeOpenML(8, 784, **broken))
    assert cached(tmp_path) == []


def test_a_network_failure_says_where_it_looked_and_how_to_get_the_data(tmp_path: Path):
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    with pytest.raises(DataFileError, match=r"(?s)cache.*no route to host.*To get it"):
        load("mnist", fetcher=unreachable)


def test_a_download_that_dies_while_writing_leaves_nothing_that_counts_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full_disk(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        with pytest.raises(OSError, match="no space left"):
            load("mnist", fetcher=FakeOpenML(8, 784))
    assert cached(tmp_path) == []
    fake = FakeOpenML(8, 784)
    load("mnist", fetcher=fake)
    assert fake.calls == ["mnist_784"]


def test_a_leftover_of_a_killed_download_is_not_read(tmp_path: Path):
    folder = tmp_path / "tangentlab" / "data" / "mnist"
    folder.mkdir(parents=True)
    (folder / ".train-images-idx3-ubyte.gz.x1.part").write_bytes(b"half")
    fake = FakeOpenML(8, 784)
    assert len(load("mnist", fetcher=fake)) == 6 and fake.calls


def test_atomic_writing_replaces_the_whole_file(tmp_path: Path):
    target = tmp_path / "file"
    target.write_bytes(b"old and longer")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1


def test_nothing_is_fetched_when_switched_off(monkeypatch: pytest.MonkeyPatch):
    fake = FakeOpenML(8, 784)
    with pytest.raises(DataFileError, match="switched off"):
        load("mnist", fetcher=fake, download=False)
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")
    with pytest.raises(DataFileError, match="switched off"):
        load("mnist", fetcher=fake)
    assert fake.calls == []

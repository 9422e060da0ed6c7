"""The image sets read from canonical files: the right pixels, or an error that helps."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tangentlab.data import IMAGE_SETS, load, stand_in
from tangentlab.data.formats import cifar_bytes, idx_bytes, read_cifar, read_idx
from tangentlab.errors import DataFileError, InputError


@pytest.fixture(autouse=True)
def no_other_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's cache nor the network may answer for a file of these tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")
    monkeypatch.delenv("TANGENTLAB_DATA", raising=False)


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    """A folder with five MNIST-like images, half of the files compressed."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx_bytes(images))
        plain = gzip.decompress(idx_bytes(np.arange(5, dtype=np.uint8)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(plain)
    return folder


def test_digits_are_embedded_and_the_two_splits_share_no_image():
    train, test = load("digits"), load("digits", "test")
    assert (train.inputs.shape, test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert train.inputs.min() == 0 and train.inputs.max() == 1
    assert torch.cdist(test.inputs.flatten(1), train.inputs.flatten(1)).min() > 0
    assert torch.equal(load("digits").inputs, train.inputs)


def test_idx_files_are_read_plain_and_compressed_with_their_pixels(small_mnist: Path):
    data = load("mnist", path=small_mnist)
    raw = gzip.decompress((small_mnist / "train-images-idx3-ubyte.gz").read_bytes())
    assert data.inputs.shape == (5, 1, 28, 28)
    assert data.inputs[1, 0, 0, 3].item() == pytest.approx(raw[16 + 784 + 3] / 255)
    assert data.targets.tolist() == [0, 1, 2, 3, 4]


def test_a_data_set_with_fewer_images_than_the_original_says_so(small_mnist: Path):
    assert load("mnist", path=small_mnist).note == "5 of the 60,000 train images"


def test_the_explicit_path_wins_over_the_environment_and_that_over_the_cache(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def copy(root: Path, label: int) -> Path:
        folder = root / "mnist"
        folder.mkdir(parents=True)
        (folder / "train-images-idx3-ubyte.gz").write_bytes(idx_bytes(np.zeros((1, 28, 28), np.uint8)))
        (folder / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(np.array([label], np.uint8)))
        return root

    copy(tmp_path / "cache" / "tangentlab" / "data", 3)
    assert load("mnist").targets.tolist() == [3]
    monkeypatch.setenv("TANGENTLAB_DATA", str(copy(tmp_path / "environment", 2)))
    assert load("mnist").targets.tolist() == [2]
    assert load("mnist", path=copy(tmp_path / "explicit", 1)).targets.tolist() == [1]


def test_files_of_two_folders_are_never_mixed(small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "cache" / "tangentlab" / "data" / "mnist"
    other.mkdir(parents=True)
    (small_mnist / "train-labels-idx1-ubyte").rename(other / "train-labels-idx1-ubyte")
    monkeypatch.setenv("TANGENTLAB_DATA", str(small_mnist.parent))
    with pytest.raises(DataFileError, match="train-labels"):
        load("mnist")


def test_a_missing_file_error_says_where_it_looked_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TANGENTLAB_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataFileError) as caught:
        load("kmnist")
    message = str(caught.value)
    places = (str(tmp_path / "nowhere"), "does not exist", str(tmp_path / "cache"))
    for part in (*places, "TANGENTLAB_DATA", "To get it"):
        assert part in message
    assert "train-images-idx3-ubyte" in message


def test_an_explicit_path_without_the_files_is_an_error_even_when_the_environment_has_them(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TANGENTLAB_DATA", str(small_mnist.parent))
    assert len(load("mnist")) == 5
    with pytest.raises(DataFileError, match="explicit path"):
        load("mnist", path=tmp_path / "empty")


@pytest.mark.parametrize("keep", [0, 3, 15, 16, 1000, -1])
def test_a_truncated_idx_file_is_an_error_at_every_length(small_mnist: Path, keep: int):
    file = small_mnist / "train-images-idx3-ubyte.gz"
    whole = gzip.decompress(file.read_bytes())
    file.write_bytes(whole[:keep])
    with pytest.raises(DataFileError, match=r"train-images.*(shorter|truncated)"):
        load("mnist", path=small_mnist)


@pytest.mark.parametrize("keep", [5, 100, -4])
def test_a_truncated_gzip_stream_is_an_error(small_mnist: Path, keep: int):
    file = small_mnist / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataFileError, match="corrupt or cut short"):
        load("mnist", path=small_mnist)


def test_flipped_bytes_inside_a_gzip_stream_are_an_error(small_mnist: Path):
    file = small_mnist / "train-images-idx3-ubyte.gz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(DataFileError, match=str(file)):
        load("mnist", path=small_mnist)


def test_a_wrong_magic_number_is_named(small_mnist: Path):
    labels = small_mnist / "train-labels-idx1-ubyte"
    (small_mnist / "train-images-idx3-ubyte.gz").write_bytes(labels.read_bytes() + bytes(100))
    with pytest.raises(DataFileError, match="magic number is 0x00000801.*0x00000803"):
        load("mnist", path=small_mnist)


def test_a_header_with_absurd_sizes_is_an_error_and_not_an_allocation(tmp_path: Path):
    file = tmp_path / "huge"
    file.write_bytes(struct.pack(">4I", 0x803, 2**31, 2**31, 2**31) + bytes(10))
    with pytest.raises(DataFileError, match="announces"):
        read_idx(file, 0x803)


def test_different_numbers_of_images_and_labels_are_an_error(small_mnist: Path):
    (small_mnist / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(idx_bytes(np.zeros(4, np.uint8))))
    with pytest.raises(DataFileError, match="5 images but .* 4 labels"):
        load("mnist", path=small_mnist)


def test_a_label_outside_the_classes_is_an_error(small_mnist: Path):
    (small_mnist / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(idx_bytes(np.full(5, 10, np.uint8))))
    with pytest.raises(DataFileError, match="label 10"):
        load("mnist", path=small_mnist)


def test_cifar_records_keep_planes_and_labels(tmp_path: Path):
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8), np.array([7, 0, 9], np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(cifar_bytes(images, labels))
    read_images, read_labels = read_cifar(tmp_path / "data_batch_1.bin")
    assert (read_images == images).all() and (read_labels == labels).all()
    data = load("cifar10", path=tmp_path)
    assert data.inputs[2, 1, 4, 5].item() == pytest.approx(images[2, 1, 4, 5] / 255)


def test_a_cifar_batch_cut_inside_a_record_is_an_error(tmp_path: Path):
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(DataFileError, match="whole number of 3073-byte"):
        load("cifar10", path=tmp_path)


def test_cifar_training_batches_after_a_gap_are_not_used(tmp_path: Path):
    for k in (1, 3):
        (tmp_path / f"data_batch_{k}.bin").write_bytes(bytes(3073 * k))
    assert len(load("cifar10", path=tmp_path)) == 1


def test_an_unknown_name_or_split_is_an_error_with_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    with pytest.raises(InputError, match="'train' or 'test'"):
        load("digits", "validation")


def test_stand_in_noise_has_the_shape_of_the_data_and_is_marked():
    data = stand_in("cifar10", "test", count=7)
    assert data.inputs.shape == (7, 3, 32, 32) and data.stand_in and "noise" in data.note
    assert len(stand_in("digits")) == IMAGE_SETS["digits"].train


def test_real_mnist_has_its_known_counts_and_mean(shared_data: Path):
    train, test = load("mnist", path=shared_data), load("mnist", "test", path=shared_data)
    assert (len(train), len(test), train.note) == (60000, 10000, "")
    assert train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.inputs.mean().item() == pytest.approx(0.1307, abs=1e-4)


def test_real_kmnist_has_only_its_test_images(shared_data: Path):
    test = load("kmnist", "test", path=shared_data)
    assert len(test) == 10000 and test.targets.bincount().tolist() == [1000] * 10
    with pytest.raises(DataFileError, match="kmnist"):
        load("kmnist", path=shared_data)


def test_real_cifar_has_its_known_counts_and_means(shared_data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TANGENTLAB_DATA", str(shared_data))
    train, test = load("cifar10"), load("cifar10", "test")
    assert (len(train), len(test), train.note) == (50000, 10000, "")
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    assert train.inputs.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)

"""TinyImageNet from its folders: the right pixels and labels, or an error that helps."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tangentlab.data import load, stand_in
from tangentlab.errors import DataFileError

CLASSES = ("n02", "n01", "n03")


def save(path: Path, color: tuple[int, int, int], mode: str = "RGB", size: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.full((size, size, 3), color, dtype=np.uint8)).convert(mode)
    picture.save(path, format="JPEG", quality=100, subsampling=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two training images per class, one of them grey, and one validation image of the last class."""
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TANGENTLAB_DATA", str(tmp_path))
    root = tmp_path / "tiny-imagenet-200"
    root.mkdir()
    (root / "wnids.txt").write_text("\n".join(CLASSES) + "\n")
    for number, name in enumerate(CLASSES):
        save(root / "train" / name / "images" / f"{name}_0.JPEG", (200, 60 * number, 30))
        save(root / "train" / name / "images" / f"{name}_1.JPEG", (90, 90, 90), "L")
    save(root / "val" / "images" / "val_0.JPEG", (10, 20, 250))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t62\t62\n")
    return root


def test_images_and_labels_come_in_the_order_of_the_list_of_classes(folder: Path):
    train = load("tiny-imagenet")
    assert train.inputs.shape == (6, 3, 64, 64) and train.classes == 200
    assert train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    for number in range(3):
        expected = (200, 60 * number, 30)
        assert (255 * train.inputs[2 * number, :, 5, 7]).tolist() == pytest.approx(expected, abs=3)
    assert (255 * train.inputs[1, :, 0, 0]).tolist() == pytest.approx((90, 90, 90), abs=2)
    assert train.note == "6 of the 100,000 train images"


def test_the_test_split_is_the_validation_split_with_its_own_table_of_labels(folder: Path):
    test = load("tiny-imagenet", "test")
    assert test.targets.tolist() == [2] and (255 * test.inputs[0, :, 9, 9]).tolist() == pytest.approx(
        (10, 20, 250), abs=3
    )


@pytest.mark.parametrize(
    ("damage", "split", "complaint"),
    [
        (lambda root: (root / "val" / "images" / "val_0.JPEG").write_bytes(b"no image"), "test", "as an image"),
        (lambda root: (root / "val" / "images" / "val_0.JPEG").unlink(), "test", "as an image"),
        (lambda root: save(root / "train" / "n01" / "images" / "x.JPEG", (1, 1, 1), size=32), "train", "is 32 x 32"),
        (lambda root: (root / "val" / "val_annotations.txt").write_text("a.JPEG\tn9\n"), "test", "'n9'"),
        (lambda root: (root / "wnids.txt").write_text("\n"), "train", "is empty"),
        (lambda root: (root / "wnids.txt").write_text("n77\n"), "train", "no JPEG files of class n77"),
    ],
)
def test_a_damaged_copy_is_an_error_that_names_the_file(folder: Path, damage, split: str, complaint: str):
    damage(folder)
    with pytest.raises(DataFileError, match=complaint):
        load("tiny-imagenet", split)


def test_an_absent_copy_is_an_error_that_says_where_it_looked(folder: Path):
    (folder / "wnids.txt").unlink()
    with pytest.raises(DataFileError, match="(?s)wnids.txt.*tiny-imagenet-200.*not possible for this data set"):
        load("tiny-imagenet")


def test_its_stand_in_has_two_hundred_classes_and_fits_into_a_gigabyte():
    data = stand_in("tiny-imagenet", count=1000)
    assert data.inputs.shape == (1000, 3, 64, 64) and data.classes == 200 and int(data.targets.max()) > 150
    assert len(stand_in("tiny-imagenet")) * 3 * 64 * 64 * 4 <= 2**30

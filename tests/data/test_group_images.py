"""CelebA and Waterbirds from files in their own formats: the right pixels, labels and cues, or an error that helps."""

import builtins
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tangentlab.data import group_images
from tangentlab.errors import DataFileError, InputError

ATTRIBUTES = ("Bald", "Blond_Hair", "Eyeglasses", "Male", "Young")
PEOPLE = {  # file: split, blond, male, colour
    "000001.jpg": (0, 1, -1, (200, 10, 10)),
    "000002.jpg": (0, -1, 1, (10, 200, 10)),
    "000003.jpg": (0, 1, 1, (10, 10, 200)),
    "000004.jpg": (1, -1, -1, (90, 90, 90)),
    "000005.jpg": (2, -1, -1, (250, 250, 0)),
}
BIRDS = {  # file: y, place, split
    "001.Albatross/A_1.jpg": (1, 1, 0),
    "001.Albatross/A_2.jpg": (1, 0, 0),
    "002.Sparrow/S_1.jpg": (0, 0, 1),
    "002.Sparrow/S_2.jpg": (0, 1, 2),
}


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, format="JPEG", quality=100, subsampling=0)


def write_celeba(folder: Path) -> None:
    """Portraits of 178 x 218 with black bars above and below the square in the middle."""
    folder.mkdir(parents=True)
    lines = [str(len(PEOPLE)), " ".join(ATTRIBUTES)]
    for name, (_, blond, male, color) in PEOPLE.items():
        lines.append(f"{name} -1 {blond:2d}  1 {male:2d}  1")
        portrait = np.zeros((218, 178, 3))
        portrait[20:198] = color
        save(folder / "img_align_celeba" / name, portrait)
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("".join(f"{name} {row[0]}\n" for name, row in PEOPLE.items()))


def write_waterbirds(folder: Path) -> None:
    """Pictures that are red on the left half and blue on the right one."""
    table = ["img_id,img_filename,y,split,place,place_filename"]
    for number, (name, (label, place, split)) in enumerate(BIRDS.items(), 1):
        table.append(f"{number},{name},{label},{split},{place},/o/ocean/00001.jpg")
        picture = np.zeros((60, 100, 3))
        picture[:, :50, 0], picture[:, 50:, 2] = 240, 240
        save(folder / name, picture)
    (folder / "metadata.csv").write_text("\n".join(table) + "\n")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TANGENTLAB_DATA", str(tmp_path))


def test_celeba_is_blond_or_not_with_being_a_woman_as_the_cue(tmp_path: Path):
    write_celeba(tmp_path / "celeba")
    train = group_images("celeba")
    assert train.labels.tolist() == [1, 0, 1] and train.cue.tolist() == [1, 0, 0]
    assert [file.name for file in train.files] == ["000001.jpg", "000002.jpg", "000003.jpg"]
    valid, test = group_images("celeba", "valid"), group_images("celeba", "test")
    assert valid.labels.tolist() == [0] and valid.cue.tolist() == [1] and test.files[0].name == "000005.jpg"


def test_celebas_images_are_the_squares_in_the_middle_as_bytes(tmp_path: Path):
    write_celeba(tmp_path / "celeba")
    seen: list[str] = []

    def track(files):
        for file in files:
            seen.append(file.name)
            yield file

    data = group_images("celeba").take(torch.tensor([2, 0])).decoded(32, track)
    assert data.inputs.shape == (2, 3, 32, 32) and data.inputs.dtype == torch.uint8
    assert data.targets.tolist() == [1, 1] and seen == ["000003.jpg", "000001.jpg"]
    for image, color in zip(data.inputs, ((10, 10, 200), (200, 10, 10))):
        expected = torch.tensor(color).reshape(3, 1, 1).expand(3, 30, 30)
        assert (image[:, 1:-1, 1:-1].int() - expected).abs().max() <= 4


def test_waterbirds_labels_places_and_splits_come_from_the_table(tmp_path: Path):
    write_waterbirds(tmp_path / "waterbirds" / "waterbird_complete95_forest2water2")
    train, valid, test = (group_images("waterbirds", split) for split in ("train", "valid", "test"))
    assert train.labels.tolist() == [1, 1] and train.cue.tolist() == [1, 0]
    assert valid.labels.tolist() == [0] and valid.cue.tolist() == [0]
    assert test.labels.tolist() == [0] and test.cue.tolist() == [1]
    image = test.decoded(28).inputs[0].int()
    assert image.shape == (3, 28, 28) and (image[0, :, :11] > 200).all() and (image[2, :, 17:] > 200).all()
    assert (image[2, :, :11] < 40).all(), "the whole width is squeezed into the square, so that the middle stays there"


def test_an_explicit_folder_is_the_only_place(tmp_path: Path):
    write_waterbirds(tmp_path / "elsewhere")
    assert len(group_images("waterbirds", path=tmp_path / "elsewhere")) == 2
    with pytest.raises(DataFileError, match=r"waterbirds: no file metadata.csv"):
        group_images("waterbirds")


def test_absent_files_are_refused_with_the_folder_to_make_and_no_promise_to_fetch_them(tmp_path: Path):
    with pytest.raises(DataFileError, match="put the data set's canonical files into a folder 'celeba'") as caught:
        group_images("celeba")
    assert "list_attr_celeba.txt" in str(caught.value) and "fetched" not in str(caught.value)


def edit(name: str, old: str, new: str):
    def apply(root: Path) -> None:
        path = root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return apply


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (edit("list_attr_celeba.txt", "Blond_Hair", "Red_Hair"), "no attribute 'Blond_Hair'"),
        (edit("list_attr_celeba.txt", "5\n", "6\n"), "announces 6 images and lists 5"),
        (edit("list_attr_celeba.txt", "5\nBald", "Bald"), "does not start with the number"),
        (edit("list_attr_celeba.txt", "000002.jpg -1 -1", "000002.jpg -1 0"), "'000002.jpg' is not 5 times"),
        (edit("list_eval_partition.txt", "000003.jpg 0\n", ""), "which split '000003.jpg'"),
        (edit("list_eval_partition.txt", "000003.jpg 0", "000003.jpg"), "'' is not a split"),
        (edit("list_eval_partition.txt", "000003.jpg 0", "000003.jpg 7"), "'7' is not a split"),
        (lambda root: (root / "img_align_celeba" / "000001.jpg").unlink(), "cannot be read as an image"),
        (lambda root: (root / "img_align_celeba" / "000001.jpg").write_bytes(b"no"), "cannot be read as an image"),
    ],
)
def test_files_that_are_not_celebas_are_refused(tmp_path: Path, damage, complaint: str):
    write_celeba(tmp_path / "celeba")
    damage(tmp_path / "celeba")
    with pytest.raises(DataFileError, match=complaint):
        group_images("celeba").decoded(8)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (edit("metadata.csv", "place,", "spot,"), "no column place"),
        (edit("metadata.csv", "A_1.jpg,1,0", "A_1.jpg,2,0"), "not 0 or 1"),
        (edit("metadata.csv", "A_1.jpg,1,0", "A_1.jpg,1,train"), "'train' is not a split"),
    ],
)
def test_a_table_that_is_not_waterbirds_is_refused(tmp_path: Path, damage, complaint: str):
    write_waterbirds(tmp_path / "waterbirds")
    damage(tmp_path / "waterbirds")
    with pytest.raises(DataFileError, match=complaint):
        group_images("waterbirds")


def test_unknown_names_and_splits_are_refused(tmp_path: Path):
    write_waterbirds(tmp_path / "waterbirds")
    with pytest.raises(InputError, match="known: celeba, waterbirds"):
        group_images("waterbird")
    with pytest.raises(InputError, match="train, valid, test"):
        group_images("waterbirds", "val")
    edit("metadata.csv", "S_2.jpg,0,2", "S_2.jpg,0,1")(tmp_path / "waterbirds")
    with pytest.raises(DataFileError, match="no image of the split 'test'"):
        group_images("waterbirds", "test")


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_waterbirds(tmp_path / "waterbirds")
    birds = group_images("waterbirds")
    plain = builtins.__import__

    def no_pillow(name, *arguments, **options):
        if name == "PIL" or name.startswith("PIL."):
            raise ImportError("No module named 'PIL'")
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_pillow)
    with pytest.raises(DataFileError, match="pip install pillow"):
        birds.decoded(8)


def test_compressed_tables_are_read_and_all_that_is_needed_is_named(tmp_path: Path):
    with pytest.raises(DataFileError, match=r"no file list_attr_celeba\.txt and list_eval_partition\.txt"):
        group_images("celeba", path=tmp_path)
    write_celeba(tmp_path / "celeba")
    plain = group_images("celeba", path=tmp_path)
    for name in ("list_attr_celeba.txt", "list_eval_partition.txt"):
        table = tmp_path / "celeba" / name
        table.with_name(f"{name}.gz").write_bytes(gzip.compress(table.read_bytes()))
        table.unlink()
    found = group_images("celeba", path=tmp_path)
    assert found.files == plain.files and torch.equal(found.labels, plain.labels)

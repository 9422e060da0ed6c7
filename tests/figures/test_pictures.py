"""Pictures on disk: a new drawing replaces the earlier one and nothing else."""

import pytest
from matplotlib.figure import Figure

from tangentlab.errors import InputError
from tangentlab.experiments import Picture
from tangentlab.figures.pictures import read_pictures, save_pictures


def save(folder, *names):
    save_pictures(folder, lambda: [Picture(name, Figure(), f"About {name}.") for name in names])


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore::tangentlab.figures.pictures.StyleWarning")
def test_earlier_pictures_go_away_and_other_files_stay(tmp_path):
    mine = {"recording.jsonl", "checkpoint.pt", "photo.png", "deep/drawing.svg"}
    (tmp_path / "deep").mkdir()
    for name in mine:
        (tmp_path / name).write_text(name)
    save(tmp_path, "one", "two")
    assert files(tmp_path) == mine | {"one.svg", "one.png", "two.svg", "two.png", "index.json"}
    (tmp_path / "one.png").unlink()
    save(tmp_path, "two", "three")
    assert files(tmp_path) == mine | {"two.svg", "two.png", "three.svg", "three.png", "index.json"}
    assert all((tmp_path / name).read_text() == name for name in mine)
    assert [picture["name"] for picture in read_pictures(tmp_path)] == ["two", "three"]


@pytest.mark.filterwarnings("ignore::tangentlab.figures.pictures.StyleWarning")
def test_names_in_an_index_do_not_reach_outside_the_folder(tmp_path):
    (tmp_path / "out.svg").write_text("mine")
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "index.json").write_text('[{"name": "../out", "caption": ""}]')
    save(folder, "one")
    assert (tmp_path / "out.svg").read_text() == "mine"


@pytest.mark.parametrize("text", ['{"files": []}', "[1, 2]", "not JSON", '[{"title": "a"}]'])
def test_an_index_of_something_else_is_not_overwritten(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(InputError, match="another folder"):
        save(tmp_path, "one")
    assert files(tmp_path) == {"index.json"} and (tmp_path / "index.json").read_text() == text

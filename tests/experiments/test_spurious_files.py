"""The experiments of figure 5.3 on the user's own files: they read them, refuse their absence, and say when they are noise."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tangentlab.bench.results import Results
from tangentlab.errors import InputError, MemoryBudgetError
from tangentlab.experiments import Status, find
from tangentlab.experiments.lazy import spurious_files
from tangentlab.experiments.lazy._cue_race import balanced_rows
from tangentlab.models import ResNet18

SMALL = {"source": "files", "per_group": 3, "images": 40, "pixels": 16}


def save(path: Path, brightness: int, tint: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((24, 20, 3), brightness)
    pixels[..., 2] = tint
    Image.fromarray(pixels.astype(np.uint8)).save(path, format="JPEG", quality=95)


def write_celeba(folder: Path, counts: dict[str, int]) -> None:
    """Bright where blond, blue where a woman; 2 of 3 women and 1 of 3 men are blond."""
    people = [(split, number % 3 != 1, number % 2) for split, n in counts.items() for number in range(n)]
    table, partition = [str(len(people)), "Blond_Hair Male"], []
    for number, (split, woman, even) in enumerate(people):
        name, blond = f"{number:06d}.jpg", bool(even) if number % 5 else woman
        table.append(f"{name} {1 if blond else -1} {-1 if woman else 1}")
        partition.append(f"{name} {split}")
        save(folder / "img_align_celeba" / name, 200 if blond else 60, 220 if woman else 20)
    (folder / "list_attr_celeba.txt").write_text("\n".join(table) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(partition) + "\n")


def write_waterbirds(folder: Path) -> None:
    rows = ["img_id,img_filename,y,split,place,place_filename"]
    for number in range(48):
        bird, split = number % 2, (0, 2)[number % 4 > 1]
        place = bird if number % 12 > 3 else 1 - bird
        rows.append(f"{number},birds/{number}.jpg,{bird},{split},{place},/l/lake/1.jpg")
        save(folder / "birds" / f"{number}.jpg", 200 if bird else 60, 220 if place else 20)
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TANGENTLAB_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_celeba_is_trained_on_from_files_and_watched_on_balanced_groups(bench, data: Path):
    write_celeba(data / "celeba", {"0": 60, "2": 40})
    outcome = bench("spurious-celeba", **SMALL)
    assert not outcome.failures and outcome.complete
    results = Results(outcome.folder)
    assert results.stand_ins() == []
    used = {row["split"]: row["examples"] for row in results.table("data").rows}
    assert used == {"train": 40, "test": 12}
    row = results.table("along").rows[0]
    assert row["test with"] == pytest.approx((row["test label 0, cue 0"] + row["test label 1, cue 1"]) / 2)
    assert row["test balanced"] == pytest.approx((row["test with"] + row["test without"]) / 2)


def test_waterbirds_starts_from_the_users_weights(bench, data: Path):
    write_waterbirds(data / "waterbirds")
    (data / "weights").mkdir()
    torch.manual_seed(5)
    weights = ResNet18(1000, stem="imagenet").state_dict()
    torch.save(weights, data / "weights" / "resnet18.pth")
    lab = SimpleNamespace(max_steps=None, seeded=lambda *names: nullcontext())
    model = find("spurious-waterbirds").at("paper").network(lab)
    assert torch.equal(model.layer4[1].conv2.weight, weights["layer4.1.conv2.weight"])
    assert model.fc.out_features == 2 and not any(module.training for module in model.modules())
    outcome = bench("spurious-waterbirds", **SMALL, updates=1)
    assert not outcome.failures and outcome.complete and Results(outcome.folder).stand_ins() == []


@pytest.mark.parametrize("name", ["spurious-celeba", "spurious-waterbirds"])
def test_absent_files_are_refused_with_the_way_out(bench, data: Path, name: str):
    (message,) = bench(name, **SMALL).failures.values()
    assert "put the data set's canonical files into a folder" in message and "TANGENTLAB_DATA" in message


def test_absent_weights_are_refused_with_the_way_to_make_them(bench, data: Path):
    write_waterbirds(data / "waterbirds")
    (message,) = bench("spurious-waterbirds", **SMALL).failures.values()
    assert "resnet18-f37072fd.pth" in message and "torchvision" in message


@pytest.mark.parametrize(("fitted", "judged"), [(0.9, False), (0.97, True)])
def test_ends_are_compared_only_where_all_trainings_came_to_one(fitted: float, judged: bool):
    measured, left = {}, {}
    lab = SimpleNamespace(measure=measured.__setitem__, not_tested=left.__setitem__)
    ends = ((fitted, 0.7), (1.0, 0.74), (0.99, 0.73))
    runs = [[{"train balanced": 0.5, "test balanced": 0.5}, {"train balanced": a, "test balanced": b}] for a, b in ends]
    find("spurious-waterbirds").at("smoke").judge_ends(lab, *runs)
    advantage = {"5.3-waterbirds-advantage": pytest.approx(0.01)}
    if judged:
        assert measured == {"5.3-waterbirds-end": pytest.approx(0.04)} | advantage and not left
    else:
        assert measured == advantage and "0.90 of the training images" in left["5.3-waterbirds-end"]
        assert "0.040" in left["5.3-waterbirds-end"]


def test_noise_is_marked_and_no_claim_is_judged_on_it(bench, data: Path):
    outcome = bench("spurious-celeba", scale="desk", max_steps=1, pixels=16, base=2)
    assert not outcome.failures and Results(outcome.folder).stand_ins() == ["celeba"]
    assert {verdict.status for verdict in outcome.verdicts} == {Status.NOT_TESTED}


def test_images_that_do_not_fit_are_refused_before_any_is_decoded(data: Path, monkeypatch: pytest.MonkeyPatch):
    experiment = find("spurious-celeba").at("paper")
    assert experiment.needed_bytes() == (20_000 + 1_440) * 3 * 224 * 224
    monkeypatch.setattr("tangentlab.engine.memory.memory_budget", lambda: 10**9)

    with pytest.raises(MemoryBudgetError, match="celeba, 20,000 images of 224 x 224 pixels, needs 3.23 GB"):
        experiment.run(SimpleNamespace(max_steps=None))


def test_bytes_become_imagenets_standardized_floats():
    x = torch.tensor([0, 128, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert spurious_files.FromBytes()(x).flatten().tolist() == pytest.approx(expected, rel=1e-5)


def test_balanced_rows_are_as_many_of_each_group_and_their_places_name_them():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1, 0, 1])
    cue = torch.tensor([0, 1, 0, 1, 0, 1, 1, 1, 0, 0])
    rows, groups = balanced_rows(labels, cue, 5, torch.Generator().manual_seed(0))
    assert len(rows) == 8 and len(rows.unique()) == 8, "the smallest group has two"
    for label in (0, 1):
        for value in (0, 1):
            members = rows[groups.rows[f"label {label}, cue {value}"]]
            assert (labels[members] == label).all() and (cue[members] == value).all()
    with pytest.raises(InputError, match="label 1, cue 1"):
        balanced_rows(labels, torch.where(labels == 1, 0, cue), 5, torch.Generator())

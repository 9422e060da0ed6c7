"""Difficulty groups: C-scores read and estimated, label noise, spurious cues, balanced subsets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.data import Dataset, label_noise, load, only_classes
from tangentlab.errors import DataFileError, InputError, NumericsError
from tangentlab.linearized.consistency import ConsistencyProfile, ConsistencyRecipe, consistency_scores, read_c_scores
from tangentlab.linearized.example_groups import Groups, cue_groups, noise_groups, score_groups, with_and_without
from tangentlab.linearized.spurious import add_corner_patch
from tangentlab.models import MLP, LeNet5


def c_score_file(folder: Path, scores, labels, **more) -> Path:
    path = folder / "cifar10-cscores-orig-order.npz"
    np.savez(path, scores=scores, labels=labels, **more)
    return path


def test_scores_are_read_for_the_first_rows_or_for_the_rows_asked_for(tmp_path):
    scores, labels = np.linspace(0, 1, 8), np.arange(8) % 3
    path = c_score_file(tmp_path, scores, labels)
    assert read_c_scores(path, torch.from_numpy(labels[:5])).tolist() == pytest.approx(scores[:5].tolist())
    rows = torch.tensor([7, 2])
    assert read_c_scores(path, torch.from_numpy(labels)[rows], rows=rows).tolist() == pytest.approx([1.0, 2 / 7])


def test_scores_of_other_images_are_refused(tmp_path):
    labels = np.arange(8) % 3
    path = c_score_file(tmp_path, np.linspace(0, 1, 8), labels)
    with pytest.raises(DataFileError, match="2 of 8 labels differ"):
        swapped = torch.from_numpy(labels).clone()
        swapped[[0, 1]] = swapped[[1, 0]]
        read_c_scores(path, swapped)
    with pytest.raises(DataFileError, match="8 rows"):
        read_c_scores(path, torch.zeros(9, dtype=torch.int64))
    with pytest.raises(DataFileError, match="8 rows"):
        read_c_scores(path, torch.zeros(1, dtype=torch.int64), rows=torch.tensor([8]))


def test_files_that_are_no_score_files_are_refused(tmp_path):
    labels = torch.zeros(2, dtype=torch.int64)
    (tmp_path / "text.npz").write_text("scores")
    np.savez(tmp_path / "other.npz", values=np.zeros(2))
    np.savez(tmp_path / "ragged.npz", scores=np.zeros(3), labels=np.zeros(2))
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    np.savez(tmp_path / "words.npz", scores=np.zeros(2), labels=np.array(["cat", "dog"]))
    np.savez(tmp_path / "nan.npz", scores=np.array([0.0, np.nan]), labels=np.zeros(2))
    for name, complaint in {
        "text": "cannot be read",
        "other": "has 'scores' and 'labels'",
        "ragged": "two finite",
        "nan": "two finite",
        "absent": "cannot be read",
        "empty": "cannot be read",
        "array": "cannot be read",
        "words": "cannot be read",
    }.items():
        with pytest.raises(DataFileError, match=complaint):
            read_c_scores(tmp_path / f"{name}.npz", labels)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_refused_or_read_rightly(tmp_path, save):
    labels, path = np.arange(300) % 10, tmp_path / "scores.npz"
    save(path, scores=np.linspace(0, 1, 300), labels=labels)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            found = read_c_scores(path, list(labels))
        except DataFileError:
            continue
        np.testing.assert_array_equal(found, np.linspace(0, 1, 300))
    path.write_bytes(whole)
    with pytest.raises(InputError, match="labels are"):
        read_c_scores(path, torch.from_numpy(labels)[:, None])


def planted(seed, n=200) -> tuple[Dataset, torch.Tensor]:
    """Two clean clusters, and some examples with the label of the other one."""
    generator = seed(1)
    labels = torch.randint(0, 2, (n,), generator=generator)
    inputs = 2.0 * (2 * labels[:, None] - 1) + 0.5 * torch.randn(n, 4, generator=generator)
    return label_noise(Dataset(inputs, labels, "planted", classes=2), 0.1, generator)


RECIPE = ConsistencyRecipe(networks=16, epochs=4, batch=20, rate=0.05)


def small() -> nn.Module:
    return nn.Linear(4, 2)


def test_wrong_labels_get_low_scores_and_clean_ones_high_scores(seed):
    data, noisy = planted(seed)
    found = consistency_scores(data, RECIPE, make_model=small)
    assert found.scores[noisy].max() < 0.2 and found.scores[~noisy].min() > 0.5 and found.scores[~noisy].mean() > 0.98
    assert found.profile.shape == found.held_out.shape == (2, 200)
    assert (found.held_out.mean(1) / 8).tolist() == pytest.approx([0.5, 0.3])
    assert (found.held_out[0] == 4).all() and found.held_out[1].min() >= 1
    assert (found.standard_errors > 0).all() and (found.standard_errors < 0.3).all()


def test_the_estimate_is_the_held_out_mean_of_its_networks(seed):
    """The definition, written down slowly: for every network and example, right or wrong if it was held out."""
    data, _ = planted(seed, 60)
    recipe = ConsistencyRecipe(networks=12, fractions=(0.5,), epochs=1, batch=10, rate=0.01, seed=3)
    seen: list[torch.Tensor] = []

    class Watched(nn.Linear):
        def forward(self, x):
            if self.training:
                seen[-1] = torch.cat([seen[-1], x])
            return super().forward(x)

    models: list[nn.Module] = []

    def make() -> nn.Module:
        seen.append(torch.zeros(0, 4))
        models.append(Watched(4, 2))
        return models[-1]

    found = consistency_scores(data, recipe, make_model=make)
    right, count = torch.zeros(60), torch.zeros(60)
    for model, inputs in zip(models, seen, strict=True):
        held_out = (data.inputs[:, None] != inputs[None]).any(2).all(1).float()
        right += held_out * (model(data.inputs).argmax(1) == data.targets).float()
        count += held_out
    torch.testing.assert_close(found.scores.float(), right / count)
    torch.testing.assert_close(found.held_out[0].float(), count)


def test_a_cached_estimate_is_found_again_and_never_for_other_data_or_settings(seed, tmp_path):
    data, _ = planted(seed, 40)
    calls = []

    def make() -> nn.Module:
        calls.append(1)
        return small()

    recipe = ConsistencyRecipe(networks=30, epochs=1, batch=10)
    first = consistency_scores(data, recipe, make_model=make, cache=tmp_path)
    trained = len(calls)
    again = consistency_scores(data, recipe, make_model=make, cache=tmp_path)
    assert len(calls) == trained + 1 and torch.equal(first.profile, again.profile)  # one more to name the file
    changed = Dataset(data.inputs + 1e-3, data.targets, "planted", classes=2)
    consistency_scores(changed, recipe, make_model=make, cache=tmp_path)
    consistency_scores(data, ConsistencyRecipe(networks=30, epochs=2, batch=10), make_model=make, cache=tmp_path)
    consistency_scores(data, recipe, make_model=lambda: nn.Linear(4, 3), cache=tmp_path)
    assert len(list(tmp_path.glob("consistency-*.npz"))) == 4


class Scaled(nn.Linear):
    """Its text and its weights do not tell its scale."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


def test_a_cached_estimate_is_not_that_of_another_forward_and_a_damaged_one_is_named(seed, tmp_path, monkeypatch):
    data, _ = planted(seed, 40)
    recipe = ConsistencyRecipe(networks=30, epochs=1, batch=10)
    consistency_scores(data, recipe, make_model=lambda: Scaled(4, 2), cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"damaged")
    with pytest.raises(DataFileError, match="delete it"):
        consistency_scores(data, recipe, make_model=lambda: Scaled(4, 2), cache=tmp_path)
    monkeypatch.setattr(Scaled, "scale", 0.0)
    consistency_scores(data, recipe, make_model=lambda: Scaled(4, 2), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_networks_that_diverged_have_no_scores(seed):
    data, _ = planted(seed, 40)
    recipe = ConsistencyRecipe(networks=4, fractions=(0.5,), epochs=4, batch=10, rate=1e15)
    with pytest.raises(NumericsError, match=r"rate=1e\+15"):
        consistency_scores(data, recipe, make_model=lambda: MLP((4, 8, 8, 2)))


def test_the_estimate_leaves_the_random_state_alone_and_repeats_itself(seed):
    data, _ = planted(seed, 40)
    recipe = ConsistencyRecipe(networks=30, epochs=1, batch=10)
    before = torch.get_rng_state()
    first = consistency_scores(data, recipe, make_model=small)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(first.profile, consistency_scores(data, recipe, make_model=small).profile)


def test_images_get_a_lenet(seed):
    data = load("digits").first(60)
    recipe = ConsistencyRecipe(networks=20, fractions=(0.5,), epochs=1)
    found = consistency_scores(data, recipe)
    lenet = consistency_scores(data, recipe, make_model=lambda: LeNet5(1, 8, 10))
    assert found.scores.shape == (60,) and torch.equal(found.profile, lenet.profile)
    assert found.profile.unique().numel() > 2  # not the same answer everywhere


def test_examples_that_nobody_held_out_are_an_error_and_impossible_recipes_are_refused(seed):
    data, _ = planted(seed, 50)
    built = []
    with pytest.raises(InputError, match="more networks"):
        consistency_scores(data, ConsistencyRecipe(networks=2, epochs=1, batch=10), make_model=lambda: built.append(1))
    assert not built
    with pytest.raises(InputError, match="too few"):
        consistency_scores(planted(seed, 1)[0], make_model=small)
    for options in ({"fractions": (1.0,)}, {"fractions": ()}, {"networks": 1}, {"epochs": 0}):
        with pytest.raises(InputError):
            ConsistencyRecipe(**options)


def test_standard_errors_shrink_with_the_number_of_networks():
    few, many = (ConsistencyProfile((0.5,), torch.full((1, 3), 0.5), torch.full((1, 3), float(n))) for n in (4, 64))
    assert (many.standard_errors < few.standard_errors / 3).all()


def test_deciles_of_a_score_are_of_equal_size_the_hardest_first(seed):
    scores = torch.rand(103, generator=seed(2))
    groups = score_groups(scores, 10)
    assert groups.names == [str(k) for k in range(1, 11)] and set(groups.sizes.values()) == {10, 11}
    means = list(groups.means(scores).values())
    assert means == sorted(means)
    for lower, upper in zip(groups.names, groups.names[1:], strict=False):
        assert scores[groups.rows[lower]].max() <= scores[groups.rows[upper]].min()
    with pytest.raises(InputError, match="finite scores"):
        score_groups(torch.tensor([1.0, float("nan")]), 1)


def test_noise_groups_split_by_the_mask(seed):
    data, mask = planted(seed, 50)
    groups = noise_groups(mask)
    assert groups.sizes == {"clean": 45, "noisy": 5}
    assert groups.means(mask.float()) == {"clean": 0.0, "noisy": 1.0}
    with pytest.raises(InputError, match="boolean"):
        noise_groups(data.targets)


def test_balanced_groups_are_equal_disjoint_and_say_when_one_is_too_small(seed):
    groups = Groups({"a": torch.arange(10), "b": torch.arange(10, 14)})
    even = groups.balanced(4, seed(3))
    assert even.sizes == {"a": 4, "b": 4} and set(even.rows["a"].tolist()) <= set(range(10))
    with pytest.raises(InputError, match="'b' has 4 examples, 5"):
        groups.balanced(5, seed(3))
    assert groups.balanced(5, seed(3), cap=True).sizes == {"a": 4, "b": 4}
    with pytest.raises(InputError, match="disjoint"):
        Groups({"a": torch.arange(3), "b": torch.arange(2, 5)})
    with pytest.raises(InputError, match="at least 1"):
        groups.balanced(-1, seed(3))
    with pytest.raises(InputError, match="'c' has 0 examples"):
        Groups({"a": torch.arange(3), "c": torch.arange(0)}).balanced(2, seed(3), cap=True)


def test_a_corner_patch_agrees_with_the_asked_share_of_each_class_and_touches_the_corner_only(seed):
    generator = seed(4)
    core = Dataset(torch.rand(400, 3, 16, 16, generator=generator), torch.arange(400) % 2, "core", classes=2)
    digits = only_classes(load("digits"), 0, 1)
    data, cue = add_corner_patch(core, digits, 0.95, generator, pixels=5)
    four = cue_groups(data.targets, cue)
    assert four.sizes == {"label 0, cue 0": 190, "label 0, cue 1": 10, "label 1, cue 0": 10, "label 1, cue 1": 190}
    assert with_and_without(four).sizes == {"with": 380, "without": 20}
    assert torch.equal(data.inputs[:, :, 5:], core.inputs[:, :, 5:])
    assert torch.equal(data.inputs[:, :, :, 5:], core.inputs[:, :, :, 5:])
    pooled = nn.functional.adaptive_avg_pool2d(digits.inputs, 5)
    for value in (0, 1):
        shown = data.inputs[cue == value][:, :1, :5, :5].flatten(1)
        own = pooled[digits.targets == value].flatten(1)
        assert (shown[:, None] == own[None]).all(2).any(1).all()
    assert torch.equal(data.inputs[:, 0, :5, :5], data.inputs[:, 2, :5, :5]) and "95%" in data.note
    with pytest.raises(InputError, match="binary"):
        add_corner_patch(core, load("digits"), 0.95, generator)
    with pytest.raises(InputError, match="Agreement"):
        add_corner_patch(core, digits, 1.5, generator)
    with pytest.raises(InputError, match="0 or 1"):
        cue_groups(torch.tensor([0, 2]), torch.tensor([0, 1]))

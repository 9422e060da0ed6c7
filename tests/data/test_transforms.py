"""Sizes, scales, subsets and label noise keep what they promise."""

import pytest
import torch
from torch import Generator

from tangentlab.data import (
    Dataset,
    balanced_subset,
    downscale,
    label_noise,
    load,
    only_classes,
    standardize,
    stratified_subset,
    subset,
)
from tangentlab.errors import InputError


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(pixels: int = 32, count: int = 20, channels: int = 3) -> Dataset:
    inputs = torch.rand(count, channels, pixels, pixels, generator=rng())
    return Dataset(inputs, torch.arange(count) % 4, "images", classes=4)


def test_downscaling_by_two_averages_blocks_of_four_pixels():
    data = images()
    small = downscale(data, 16).inputs
    assert torch.allclose(small[3, 1, 5, 7], data.inputs[3, 1, 10:12, 14:16].mean())


@pytest.mark.parametrize("pixels", [28, 32])
def test_downscaling_to_16_pixels_keeps_a_constant_image_constant(pixels: int):
    data = Dataset(torch.full((2, 1, pixels, pixels), 0.3), torch.zeros(2), "flat")
    assert torch.allclose(downscale(data, 16).inputs, torch.full((2, 1, 16, 16), 0.3))


def test_scaling_up_is_refused():
    with pytest.raises(InputError, match="down to 64"):
        downscale(images(), 64)


def test_standardizing_uses_the_training_statistics_for_every_part():
    train = images()
    test = Dataset(train.inputs + 1, train.targets, "shifted")
    a, b = standardize(train, test)
    assert torch.allclose(a.inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(a.inputs.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-5)
    assert torch.allclose(b.inputs - a.inputs, (1 / train.inputs.std((0, 2, 3), unbiased=False)).view(1, 3, 1, 1))


def test_a_constant_channel_stays_finite_when_standardized():
    (flat,) = standardize(Dataset(torch.ones(4, 1, 2, 2), torch.zeros(4), "flat"))
    assert flat.inputs.abs().max() == 0


def test_a_balanced_subset_has_equal_classes_and_no_example_twice():
    data = load("digits")
    part = balanced_subset(data, 20, rng())
    assert part.targets.bincount().tolist() == [20] * 10
    assert len(part.inputs.flatten(1).unique(dim=0)) == 200


def test_a_balanced_subset_larger_than_a_class_is_an_error():
    with pytest.raises(InputError, match="5 examples of class 0, 6 were asked"):
        balanced_subset(images(), 6, rng())


def test_subsets_repeat_with_the_seed_and_differ_between_seeds():
    data = load("digits")
    assert torch.equal(subset(data, 50, rng(1)).targets, subset(data, 50, rng(1)).targets)
    assert not torch.equal(subset(data, 50, rng(1)).targets, subset(data, 50, rng(2)).targets)


def test_selected_classes_are_relabelled_in_the_order_given():
    data = only_classes(images(), 3, 1)
    assert data.targets.tolist() == [1, 0] * 5 and data.classes == 2


@pytest.mark.parametrize("fraction", [0.0, 0.15, 0.5, 1.0])
def test_wrong_labels_change_exactly_the_asked_fraction(fraction: float):
    data = load("digits")
    noisy, mask = label_noise(data, fraction, rng())
    assert mask.sum() == round(fraction * len(data))
    assert torch.equal(noisy.targets != data.targets, mask)
    assert noisy.targets.unique().tolist() == list(range(10))


def test_wrong_labels_are_uniform_over_the_other_classes():
    data = Dataset(torch.zeros(9000, 1), torch.full((9000,), 4), "fours", classes=10)
    noisy, _ = label_noise(data, 1.0, rng())
    counts = noisy.targets.bincount(minlength=10)
    assert counts[4] == 0
    expected = 1000.0
    statistic = ((counts[counts > 0] - expected) ** 2 / expected).sum()
    assert statistic < 26.1  # the 99.9 % point of chi-square with 8 degrees of freedom


def test_random_labels_keep_one_in_ten_by_chance():
    data = Dataset(torch.zeros(10000, 1), torch.full((10000,), 4), "fours", classes=10)
    noisy, _ = label_noise(data, 1.0, rng(), kind="random")
    assert abs(int((noisy.targets == 4).sum()) - 1000) < 120  # four standard deviations


def test_label_noise_repeats_with_its_seed_and_leaves_the_original_alone():
    data = load("digits")
    before = data.targets.clone()
    first, _ = label_noise(data, 0.3, rng(5))
    again, _ = label_noise(data, 0.3, rng(5))
    assert torch.equal(first.targets, again.targets) and torch.equal(data.targets, before)
    assert "30% wrong labels" in first.note


def test_impossible_noise_is_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        label_noise(images(), 1.2, rng())
    with pytest.raises(InputError, match="'wrong' or 'random'"):
        label_noise(images(), 0.2, rng(), kind="strange")  # type: ignore[arg-type]


def test_inputs_and_targets_must_have_the_same_length():
    with pytest.raises(InputError, match="3 inputs but 2 targets"):
        Dataset(torch.zeros(3, 1), torch.zeros(2), "uneven")


def test_a_stratified_subset_has_the_shares_of_the_whole_and_contains_the_smaller_ones():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    data = Dataset(torch.arange(100.0)[:, None], labels, "toy", classes=3)
    parts = {count: stratified_subset(data, count, rng()) for count in (10, 33, 100)}
    assert torch.equal(parts[10].targets.bincount(), torch.tensor([6, 3, 1]))
    for count, part in parts.items():
        assert len(part) == len(part.inputs.unique()) == count
        assert ((part.targets.bincount() - count * torch.tensor([0.6, 0.3, 0.1])).abs() <= 1).all()
    ids = {count: set(part.inputs.flatten().tolist()) for count, part in parts.items()}
    assert ids[10] < ids[33] < ids[100]
    with pytest.raises(InputError, match="101 were asked for"):
        stratified_subset(data, 101, rng())
    many = Dataset(torch.zeros(1000, 1), torch.tensor([0] * 500 + [1 + k // 5 for k in range(500)]), "toy", classes=101)
    counts = stratified_subset(many, 195, rng()).targets.bincount(minlength=101)
    assert counts.sum() == 195 and abs(int(counts[0]) - 97.5) <= 3 and counts[1:].max() <= 2
    assert not torch.equal(stratified_subset(data, 10, torch.Generator().manual_seed(99)).inputs, parts[10].inputs)

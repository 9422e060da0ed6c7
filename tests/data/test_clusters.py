"""Clusters have the radius, the classes and the corruption that they promise."""

import pytest
import torch
from torch import Generator

from tangentlab.data import Clusters, label_noise, random_clusters
from tangentlab.errors import InputError


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_points_lie_at_the_spread_around_the_centre_of_their_cluster_and_have_its_class():
    clusters = random_clusters(6, 3, 40, 0.2, rng())
    data, members = clusters.sample(4000, rng(1))
    assert torch.allclose(clusters.centres.norm(dim=1), torch.ones(6, dtype=torch.float64))
    distances = (data.inputs - clusters.centres[members]).norm(dim=1)
    assert distances.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.01)
    assert torch.equal(data.targets, members % 3) and data.classes == clusters.classes == 3
    assert members.unique().tolist() == list(range(6))


def test_points_on_the_sphere_have_norm_1_and_without_spread_are_the_centres():
    clusters = random_clusters(4, 2, 10, 0.5, rng(), sphere=True)
    data, _ = clusters.sample(50, rng(1))
    assert torch.allclose(data.inputs.norm(dim=1), torch.ones(50, dtype=torch.float64))
    tight = Clusters(clusters.centres, clusters.labels, 0.0)
    data, members = tight.sample(50, rng(1))
    assert torch.equal(data.inputs, clusters.centres[members])


def test_samples_of_one_mixture_share_its_centres_and_nothing_else():
    clusters = random_clusters(4, 2, 10, 0.1, rng())
    one, two = (clusters.sample(50, rng(seed))[0] for seed in (1, 2))
    assert not torch.equal(one.inputs, two.inputs)
    assert torch.cdist(two.inputs, clusters.centres).min(1).values.max() < 0.3


def test_labels_are_corrupted_in_the_same_share_of_every_cluster():
    data, members = random_clusters(5, 5, 8, 0.1, rng()).sample(203, rng(1))
    noisy, mask = label_noise(data, 0.3, rng(2), groups=members)
    assert torch.equal(noisy.targets != data.targets, mask)
    for number in range(5):
        inside = members == number
        assert mask[inside].sum() == round(0.3 * int(inside.sum()))


def test_one_group_is_the_noise_of_no_groups():
    data, _ = random_clusters(5, 5, 8, 0.1, rng()).sample(50, rng(1))
    plain, grouped = label_noise(data, 0.3, rng(2)), label_noise(data, 0.3, rng(2), groups=torch.full((50,), 7))
    assert torch.equal(plain[0].targets, grouped[0].targets) and torch.equal(plain[1], grouped[1])


def test_impossible_clusters_and_groups_are_refused():
    with pytest.raises(InputError, match="3 clusters cannot be dealt to 4 classes"):
        random_clusters(3, 4, 8, 0.1, rng())
    with pytest.raises(InputError, match="spread of clusters"):
        random_clusters(3, 2, 8, -0.1, rng())
    with pytest.raises(InputError, match="one label each"):
        Clusters(torch.eye(3), torch.arange(2), 0.1)
    data, members = random_clusters(3, 2, 8, 0.1, rng()).sample(20, rng())
    with pytest.raises(InputError, match="one group per example: 19 for 20"):
        label_noise(data, 0.1, rng(), groups=members[1:])

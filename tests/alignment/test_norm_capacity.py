"""Labels of the capacity experiment have two classes."""

import numpy as np
import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.experiments.alignment import norm_capacity
from tangentlab.experiments.alignment.norm_capacity import LEAST_SHARE, random_features, rarer_share, two_classes


def test_features_are_drawn_until_both_labels_have_their_share():
    seen = set()
    for seed in range(12):
        left, singular, labels, draws = two_classes(60, 5.0, np.random.RandomState(seed))
        assert rarer_share(labels) >= LEAST_SHARE and torch.equal(labels > 0, left[:, 0] > 0)
        random = np.random.RandomState(seed)
        shares = []
        for _ in range(draws):
            features = random_features(60, 60, 5.0, random)
            shares.append(rarer_share(torch.linalg.svd(features)[0][:, 0]))
        assert all(share < LEAST_SHARE for share in shares[:-1])
        torch.testing.assert_close(torch.linalg.svdvals(features), singular)
        seen.add(draws > 1)
    assert seen == {False, True}


def test_one_class_is_refused(monkeypatch):
    monkeypatch.setattr(norm_capacity, "random_features", lambda points, *_: torch.ones(points, points).double())
    with pytest.raises(InputError, match="half_width"):
        two_classes(8, 5.0, np.random.RandomState(0))
    assert rarer_share(torch.ones(5)) == rarer_share(-torch.ones(5)) == 0

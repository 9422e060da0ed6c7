"""Shares of labels among nearest points, against scikit-learn's own classifier."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from tangentlab.errors import InputError
from tangentlab.spectral import neighbour_probabilities


def test_probabilities_are_those_of_the_classifier_for_every_number_of_neighbours():
    generator = torch.Generator().manual_seed(0)
    points, queries = torch.randn(60, 2, generator=generator), torch.randn(25, 2, generator=generator)
    labels = (torch.rand(60, generator=generator) > 0.4).float()
    found = neighbour_probabilities(points, labels[:, None], queries, (1, 4, 60))
    for row, count in zip(found, (1, 4, 60), strict=True):
        rival = KNeighborsClassifier(count).fit(points.double().numpy(), labels.numpy())
        np.testing.assert_allclose(row.numpy(), rival.predict_proba(queries.double().numpy())[:, 1], atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "counts", "words"),
    [
        (torch.zeros(5), (), "between 1 and 5"),
        (torch.zeros(5), (0, 2), "between 1 and 5"),
        (torch.zeros(5), (6,), "between 1 and 5"),
        (torch.zeros(4), (1,), "as many labels"),
        (torch.full((5,), 2.0), (1,), "labels 0 or 1"),
    ],
)
def test_what_has_no_neighbours_is_refused(labels: torch.Tensor, counts: tuple[int, ...], words: str):
    with pytest.raises(InputError, match=words):
        neighbour_probabilities(torch.zeros(5, 2), labels, torch.zeros(1, 2), counts)

"""Figure 3.7: the numbers taken from a kernel, and measurements along a training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.experiments import Minibatches, train
from tangentlab.experiments._images import Points, evaluation
from tangentlab.experiments.metrics.ntk_evolution import (
    NTKEvolution,
    alignment,
    class_gap,
    normalized,
    principal_components,
    separability,
)

CLASSES = np.repeat([0, 1], 20)


def features(distance: float, seed: int = 0) -> np.ndarray:
    """Two clouds in 5 dimensions whose means are ``distance`` apart along the first axis."""
    points = np.random.default_rng(seed).normal(size=(40, 5))
    points[:, 0] += distance * CLASSES
    return points


def test_the_normalized_kernel_holds_the_cosines_of_the_features():
    points = features(1.0)
    lengths = np.linalg.norm(points, axis=1)
    expected = points @ points.T / np.outer(lengths, lengths)
    np.testing.assert_allclose(normalized(points @ points.T), expected, rtol=1e-12)
    np.testing.assert_allclose(normalized(9 * points @ points.T), expected, rtol=1e-12)


def test_the_gap_of_a_kernel_of_blocks_is_one_and_leaves_the_diagonal_out():
    blocks = (CLASSES[:, None] == CLASSES[None, :]).astype(float)
    assert class_gap(blocks, CLASSES) == (1.0, 0.0)
    intra, inter = class_gap(np.eye(40), CLASSES)
    assert intra == inter == 0


def test_principal_components_are_those_of_the_centred_features():
    points = features(3.0)
    centred = points - points.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = np.abs(left[:, :2] * values[:2])
    np.testing.assert_allclose(np.abs(principal_components(points @ points.T)), expected, atol=1e-8)


def test_distant_classes_are_separable_and_equal_ones_are_not():
    far, near = (separability(principal_components(features(d) @ features(d).T), CLASSES) for d in (12.0, 0.0))
    assert far == 1 and near < 0.8


def test_alignment_is_one_for_the_kernel_of_the_labels_whatever_is_added_to_all_of_it():
    signs = 2.0 * CLASSES - 1
    assert alignment(np.outer(signs, signs) + 5, CLASSES) == pytest.approx(1)
    assert alignment(features(12.0) @ features(12.0).T, CLASSES) > 0.9 > alignment(np.eye(40), CLASSES)


def test_the_kernel_is_that_of_the_difference_of_two_outputs():
    model = nn.Linear(4, 3)
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    gram = NTKEvolution(classes=(0, 2))._gram(model, inputs)  # type: ignore[arg-type]
    expected = 2 * (inputs @ inputs.t() + 1)  # the weights of both outputs and their two biases
    np.testing.assert_allclose(gram, expected.double().numpy(), rtol=1e-5)


def test_evaluation_uses_norms_of_the_present_weights_and_leaves_the_training_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    batches = Minibatches((torch.randn(60, 3), torch.zeros(60)), 20, 0)
    model(batches.at(7)[0])
    before = copy.deepcopy(model.state_dict())
    hidden = torch.stack([model[0](batches.at(step)[0]).mean(0) for step in range(3)]).mean(0)
    with evaluation(model, batches, 3):
        assert not model.training
        torch.testing.assert_close(model[1].running_mean, hidden)
    assert model.training and model[1].momentum == 0.1
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_points_are_measured_at_their_steps_and_at_the_end_and_survive_a_restart():
    model = nn.Linear(1, 1)
    points = Points((0, 2), lambda training: [{"step": training.step}])
    batches = Minibatches((torch.ones(4, 1), torch.zeros(4, 1)), 2, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(
        model, batches, lambda net, batch: (net(batch[0]) - batch[1]).square().mean(), optimizer, 5, callbacks=[points]
    )
    assert points.rows == [{"step": 0}, {"step": 2}, {"step": 5}]
    again = Points((), lambda training: [])
    again.load_state_dict(points.state_dict())
    assert again.rows == points.rows and again.rows is not points.rows

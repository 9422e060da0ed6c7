"""Paths that stay inside of a class: around an obstacle, on a plane, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

from tangentlab.errors import InputError, ModelError
from tangentlab.spectral import connecting_path
from tangentlab.spectral.paths import resampled


class Ring(nn.Module):
    """Class 1 is where the distance from the origin is near 1, class 0 all else."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, x: Tensor) -> Tensor:
        off = (x.flatten(1).norm(dim=1) - 1).abs()
        return torch.stack([torch.zeros_like(off), self.scale * (0.5 - off)], 1)


def test_a_path_goes_around_where_the_straight_line_leaves_the_class():
    start, end = torch.tensor([1.0, 0.05]), torch.tensor([-1.0, 0.05])
    straight = connecting_path(Ring(), start, end, 1, iterations=0)
    assert not straight.connected and straight.excess == pytest.approx(0, abs=1e-6)
    bent = connecting_path(Ring(), start, end, 1, pivots=9, iterations=6, steps=40, lr=0.02)
    assert bent.connected and float(bent.probabilities.min()) > 0.5
    assert 0.3 < bent.excess < 0.7  # half a circle is pi / 2 - 1 = 0.57 longer than its diameter
    assert torch.equal(bent.points[0], start) and torch.equal(bent.points[-1], end)


def test_where_the_class_is_a_half_space_the_straight_line_is_kept_inside_and_nearly_straight():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([8.0, 0.0, 0.0]))
    start, end = torch.randn(2, 6)
    path = connecting_path(model, start, end, 0)
    assert path.connected and 0 <= path.excess < 0.1
    assert len(path.points) == 8  # 5 pivots and one more after each of 3 iterations


def test_the_model_is_left_as_it_was_and_images_keep_their_shape():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = connecting_path(model, torch.rand(1, 4, 4), torch.rand(1, 4, 4), 0, iterations=2)
    assert path.points.shape[1:] == (1, 4, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_resampling_keeps_the_ends_and_makes_equal_distances():
    chain = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    found = resampled(chain, 9)
    assert torch.equal(found[0], chain[0]) and torch.equal(found[-1], chain[-1])
    torch.testing.assert_close(found[2], chain[1])
    torch.testing.assert_close(found.diff(dim=0).norm(dim=1), torch.full((8,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: connecting_path(Ring(), torch.zeros(2), torch.zeros(3), 1), InputError, "two inputs of one shape"),
        (lambda: connecting_path(Ring(), torch.zeros(2), torch.zeros(2), 1), InputError, "the same input"),
        (lambda: connecting_path(Ring(), torch.zeros(2), torch.ones(2), 1, pivots=2), InputError, "3 pivots"),
        (lambda: connecting_path(Ring(), torch.zeros(2), torch.ones(2), 2), InputError, "no class of outputs"),
        (
            lambda: connecting_path(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), torch.zeros(2), torch.ones(2), 0),
            ModelError,
            "eval",
        ),
    ],
)
def test_what_has_no_path_is_refused(call, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        call()

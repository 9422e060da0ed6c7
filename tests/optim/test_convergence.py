"""On a small problem with a known seed, curvature pays: lower training loss than SGD in the same number of steps."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from tangentlab.models import AutoEncoder
from tangentlab.optim import NaturalSGD

STEPS, BATCH = 150, 200
RATES = (3e-3, 1e-2, 3e-2, 0.1, 0.3)


def digits() -> torch.Tensor:
    return torch.from_numpy(load_digits().data).float() / 16


def final_loss(make) -> float:
    """Training loss of the auto-encoder 64-32-16-8 after the steps, over all images."""
    images = digits()
    torch.manual_seed(0)
    model = AutoEncoder((64, 32, 16, 8))
    optimizer = make(model)
    order = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        batch = images[torch.randint(len(images), (BATCH,), generator=order)]
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(batch), batch, reduction="none").sum(1).mean().backward()
        optimizer.step()
    with torch.no_grad():
        loss = F.binary_cross_entropy_with_logits(model(images), images, reduction="none").sum(1).mean()
    return float(loss) if torch.isfinite(loss) else float("inf")


@pytest.fixture(scope="module")
def best_sgd() -> float:
    """The best of momentum SGD over the learning rates."""
    return min(final_loss(lambda m, lr=lr: torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9)) for lr in RATES)


@pytest.mark.parametrize(
    "settings",
    [
        {"preconditioner": "ekfac", "lr": 0.1, "damping": 1e-2, "factor_decay": 0.9, "factor_period": 1},
        {"preconditioner": "ekfac-ra", "lr": 0.03, "damping": 1e-3},
    ],
    ids=["ekfac", "ekfac-ra"],
)
def test_ekfac_reaches_a_lower_loss_than_the_best_sgd_in_the_same_number_of_steps(settings, best_sgd: float) -> None:
    found = final_loss(lambda model: NaturalSGD(model, momentum=0.9, period=5, **settings))
    assert found < best_sgd - 1.0, (found, best_sgd)


def convolutional_loss(**settings) -> float:
    """Training loss of a small convolutional network on digits, from minibatches of 16."""
    digits = load_digits()
    images, labels = torch.from_numpy(digits.images).float()[:, None] / 16, torch.from_numpy(digits.target)
    torch.manual_seed(0)
    convs = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
    model = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    optimizer = NaturalSGD(model, lr=3e-3, momentum=0.9, damping=1e-2, period=20, **settings)
    order = torch.Generator().manual_seed(1)
    for _ in range(200):
        batch = torch.randint(len(images), (16,), generator=order)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    kinds = [block.right.kind for block in optimizer.preconditioner.blocks.values()]
    assert kinds == (["full", "thin 64", "thin 16"] if settings.get("thin") else ["full"] * 3)
    with torch.no_grad():
        return float(F.cross_entropy(model(images), labels))


def test_thin_bases_train_as_well_as_full_ones() -> None:
    found, full = convolutional_loss(thin=True), convolutional_loss()
    assert found < 0.15 and found < 1.25 * full, (found, full)

"""SOAP follows its paper's algorithm."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.optim import SOAP
from tests.optim.truth import backward, data, tiny_conv, tiny_mlp


class Formula:
    """Algorithm 3 of the paper for one matrix, in numpy."""

    def __init__(self, first: np.ndarray, betas=(0.9, 0.8), beta3=0.7, eps=1e-6, period=3) -> None:
        self.betas, self.beta3, self.eps, self.period, self.count = betas, beta3, eps, period, 0
        self.left, self.right = first @ first.T, first.T @ first
        self.q_left, self.q_right = (np.linalg.eigh(m)[1][:, ::-1] for m in (self.left, self.right))
        self.mean, self.square = np.zeros_like(first), np.zeros_like(first)

    def direction(self, g: np.ndarray) -> np.ndarray:
        self.count += 1
        self.mean = self.betas[0] * self.mean + (1 - self.betas[0]) * g
        self.square = self.betas[1] * self.square + (1 - self.betas[1]) * (self.q_left.T @ g @ self.q_right) ** 2
        mean = self.q_left.T @ self.mean @ self.q_right / (1 - self.betas[0] ** self.count)
        update = mean / (np.sqrt(self.square / (1 - self.betas[1] ** self.count)) + self.eps)
        result = self.q_left @ update @ self.q_right.T
        self.left = self.beta3 * self.left + (1 - self.beta3) * g @ g.T
        self.right = self.beta3 * self.right + (1 - self.beta3) * g.T @ g
        if self.count % self.period == 0:
            self.q_left, order = self._iterate(self.left, self.q_left)
            self.square = self.square[order]
            self.q_right, order = self._iterate(self.right, self.q_right)
            self.square = self.square[:, order]
        return result

    @staticmethod
    def _iterate(moment: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-np.sum(basis * (moment @ basis), 0), kind="stable")
        return np.linalg.qr((moment @ basis)[:, order])[0], order


def square_conv() -> nn.Sequential:
    """A kernel that is a square matrix, so that its moments have no null space in which bases are arbitrary."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


@pytest.mark.parametrize(("make", "shape"), [(tiny_mlp, (4,)), (square_conv, (1, 3, 3))], ids=["mlp", "conv"])
def test_weights_follow_the_algorithm_of_the_paper(make, shape) -> None:
    model = make()
    weight = model[0].weight
    settings = {"betas": (0.9, 0.8), "shampoo_beta": 0.7, "eps": 1e-6, "period": 3}
    optimizer = SOAP(model.parameters(), lr=0.05, weight_decay=0.1, **settings)
    formula = None
    for step in range(10):
        backward(model, *data(12, *shape, seed=step))
        g, before = weight.grad.flatten(1).numpy(), weight.detach().flatten(1).numpy().copy()
        optimizer.step()
        if formula is None:
            formula, expected = Formula(g), before
        else:
            expected = before * (1 - 0.05 * 0.1) - 0.05 * formula.direction(g)
        np.testing.assert_allclose(weight.detach().flatten(1).numpy(), expected, rtol=1e-6, atol=1e-9)


def test_vectors_follow_adam_after_the_first_step() -> None:
    model, twin = tiny_mlp(), tiny_mlp()
    optimizer = SOAP([model[0].bias], lr=0.05, betas=(0.9, 0.8), weight_decay=0.0)
    adam = torch.optim.Adam([twin[0].bias], lr=0.05, betas=(0.9, 0.8))
    for step in range(5):
        backward(model, *data(12, 4, seed=step))
        optimizer.step()
        if step:
            twin[0].bias.grad = model[0].bias.grad.clone()
            adam.step()
    torch.testing.assert_close(model[0].bias, twin[0].bias)


def test_every_axis_has_a_basis_of_its_own_without_merging_and_long_axes_none() -> None:
    model = tiny_conv()
    optimizer = SOAP(model.parameters(), merge=False, max_size=3)
    for step in range(2):
        backward(model, *data(6, 2, 4, 4, seed=step))
        optimizer.step()
    shapes = [None if basis is None else len(basis) for basis in optimizer.state[model[0].weight]["bases"]]
    assert shapes == [3, 2, 3, 3]
    assert [b is None for b in optimizer.state[model[3].weight]["bases"]] == [False, True]


def test_soap_solves_a_badly_conditioned_problem() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(64, 8, dtype=torch.float64) * torch.logspace(-1.5, 0.5, 8, dtype=torch.float64)
    target = inputs @ torch.randn(8, 4, dtype=torch.float64)
    model = nn.Linear(8, 4).double()
    optimizer = SOAP(model.parameters(), lr=0.05, weight_decay=0.0)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (model(inputs) - target).square().mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1e-2 * float(target.square().mean())

"""Theorem 2 along a training, and EKFAC-ra's state after k steps against the formula in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.optim import EKFAC, KFAC, EKFACra
from tests.optim.truth import (
    backward,
    data,
    factors,
    kronecker_factors,
    layer_gradient,
    per_example_gradients,
    spectral,
    tiny_conv,
    tiny_mlp,
)


def layer_mask(model: nn.Module) -> np.ndarray:
    owner = np.concatenate([np.full(p.numel(), int(name.split(".")[0])) for name, p in model.named_parameters()])
    return owner[:, None] == owner[None, :]


@pytest.mark.parametrize("sua", [False, True])
@pytest.mark.parametrize(("make", "shape"), [(tiny_mlp, (4,)), (tiny_conv, (2, 4, 4))], ids=["mlp", "conv"])
def test_ekfac_is_never_further_from_the_second_moment_than_kfac_at_any_iteration(make, shape, sua: bool) -> None:
    model = make()
    ekfac, kfac = EKFAC(model, period=1, sua=sua), KFAC(model, period=1, inverse="eigh", sua=sua)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mask, gaps = layer_mask(model), []
    for step in range(12):
        x, y = data(6, *shape, seed=step)
        truth = per_example_gradients(model, x, y)
        second = np.where(mask, truth.T @ truth / len(truth), 0)
        backward(model, x, y)
        plain = [p.grad.clone() for p in model.parameters()]
        kfac.step()
        for p, grad in zip(model.parameters(), plain):
            p.grad.copy_(grad)
        ekfac.step()
        corrected = np.linalg.norm(second - ekfac.as_pmat().to_dense().numpy())
        kronecker = np.linalg.norm(second - kfac.as_pmat().to_dense().numpy())
        assert corrected <= kronecker * (1 + 1e-9)
        gaps.append(kronecker - corrected)
        np.testing.assert_allclose(ekfac.as_pmat().trace(), np.trace(second), rtol=1e-9)
        optimizer.step()
    assert min(gaps) > 1e-6


def test_kfac_is_exact_on_one_example_at_one_position() -> None:
    model, (x, y) = tiny_mlp(), data(1, 4)
    truth = per_example_gradients(model, x, y)
    precond = KFAC(model, period=1, inverse="eigh")
    backward(model, x, y)
    precond.step()
    second = np.where(layer_mask(model), truth.T @ truth, 0)
    np.testing.assert_allclose(precond.as_pmat().to_dense(), second, atol=1e-12)


class RunningAverage:
    """EKFAC-ra written out: basis and reset every n steps, s <- a s + (1 - a) N (U_B^T g U_A)^2, factored damping."""

    def __init__(self, period: int, decay: float, eps: float, factor_decay: float) -> None:
        self.period, self.decay, self.eps, self.factor_decay = period, decay, eps, factor_decay
        self.moments = None

    def step(self, number: int, found, g: np.ndarray, examples: int) -> np.ndarray:
        if number % self.period == 0:
            fresh = kronecker_factors(found)
            if self.moments is None:
                self.moments = fresh
            else:
                rho = self.factor_decay
                self.moments = tuple(rho * old + (1 - rho) * new for old, new in zip(self.moments, fresh))
            self.s_a, self.u_a, self.s_b, self.u_b = spectral(*self.moments)
            self.s_a, self.s_b = self.s_a.clip(0), self.s_b.clip(0)
            self.scale = np.outer(self.s_b, self.s_a)
        rotated = self.u_b.T @ g @ self.u_a
        self.scale = self.decay * self.scale + (1 - self.decay) * examples * rotated**2
        extra = self.eps + np.sqrt(self.eps) * (self.s_a[None] + self.s_b[:, None])
        return self.u_b @ (rotated / (self.scale + extra)) @ self.u_a.T


@pytest.mark.parametrize("factor_decay", [0.0, 0.6])
@pytest.mark.parametrize(("make", "shape"), [(tiny_mlp, (4,)), (tiny_conv, (2, 4, 4))], ids=["mlp", "conv"])
def test_state_and_steps_of_ekfac_ra_are_those_of_the_formula(make, shape, factor_decay: float) -> None:
    model, eps, decay, period = make(), 0.02, 0.75, 4
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
    options = {"damping": eps, "scale_decay": decay, "period": period, "warm_up": False, "factor_decay": factor_decay}
    precond = EKFACra(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truths = [RunningAverage(period, decay, eps, factor_decay) for _ in layers]
    for step in range(11):
        x, y = data(20, *shape, seed=step)
        found = [factors(model, layer, x, y) for layer in layers]
        backward(model, x, y)
        expected = [t.step(step, f, layer_gradient(layer), 20) for t, f, layer in zip(truths, found, layers)]
        precond.step()
        for layer, truth, block, formula in zip(layers, expected, precond.blocks.values(), truths):
            np.testing.assert_allclose(layer_gradient(layer), truth, rtol=1e-6, atol=1e-9)
            scale = block.scale[0].numpy()
            np.testing.assert_allclose(
                np.sort(scale.flatten()), np.sort(formula.scale.flatten()), rtol=1e-6, atol=1e-12
            )
        optimizer.step()


def test_transport_keeps_the_diagonal_that_the_old_matrix_has_in_the_new_basis() -> None:
    model = tiny_mlp()
    precond = EKFACra(model, period=2, rebase="transport", scale_decay=0.5)
    (group, block), *_ = precond.blocks.items()
    for step in range(3):
        if step == 2:
            old = block.as_pmat_block().dense()
        backward(model, *data(20, 4, seed=step))
        gradient = block.matrix([p.grad.clone() for p in block.parameters])
        precond.step()
    left, right = (side.basis.vectors[0] for side in (block.left, block.right))
    turned = torch.stack([(left[:, i, None] * right[None, :, j]) for i in range(3) for j in range(5)])
    flat = block.form.to_flat(turned[:, None])
    carried = ((flat @ old) * flat).sum(-1).reshape(3, 5)
    truth = 0.5 * carried + 0.5 * 20 * block.rotate(gradient)[0].square()
    torch.testing.assert_close(block.scale[0], truth)


def test_one_qr_step_is_closer_to_the_new_eigenbasis_than_the_old_one() -> None:
    def spread(matrix: torch.Tensor, basis: torch.Tensor) -> float:
        turned = basis.T @ matrix @ basis
        return float((turned - turned.diag().diag()).norm() / matrix.norm())

    model = tiny_mlp()
    precond = EKFACra(model, period=1, refresh="qr", eigh_every=100, factor_decay=0.9)
    side = next(iter(precond.blocks.values())).right
    backward(model, *data(30, 4, seed=0))
    precond.step()
    assert spread(side.statistic.matrices[0], side.basis.vectors[0]) < 1e-12
    for step in range(1, 6):
        old = side.basis.vectors[0].clone()
        backward(model, *data(30, 4, seed=step))
        precond.step()
        assert spread(side.statistic.matrices[0], side.basis.vectors[0]) < spread(side.statistic.matrices[0], old)
        torch.testing.assert_close(side.basis.vectors[0].T @ side.basis.vectors[0], torch.eye(5, dtype=torch.float64))


def test_the_scale_is_from_the_batch_alone_when_nothing_is_averaged() -> None:
    model = tiny_mlp()
    precond = EKFAC(model, period=100)
    for step in range(3):
        x, y = data(8, 4, seed=step)
        truth = per_example_gradients(model, x, y)
        backward(model, x, y)
        precond.step()
        np.testing.assert_allclose(precond.as_pmat().trace(), np.mean(np.sum(truth**2, 1)), rtol=1e-9)

"""The forms of damping, and what adaptive dampings decide."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.optim import (
    EKFAC,
    KFAC,
    BlockDiagonal,
    ConjugateGradient,
    Diagonal,
    EKFACra,
    LevenbergMarquardt,
    NoiseAware,
    Preconditioner,
    Trial,
)
from tangentlab.optim.damping import balance, damped
from tests.optim.truth import backward, data, flat_gradient, tiny_conv, tiny_mlp


def test_factored_damping_adds_to_the_eigenvalues_of_both_factors() -> None:
    torch.manual_seed(0)
    left, right, scale = torch.rand(2, 3), torch.rand(2, 4), torch.rand(2, 3, 4)
    eps, pi = 0.07, torch.tensor([[2.0], [0.5]])
    product = (left + math.sqrt(eps) / 1 * 1 / pi * 1)[:, :, None] * (right + math.sqrt(eps) * pi)[:, None, :]
    truth = scale + product - left[:, :, None] * right[:, None, :]
    torch.testing.assert_close(damped(scale, left, right, eps, "factored", pi), truth)
    torch.testing.assert_close(damped(scale, left, right, eps, "plain", pi), scale + eps)


def test_pi_makes_both_factors_equally_damped() -> None:
    left, right = torch.tensor([[0.01]]), torch.tensor([[4.0]])
    pi = balance(left, right, True, inputs_left=False)
    assert float(pi) == pytest.approx(20.0)
    root = 0.1
    assert float(root * pi / right) == pytest.approx(float(root / pi / left))
    assert float(balance(left, right, False, inputs_left=False)) == 1.0


@pytest.mark.parametrize(
    ("change", "grows"), [(-1.0, -1), (-0.8, -1), (-0.5, 0), (-0.2, 1), (0.3, 1), (float("nan"), 1)]
)
@pytest.mark.parametrize("kind", [LevenbergMarquardt, NoiseAware])
def test_without_noise_the_ratio_of_changes_decides(kind, change: float, grows: int) -> None:
    damping = kind(0.1, period=3, factor=0.9)
    damping.update(Trial(change, 0.0, predicted=-1.0))
    assert damping.value == pytest.approx(0.1 * 0.9 ** (-3 * grows))


@pytest.mark.parametrize("kind", [LevenbergMarquardt, NoiseAware])
def test_a_step_that_the_model_itself_calls_bad_raises_the_damping(kind) -> None:
    damping = kind(0.1, period=1, factor=0.5)
    damping.update(Trial(-1.0, 0.1, predicted=0.2))
    assert damping.value == pytest.approx(0.2)


def test_noise_aware_damping_moves_by_the_probability_of_failure_minus_that_of_success() -> None:
    trial = Trial(change=-0.2, error=0.3, predicted=-1.0)
    damping = NoiseAware(0.1, period=1, factor=0.5)
    normal = torch.distributions.Normal(0.0, 1.0)
    bad = float(normal.cdf(torch.tensor((-0.2 + 0.25) / 0.3)))
    good = float(normal.cdf(torch.tensor((-0.75 + 0.2) / 0.3)))
    damping.update(trial)
    assert damping.value == pytest.approx(0.1 * 2 ** (bad - good), rel=1e-5)


def test_the_noisier_a_measurement_the_less_it_moves_the_damping() -> None:
    moves = [abs(NoiseAware().direction(Trial(0.1, error, -1.0))) for error in (0.01, 0.3, 1.0, 10.0)]
    assert moves == sorted(moves, reverse=True)
    assert moves[0] > 0.999 and moves[-1] < 0.05


def test_the_damping_stays_within_its_bounds() -> None:
    damping = LevenbergMarquardt(0.1, period=1, factor=0.1, bounds=(0.05, 0.5))
    damping.update(Trial(1.0, 0.0, -1.0))
    assert damping.value == 0.5
    for _ in range(3):
        damping.update(Trial(-1.0, 0.0, -1.0))
    assert damping.value == 0.05


NETS = {"mlp": (tiny_mlp, (12, 4)), "conv": (tiny_conv, (6, 2, 4, 4))}
BALANCED: dict[str, Callable[..., Preconditioner]] = {
    "kfac by cholesky": partial(KFAC, pi=True),
    "kfac by eigh": partial(KFAC, pi=True, inverse="eigh"),
    "kfac, sua": partial(KFAC, pi=True, sua=True),
    "ekfac": partial(EKFAC, pi=True),
    "ekfac-ra": partial(EKFACra, pi=True),
    "thin ekfac-ra": partial(EKFACra, pi=True, thin=True),
    "plain kfac": partial(KFAC, damping_form="plain"),
    "plain ekfac": partial(EKFAC, damping_form="plain"),
    "diagonal": Diagonal,
    "diagonal-ra": partial(Diagonal, running=True),
    "block-diagonal": BlockDiagonal,
    "cg": partial(ConjugateGradient, iterations=300, rtol=1e-12),
}
UNBALANCED = {"kfac": KFAC, "ekfac": EKFAC, "ekfac-ra": EKFACra}


def natural_step(make: Callable[..., Preconditioner], net: str, scale: float, damping: float) -> np.ndarray:
    """The second preconditioned gradient of a loss that is multiplied by a number."""
    build, shape = NETS[net]
    model: nn.Module = build()
    precond = make(model, damping=damping)
    for seed in (1, 2):
        x, y = data(*shape, seed=seed)
        model.zero_grad()
        (scale * F.cross_entropy(model(x), y)).backward()
        precond.step()
    return flat_gradient(model)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("scale", [100.0, 0.07])
@pytest.mark.parametrize("name", BALANCED)
def test_a_loss_times_c_makes_the_same_steps_over_c_with_the_damping_times_c_squared(
    name: str, scale: float, net: str
) -> None:
    once = natural_step(BALANCED[name], net, 1.0, 0.05)
    scaled = natural_step(BALANCED[name], net, scale, 0.05 * scale**2)
    np.testing.assert_allclose(scale * scaled, once, rtol=1e-6, atol=1e-8 * np.abs(once).max())


@pytest.mark.parametrize("name", [*BALANCED, *UNBALANCED])
def test_with_the_same_damping_a_loss_of_another_scale_makes_other_steps_with_pi_or_without(name: str) -> None:
    make = {**BALANCED, **UNBALANCED}[name]
    assert cosine(natural_step(make, "mlp", 1.0, 0.05), natural_step(make, "mlp", 100.0, 0.05)) < 0.99


@pytest.mark.parametrize("name", UNBALANCED)
def test_without_pi_no_damping_undoes_the_scale_of_the_loss(name: str) -> None:
    once = natural_step(UNBALANCED[name], "mlp", 1.0, 0.05)
    dampings = 0.05 * 100.0 ** np.linspace(-1, 4, 41)
    best = max(cosine(once, natural_step(UNBALANCED[name], "mlp", 100.0, damping)) for damping in dampings)
    assert best < 0.95


ZEROS = {"A": (0.0, 1.0), "B": (1.0, 0.0), "both": (0.0, 0.0)}


@pytest.mark.parametrize("which", ZEROS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_balance_of_a_factor_of_zero_is_finite_and_bounded(which: str, dtype: torch.dtype) -> None:
    right, left = (torch.tensor([[value]], dtype=dtype) for value in ZEROS[which])
    pi = float(balance(left, right, True, inputs_left=False))
    assert pi == pytest.approx({"A": 1e-6, "B": 1e6, "both": 1.0}[which])


@pytest.mark.parametrize("which", ["A", "B"])
@pytest.mark.parametrize(
    "make",
    [KFAC, partial(KFAC, inverse="eigh"), EKFAC, EKFACra, partial(EKFACra, thin=True)],
    ids=["kfac", "eigh", "ekfac", "ekfac-ra", "thin"],
)
def test_a_layer_with_a_factor_of_zero_has_finite_steps_under_the_balanced_damping(make, which: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 3)).double()
    x, y = data(12, 4)
    precond = make(model, damping=0.05, pi=True)
    outputs = model(0 * x) if which == "A" else model(x)
    F.cross_entropy(outputs, y).mul(0.0 if which == "B" else 1.0).backward()
    assert precond.step()
    assert not model[0].weight.grad.any() and all(torch.isfinite(p.grad).all() for p in model.parameters())


def preconditioned(model: nn.Module, kind: type, pi, **options) -> dict[str, torch.Tensor]:
    """Gradients of the parameters after one step."""
    model.zero_grad()
    precond = kind(model, damping=0.1, pi=pi, **options)
    backward(model, *data(12, 4))
    precond.step()
    precond.remove()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", [KFAC, EKFAC, EKFACra])
def test_pi_by_layer_is_pi_of_that_layer(kind: type) -> None:
    model = tiny_mlp()
    first, last = [name.rpartition(".")[0] for name, _ in model.named_parameters()][
        :: len(list(model.parameters())) - 1
    ]
    found = preconditioned(model, kind, {first: 3.0, f"{last}.*": True})
    three, balanced, one = (preconditioned(model, kind, pi) for pi in (3.0, True, False))
    other = preconditioned(model, kind, {first: 3.0})
    for name in found:
        expected = three if name.startswith(f"{first}.") else balanced
        torch.testing.assert_close(found[name], expected[name])
        torch.testing.assert_close(other[name], (three if name.startswith(f"{first}.") else one)[name])
        assert not torch.allclose(three[name], one[name])
    for name, gradient in preconditioned(model, kind, 1.0).items():
        torch.testing.assert_close(gradient, one[name])


@pytest.mark.parametrize(("inverse", "form"), [("cholesky", "factored"), ("eigh", "factored")])
def test_pi_is_that_of_the_metric_on_either_side(inverse: str, form: str) -> None:
    """An embedding has its inputs on the left: a number multiplies the damping of A there, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    index = torch.randint(0, 6, (20, 3))
    labels = torch.randint(0, 3, (20,))
    precond = KFAC(model, damping=0.1, pi={"0": 3.0, "2": 0.5}, inverse=inverse, damping_form=form)
    F.cross_entropy(model(index), labels).backward()
    gradient = tl.PVector.from_grad(model)
    metric = tl.FIM_Empirical(model, (index, labels), tl.PMatKFAC)
    precond.step()
    expected = metric.solve(gradient, 0.1, factored=True, pi={"0": 3.0, "2": 0.5})
    torch.testing.assert_close(tl.PVector.from_grad(model).flat, expected.flat)


def test_pi_for_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="'nowhere'"):
        KFAC(tiny_mlp(), pi={"nowhere": 2.0})
    with pytest.raises(InputError, match="positive"):
        EKFAC(tiny_mlp(), pi=-1.0)

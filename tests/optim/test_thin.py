"""Thin eigenbases of EKFAC-ra: the same as a full basis in which all directions of eigenvalue 0 share one second moment."""

import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, NumericsError
from tangentlab.optim import EKFAC, EKFACra, refresh
from tangentlab.optim.thin import RunningThin
from tangentlab.parallel.processes import Processes
from tests.optim.truth import backward, data, factors, kronecker_factors, layer_gradient, spectral

EPS, DECAY, PERIOD = 0.02, 0.75, 4
SETTINGS = {"damping": EPS, "scale_decay": DECAY, "period": PERIOD, "warm_up": False, "thin": True}


def wide_mlp() -> tuple[nn.Sequential, tuple[int, ...]]:
    """41 columns and 10 rows in the first layer; 4 columns in the second."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 3), nn.Tanh(), nn.Linear(3, 3)).double(), (10, 40)


def wide_conv() -> tuple[nn.Sequential, tuple[int, ...]]:
    """72 columns and 10 x 4 rows in the convolution; 21 columns and 10 rows in the linear layer."""
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 5, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(20, 3)).double(), (10, 8, 4, 4)


NETS = {"mlp": wide_mlp, "conv": wide_conv}
each_net = pytest.mark.parametrize("net", NETS)


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model if isinstance(module, nn.Linear | nn.Conv2d)]


class SharedOutside:
    """EKFAC-ra with a full orthogonal basis, the scale averaged over the directions where A is 0, in numpy."""

    def __init__(self, form: str, pi: bool) -> None:
        self.form, self.pi = form, pi

    def step(self, number: int, found, g: np.ndarray, examples: int) -> np.ndarray:
        if number % PERIOD == 0:
            self.refresh(*kronecker_factors(found), sum(len(a) for a, _ in found))
        rotated = self.u_b.T @ g @ self.u_a
        self.scale = DECAY * self.scale + (1 - DECAY) * examples * self.shared(rotated**2)
        return self.u_b @ (rotated / (self.scale + self.extra())) @ self.u_a.T

    def refresh(self, a: np.ndarray, b: np.ndarray, rows: int) -> None:
        s_a, self.u_a, s_b, self.u_b = spectral(a, b)
        self.outside = len(a) - rows if rows <= 0.6 * len(a) else 0  # eigenvalues ascend: the first ones
        self.s_a, self.s_b = s_a.clip(0), s_b.clip(0)
        self.s_a[: self.outside] = 0
        self.scale = np.outer(self.s_b, self.s_a)

    def shared(self, squares: np.ndarray) -> np.ndarray:
        squares = squares.copy()
        if self.outside:
            squares[:, : self.outside] = squares[:, : self.outside].mean(1, keepdims=True)
        return squares

    def extra(self) -> np.ndarray | float:
        if self.form == "plain":
            return EPS
        pi = np.sqrt(self.s_a.mean() / self.s_b.mean()) if self.pi else 1.0
        s_a, s_b = self.s_a + pi * np.sqrt(EPS), self.s_b + np.sqrt(EPS) / pi
        return np.outer(s_b, s_a) - np.outer(self.s_b, self.s_a)

    def matrix(self) -> np.ndarray:
        basis = np.kron(self.u_b, self.u_a)
        return (basis * self.scale.flatten()) @ basis.T


@each_net
@pytest.mark.parametrize(("form", "pi"), [("factored", False), ("factored", True), ("plain", False)])
def test_steps_are_those_of_a_full_basis_with_one_second_moment_outside(net: str, form: str, pi: bool) -> None:
    model, shape = NETS[net]()
    layers = layers_of(model)
    truths = [SharedOutside(form, pi) for _ in layers]
    precond = EKFACra(model, damping_form=form, pi=pi, **SETTINGS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2 * PERIOD + 2):
        x, y = data(*shape, seed=step)
        found = [factors(model, layer, x, y) for layer in layers]
        backward(model, x, y)
        expected = [t.step(step, f, layer_gradient(layer), len(x)) for t, f, layer in zip(truths, found, layers)]
        precond.step()
        for layer, truth in zip(layers, expected):
            np.testing.assert_allclose(layer_gradient(layer), truth, rtol=1e-6, atol=1e-9)
        optimizer.step()
    assert truths[0].outside and precond.blocks[precond.groups[0]].right.basis.outside == truths[0].outside


def trained(model: nn.Module, shape: tuple[int, ...], steps: int = 6, first: int = 0, precond=None, **settings):
    """Weights after some steps, and the preconditioner."""
    precond = EKFACra(model, **{**SETTINGS, **settings}) if precond is None else precond
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        backward(model, *data(*shape, seed=step))
        precond.step()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), precond


@each_net
def test_the_matrix_and_its_quadratic_form_count_the_outside_once_per_direction(net: str) -> None:
    model, shape = NETS[net]()
    layer, truth = layers_of(model)[0], SharedOutside("factored", False)
    precond = EKFACra(model, layers=[layer], **SETTINGS)
    for step in range(3):
        x, y = data(*shape, seed=step)
        found = factors(model, layer, x, y)
        backward(model, x, y)
        truth.step(step, found, layer_gradient(layer), len(x))
        precond.step()
    block = precond.blocks[precond.groups[0]]
    exported = block.as_pmat_block()
    assert exported.scale.shape == block.form.shape[:2] + (block.right.size,)
    names = [name for name, p in model.named_parameters() if any(p is q for q in layer.parameters())]
    generator = torch.Generator().manual_seed(5)
    parts = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in layer.parameters()]
    along = block.matrix(parts)[0].flatten().numpy()
    expected = along @ truth.matrix() @ along
    assert precond.quadratic(dict(zip(names, parts))) == pytest.approx(expected, rel=1e-9)
    flat = torch.cat([part.flatten() for part in parts])
    assert float(flat @ precond.as_pmat().to_dense() @ flat) == pytest.approx(expected, rel=1e-9)


@each_net
def test_eigenpairs_are_the_leading_ones_of_the_full_decomposition(net: str) -> None:
    model, shape = NETS[net]()
    _, precond = trained(model, shape, PERIOD + 1)
    side = precond.blocks[precond.groups[0]].right
    values, basis = torch.linalg.eigh(side.statistic.matrices[0])
    rank = side.basis.kept
    assert rank < side.size and side.values.shape == (1, rank + 1)
    torch.testing.assert_close(side.values[0, :rank], values.flip(0)[:rank])
    assert float(side.values[0, -1]) == 0 and float(values.flip(0)[rank:].abs().max()) < 1e-12
    overlap = (basis.flip(1)[:, :rank].T @ side.basis.vectors[0]).abs()
    torch.testing.assert_close(overlap, torch.eye(rank, dtype=torch.float64), atol=1e-9, rtol=0)


def side_of(rows: torch.Tensor) -> RunningThin:
    side = RunningThin(rows.shape[1])
    side.absorb(side.side((rows.T @ rows)[None], 1.0), 0.0, len(rows))
    refresh.refresh_sides([side], "eigh", Processes())
    return side


def test_leading_coordinates_do_not_drown_in_the_rounding_of_the_outside() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100, 300, generator=generator) * torch.logspace(1.5, -1, 100)[:, None]
    x = torch.randn(1, 4, 100, generator=generator) @ rows + 0.01 * torch.randn(1, 4, 300, generator=generator)
    along = {}
    for dtype in (torch.float32, torch.float64):
        side = side_of(rows.to(dtype))
        own, divisor = x.to(dtype), side.values[:, None, :] + 1e-2
        found = side.basis.divided(own, side.basis.into(own), divisor, lambda y: y)
        along[dtype] = found.double() @ side_of(rows.double()).basis.vectors[..., :3]
    error = (along[torch.float32] / along[torch.float64] - 1).abs().max()
    assert float(error) < 1e-2, error


@pytest.mark.parametrize(
    ("examples", "settings"),
    [
        (25, {}),  # 25 > 0.6 * 41
        (10, {"factor_decay": lambda _: 0.5}),
    ],
    ids=["rows", "averages"],
)
def test_where_it_does_not_apply_the_option_changes_no_bit(examples: int, settings: dict) -> None:
    runs = [trained(wide_mlp()[0], (examples, 40), thin=thin, **settings)[0] for thin in (True, False)]
    assert torch.equal(*runs)


@pytest.mark.parametrize("examples", [1, 24])
def test_where_it_applies_the_report_says_so_and_the_steps_differ_outside_only(examples: int) -> None:
    runs = [trained(wide_mlp()[0], (examples, 40), thin=thin) for thin in (True, False)]
    assert not torch.allclose(runs[0][0], runs[1][0])
    kinds = [precond.report().rows[0].method for _, precond in runs]
    assert kinds == [f"3 x 41 (full x thin {examples})", "3 x 41 (full x full)"]


@pytest.mark.parametrize("thin", [True, False])
def test_the_first_step_is_the_same_because_a_gradient_lies_in_the_span_of_its_own_inputs(thin: bool) -> None:
    model, shape = wide_conv()
    x, y = data(*shape)
    found = factors(model, model[0], x, y)
    backward(model, x, y)
    truth = SharedOutside("factored", False).step(0, found, layer_gradient(model[0]), len(x))
    precond = EKFACra(model, **{**SETTINGS, "thin": thin})
    backward(model, x, y)
    precond.step()
    np.testing.assert_allclose(layer_gradient(model[0]), truth, rtol=1e-7, atol=1e-10)


def test_groups_of_a_convolution_have_a_thin_basis_each() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 6, 3, stride=2, padding=1, groups=2), nn.Flatten(), nn.Linear(24, 3)).double()
    _, precond = trained(model, (10, 16, 4, 4), PERIOD - 1)
    block = precond.blocks[precond.groups[0]]
    truths = [SharedOutside("factored", False) for _ in range(2)]
    for truth, a, b in zip(truths, block.right.statistic.matrices, block.left.statistic.matrices):
        truth.refresh(a.numpy(), b.numpy(), 40)
    fresh = EKFACra(model, **SETTINGS)
    own = fresh.blocks[fresh.groups[0]]
    own.load({**block.state(), "scale": block.left.values[:, :, None] * block.right.values[:, None, :]})
    gradient = torch.randn(2, 3, 73, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    half, rotated = own.turned(gradient)
    own.track(rotated, 10.0, DECAY)
    found = own.natural_from(half, rotated, EPS)
    for group, truth in enumerate(truths):
        truth.refresh = lambda *_: None  # the basis is there
        expected = truth.step(1, [], gradient[group].numpy(), 10)
        np.testing.assert_allclose(found[group], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"refresh": "qr"}, {"kl_clip": 1e-3, "lr": 0.1, "factor_period": 1}])
@pytest.mark.parametrize("stop", [1, 3, PERIOD])
def test_a_resumed_training_continues_bit_for_bit(stop: int, settings: dict) -> None:
    whole, _ = trained(*wide_conv(), 9, **settings)
    model, shape = wide_conv()
    _, precond = trained(model, shape, stop, **settings)
    file = io.BytesIO()
    torch.save([model.state_dict(), precond.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    fresh, _ = wide_conv()
    fresh.load_state_dict(weights)
    again = EKFACra(fresh, **SETTINGS, **settings)
    again.load_state_dict(state)
    found, _ = trained(fresh, shape, 9 - stop, stop, again)
    assert torch.equal(whole, found)


def test_a_thin_state_is_refused_where_bases_are_full_and_a_full_one_is_taken_up() -> None:
    states = {option: trained(*wide_mlp(), 2, thin=option)[1].state_dict() for option in (True, False)}
    with pytest.raises(InputError, match="with thin=True"):
        EKFACra(wide_mlp()[0], thin=False).load_state_dict(states[True])
    model, shape = wide_mlp()
    precond = EKFACra(model, **SETTINGS)
    precond.load_state_dict(states[False])
    side = precond.blocks[precond.groups[0]].right
    trained(model, shape, 2, 2, precond)
    assert side.kind == "full"
    trained(model, shape, 1, 4, precond)  # a refresh
    assert side.kind == "thin 10"


def diagonal_error(side) -> float:
    """What is off the diagonal of A in its basis, and what lies outside."""
    inside = side.basis.vectors[0] @ torch.diag(side.values[0, : side.basis.kept]) @ side.basis.vectors[0].T
    return float((side.statistic.matrices[0] - inside).norm() / side.statistic.matrices[0].norm())


def test_a_qr_step_needs_a_full_basis_so_thin_ones_are_made_anew() -> None:
    model, shape = wide_mlp()
    decay = lambda step: 0.0 if step < 3 else 0.5  # noqa: E731
    options = {"thin": True, "period": 1, "refresh": "qr", "eigh_every": 100, "factor_decay": decay, "damping": EPS}
    precond = EKFACra(model, **options)
    side = precond.blocks[precond.groups[0]].right
    for step in range(3):
        trained(model, shape, 1, step, precond)
        assert side.kind == "thin 10" and diagonal_error(side) < 1e-12
    trained(model, shape, 1, 3, precond)  # averaged from now on: a full decomposition
    assert side.kind == "full" and diagonal_error(side) < 1e-12
    trained(model, shape, 1, 4, precond)  # then one QR step
    assert side.kind == "full" and diagonal_error(side) > 1e-6


def test_a_decomposition_that_is_not_accurate_is_made_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _ = trained(*wide_conv(), thin=False)

    def fails(*_):
        raise NumericsError("not accurate")

    monkeypatch.setattr(refresh, "low_rank_eigh", fails)
    found, precond = trained(*wide_conv())
    assert torch.equal(found, truth)
    assert precond.blocks[precond.groups[0]].right.kind == "full"


def test_a_full_decomposition_that_fails_after_a_thin_one_does_not_keep_the_thin_basis(monkeypatch) -> None:
    model, shape = wide_mlp()
    precond = EKFACra(model, **{**SETTINGS, "period": 1, "factor_decay": lambda step: 0.5 * (step > 0)})
    trained(model, shape, 1, 0, precond)

    def fails(*_):
        raise NumericsError("no algorithm")

    monkeypatch.setattr(refresh, "safe_eigh_many", fails)
    monkeypatch.setattr(refresh, "safe_eigh", fails)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained(model, shape, 1, 1, precond)
    assert any("size 41 failed: it keeps the identity" in str(warning.message) for warning in told)
    side = precond.blocks[precond.groups[0]].right
    assert torch.equal(side.basis.vectors[0], torch.eye(41, dtype=torch.float64))
    torch.testing.assert_close(side.values[0], side.statistic.matrices[0].diagonal())


def test_a_layer_that_joins_later_gets_its_thin_basis_then() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.use = nn.Linear(40, 3), nn.Linear(40, 3), False

        def forward(self, x):
            return self.a(x) + (self.b(x) if self.use else 0)

    torch.manual_seed(0)
    model = Late().double()
    precond = EKFACra(model, **{**SETTINGS, "period": 2})
    kinds = []
    for step in range(3):
        model.use = step > 0
        backward(model, *data(10, 40, seed=step))
        precond.step()
        kinds.append([block.right.kind for block in precond.blocks.values()])
    assert kinds[0] == ["thin 10", "full"] and kinds[2] == ["thin 10", "thin 10"]


@pytest.mark.parametrize("option", [{"rebase": "transport"}, {"cutoff": 0.5}])
def test_options_that_need_single_modes_are_refused(option: dict) -> None:
    with pytest.raises(InputError, match="takes rebase='kfac', no cutoff"):
        EKFACra(wide_mlp()[0], thin=True, **option)


def test_only_ekfac_ra_has_thin_bases() -> None:
    model, shape = wide_mlp()
    precond = EKFAC(model, damping=EPS)
    backward(model, *data(*shape))
    precond.step()
    assert precond.report().rows[0].method == "3 x 41 (full x full)"
    with pytest.raises(InputError, match="thin"):
        EKFAC(model, thin=True)

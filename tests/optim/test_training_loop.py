"""Preconditioners inside real training loops: optimizers, groups, schedulers, clipping, accumulation, half precision."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.optim import (
    EKFAC,
    KFAC,
    PRECONDITIONERS,
    EKFACra,
    LevenbergMarquardt,
    NaturalSGD,
    NoiseAware,
    make_preconditioner,
)
from tests.optim.truth import backward, data, flat_gradient, tiny_mlp

each_variant = pytest.mark.parametrize("variant", PRECONDITIONERS)


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_torch_optimizer_makes_its_step_on_the_natural_gradient(name: str) -> None:
    model = tiny_mlp()
    plain = copy.deepcopy(model)
    precond, optimizer, twin = EKFAC(model), OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    for step in range(3):
        backward(model, *data(12, 4, seed=step))
        precond.step()
        for p, q in zip(model.parameters(), plain.parameters()):
            q.grad = p.grad.clone()
        optimizer.step()
        twin.step()
        assert (weights(model) == weights(plain)).all()


@each_variant
def test_every_variant_lowers_the_loss(variant: str) -> None:
    model, (x, y) = tiny_mlp(), data(40, 4)
    optimizer = NaturalSGD(model, lr=0.02, momentum=0.0, preconditioner=variant, damping=0.1)
    losses = []
    for _ in range(25):
        losses.append(float(backward(model, x, y)))
        optimizer.step()
    assert losses[-1] < losses[0] - 0.02
    assert all(b < a for a, b in zip(losses, losses[1:]))


def test_natural_sgd_is_momentum_sgd_behind_a_preconditioner() -> None:
    runs = []
    for ready_made in (True, False):
        model = tiny_mlp()
        settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
        if ready_made:
            optimizer = NaturalSGD(model, preconditioner="kfac", damping=0.1, **settings)
        else:
            precond, optimizer = KFAC(model, damping=0.1), torch.optim.SGD(model.parameters(), **settings)
        for step in range(4):
            backward(model, *data(12, 4, seed=step))
            if not ready_made:
                precond.step()
            optimizer.step()
        runs.append(weights(model))
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-12)


def test_weight_decay_does_not_enter_the_curvature() -> None:
    states = []
    for decay in (0.0, 0.3):
        model = tiny_mlp()
        optimizer = NaturalSGD(model, lr=0.0, weight_decay=decay, preconditioner="ekfac-ra")
        backward(model, *data(12, 4))
        optimizer.step()
        states.append(optimizer.preconditioner.as_pmat().to_dense())
    assert torch.equal(*states)


def test_a_preconditioner_attached_to_an_optimizer_runs_by_itself() -> None:
    model, twin = tiny_mlp(), tiny_mlp()
    attached = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = EKFAC(model).attach(attached)
    precond, optimizer = EKFAC(twin), torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(3):
        backward(model, *data(12, 4, seed=step))
        attached.step()
        backward(twin, *data(12, 4, seed=step))
        precond.step()
        optimizer.step()
    assert (weights(model) == weights(twin)).all()
    with pytest.raises(InputError, match="closure"):
        attached.step(lambda: backward(model, *data(12, 4)))
    handle.remove()


def test_a_closure_runs_before_the_preconditioner() -> None:
    runs = []
    for closure in (False, True):
        model = tiny_mlp()
        optimizer = NaturalSGD(model, lr=0.1)
        for step in range(2):
            if closure:
                loss = optimizer.step(lambda m=model, s=step: backward(m, *data(12, 4, seed=s)))
                assert float(loss) > 0
            else:
                backward(model, *data(12, 4, seed=step))
                optimizer.step()
        runs.append(weights(model))
    assert (runs[0] == runs[1]).all()


def test_parameter_groups_and_schedulers_act_on_each_group() -> None:
    model = tiny_mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = NaturalSGD(model, groups, momentum=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    backward(model, *data(12, 4))
    optimizer.step()
    scheduler.step()
    after = list(model.parameters())
    assert torch.equal(after[0], before[0]) and torch.equal(after[1], before[1])
    torch.testing.assert_close(after[2].detach(), before[2] - 0.1 * after[2].grad)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.05]


@pytest.mark.parametrize("variant", [name for name in PRECONDITIONERS if name != "cg"])
def test_gradients_clipped_before_the_step_keep_the_curvature_of_the_loss(variant: str) -> None:
    matrices = []
    for limit in (1e9, 1e-3):
        model = tiny_mlp()
        precond = make_preconditioner(variant, model)
        backward(model, *data(12, 4))
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        precond.step()
        assert precond.report().share == 1.0
        matrices.append(precond.as_pmat().to_dense())
    if variant.endswith("-ra"):
        assert not torch.allclose(*matrices)  # running averages are of the gradients that they are given
    else:
        torch.testing.assert_close(*matrices)


@each_variant
def test_accumulated_parts_are_the_joint_batch(variant: str) -> None:
    runs = []
    for parts in (1, 3):
        model = tiny_mlp()
        optimizer = NaturalSGD(model, lr=0.1, momentum=0.9, preconditioner=variant, damping=0.05)
        for step in range(4):
            x, y = data(12, 4, seed=step)
            optimizer.zero_grad()
            for inputs, labels in zip(x.chunk(parts), y.chunk(parts)):
                (F.cross_entropy(model(inputs), labels) / parts).backward()
            optimizer.step()
        runs.append(weights(model))
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-5 if variant == "cg" else 1e-9)


@pytest.mark.parametrize("curvature", ["monte-carlo", "exact"])
def test_accumulation_works_with_drawn_labels(curvature: str) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    precond = KFAC(model, curvature=curvature, likelihood="classification")
    for inputs, labels in zip(x.chunk(3), y.chunk(3)):
        (F.cross_entropy(model(inputs), labels) / 3).backward()
    precond.step()
    other = KFAC(tiny_mlp(), curvature=curvature, likelihood="classification")
    backward(other.model, x, y)
    other.step()
    same = torch.allclose(precond.as_pmat().to_dense(), other.as_pmat().to_dense())
    assert same == (curvature == "exact")


@pytest.mark.parametrize("variant", ["kfac", "ekfac", "ekfac-ra", "diagonal", "cg"])
def test_bfloat16_autocast_trains_with_statistics_in_float32(variant: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))
    optimizer = NaturalSGD(model, lr=0.05, momentum=0.0, preconditioner=variant, damping=0.05)
    x, y = data(64, 4)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x.float()), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
    assert optimizer.preconditioner.report().share == 1.0
    blocks = getattr(optimizer.preconditioner, "blocks", {})
    assert all(block.scale is None or block.scale.dtype == torch.float32 for block in blocks.values())


@pytest.mark.parametrize("curvature", ["empirical", "exact"])
def test_bfloat16_parameters_keep_float32_statistics(curvature: str) -> None:
    model = tiny_mlp(dtype=torch.bfloat16)
    precond = EKFAC(model, curvature=curvature, likelihood="classification")
    x, y = data(16, 4)
    F.cross_entropy(model(x.bfloat16()), y).backward()
    assert precond.step()
    assert model[0].weight.grad.dtype == torch.bfloat16
    assert next(iter(precond.blocks.values())).scale.dtype == torch.float32


def test_a_grad_scaler_is_taken_off_the_statistics() -> None:
    matrices = []
    for scaled in (False, True):
        model, (x, y) = tiny_mlp(dtype=torch.float32), data(12, 4)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        precond, optimizer = EKFAC(model, grad_scaler=scaler), torch.optim.SGD(model.parameters(), lr=0.1)
        loss = F.cross_entropy(model(x.float()), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        precond.step()
        matrices.append((precond.as_pmat().to_dense(), flat_gradient(model)))
    torch.testing.assert_close(matrices[0][0], matrices[1][0])
    np.testing.assert_allclose(matrices[0][1], matrices[1][1], rtol=1e-4, atol=1e-6)


def test_frozen_layers_have_no_gradient_and_no_part_in_the_report() -> None:
    model = tiny_mlp()
    model[0].requires_grad_(False)
    optimizer = NaturalSGD(model, lr=0.1)
    before = model[0].weight.clone()
    backward(model, *data(12, 4))
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert [row.names for row in optimizer.preconditioner.report().rows] == [("2.weight", "2.bias")]


@pytest.mark.parametrize("variant", ["kfac", "ekfac", "ekfac-ra"])
def test_train_mode_batch_norm_and_dropout_are_allowed_and_their_parameters_passed_through(variant: str) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    model = nn.Sequential(*layers).double().train()
    optimizer = NaturalSGD(model, lr=0.05, momentum=0.0, preconditioner=variant, damping=0.1)
    losses = []
    for _ in range(30):
        losses.append(float(backward(model, *data(64, 4, seed=0))))
        optimizer.step()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05
    passed = {row.names[0]: row.reason for row in optimizer.preconditioner.report().rows if not row.treated}
    assert set(passed) == {"1.weight", "1.bias"}


def test_any_hyper_parameter_may_be_a_function_of_the_step() -> None:
    runs = []
    for scheduled in (False, True):
        model = tiny_mlp()
        damping = (lambda step: 0.1 if step < 2 else 0.01) if scheduled else 0.1
        decay = (lambda step: 0.9 if step < 2 else 0.5) if scheduled else 0.9
        precond = EKFACra(model, damping=damping, scale_decay=decay, factor_decay=lambda step: 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        track = []
        for step in range(4):
            backward(model, *data(12, 4, seed=step))
            precond.step()
            optimizer.step()
            track.append(weights(model))
        runs.append(track)
    assert (runs[0][1] == runs[1][1]).all()
    assert not np.allclose(runs[0][2], runs[1][2])


def test_kl_clip_bounds_the_predicted_divergence_of_the_step() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    optimizer = NaturalSGD(model, lr=0.5, momentum=0.0, preconditioner="ekfac", damping=1e-3, kl_clip=1e-3)
    backward(model, x, y)
    gradient, before = flat_gradient(model), weights(model)
    optimizer.step()
    step = weights(model) - before
    free = NaturalSGD(tiny_mlp(), lr=0.5, momentum=0.0, preconditioner="ekfac", damping=1e-3)
    backward(free.preconditioner.model, x, y)
    free.step()
    unclipped = 0.5 * flat_gradient(free.preconditioner.model)
    ratio = np.sqrt(1e-3 / (0.5 * gradient @ unclipped))
    assert ratio < 1
    np.testing.assert_allclose(step, -ratio * unclipped, rtol=1e-9)


def test_norm_clip_bounds_the_natural_gradient() -> None:
    model = tiny_mlp()
    precond = KFAC(model, damping=1e-3, norm_clip=0.25)
    backward(model, *data(12, 4))
    precond.step()
    np.testing.assert_allclose(np.linalg.norm(flat_gradient(model)), 0.25, rtol=1e-9)


@pytest.mark.parametrize("kind", [LevenbergMarquardt, NoiseAware])
@pytest.mark.parametrize("variant", ["kfac", "ekfac", "ekfac-ra", "cg"])
def test_adaptive_damping_grows_when_steps_overshoot_and_shrinks_when_they_do_not(kind, variant: str) -> None:
    values = {}
    for lr in (30.0, 0.05):
        model, (x, y) = tiny_mlp(), data(64, 4)
        damping = kind(0.1, period=1, factor=0.8)
        optimizer = NaturalSGD(model, lr=lr, momentum=0.0, preconditioner=variant, damping=damping)
        for _ in range(4):
            backward(model, x, y)
            optimizer.step(evaluate=lambda m=model, x=x, y=y: F.cross_entropy(m(x), y, reduction="none"))
        values[lr] = damping.value
    assert values[30.0] > 0.15
    assert values[0.05] < 0.08


@pytest.mark.parametrize("options", [{"norm_clip": 0.25}, {"kl_clip": 1e-3, "lr": 0.1}])
@each_variant
def test_gradients_of_zero_stay_zero_under_every_clipping(variant: str, options: dict) -> None:
    model = tiny_mlp()
    precond = make_preconditioner(variant, model, **options)
    x, y = data(12, 4)
    (0 * F.cross_entropy(model(x), y)).backward()
    assert precond.step()
    assert not flat_gradient(model).any()
    backward(model, x, y)
    assert precond.step()
    assert np.isfinite(flat_gradient(model)).all() and flat_gradient(model).any()


def test_a_clip_that_is_not_reached_changes_nothing() -> None:
    steps = []
    for options in ({}, {"norm_clip": 1e9}, {"kl_clip": 1e9, "lr": 0.1}, {"norm_clip": 1e9, "kl_clip": 1e9, "lr": 0.1}):
        model = tiny_mlp()
        precond = KFAC(model, **options)
        backward(model, *data(12, 4))
        precond.step()
        steps.append(flat_gradient(model))
    assert all((step == steps[0]).all() for step in steps)


def test_the_tighter_of_two_clips_decides() -> None:
    lengths = {}
    for norm, kl in ((0.25, 1e9), (1e9, 1e-4), (0.25, 1e-4), (1e-3, 1e-4)):
        model = tiny_mlp()
        precond = KFAC(model, damping=1e-3, norm_clip=norm, kl_clip=kl, lr=0.5)
        backward(model, *data(12, 4))
        precond.step()
        lengths[norm, kl] = np.linalg.norm(flat_gradient(model))
    assert lengths[1e9, 1e-4] < 0.25
    assert lengths[0.25, 1e-4] == pytest.approx(lengths[1e9, 1e-4], rel=1e-9)
    assert lengths[1e-3, 1e-4] == pytest.approx(1e-3, rel=1e-9)


def test_kl_clip_counts_every_parameter_with_the_rate_of_its_group_and_others_not_at_all() -> None:
    def clipped(rate: object) -> np.ndarray:
        precond = KFAC(model := tiny_mlp(), damping=1e-3, kl_clip=1e-4, lr=rate(model) if callable(rate) else rate)
        backward(model, *data(12, 4))
        precond.step()
        return flat_gradient(model)

    def group(model: nn.Module, *rates: float) -> torch.optim.Optimizer:
        layers = [{"params": list(layer.parameters()), "lr": rate} for layer, rate in zip((model[0], model[2]), rates)]
        return torch.optim.SGD([one for one in layers if one["lr"]], lr=1.0)

    free = KFAC(model := tiny_mlp(), damping=1e-3)
    backward(model, *data(12, 4))
    gradient = flat_gradient(model)
    free.step()
    natural, split = flat_gradient(model), 15
    parts = (natural * gradient)[:split].sum(), (natural * gradient)[split:].sum()
    for rates in ((0.5, 0.5), (0.5, 0.1), (0.0, 0.5), (0.5, 0.0)):
        factor = np.sqrt(1e-4 / sum(rate**2 * part for rate, part in zip(rates, parts)))
        assert factor < 1
        np.testing.assert_allclose(clipped(lambda m, rates=rates: group(m, *rates)), factor * natural, rtol=1e-9)
    np.testing.assert_allclose(clipped(0.5), clipped(lambda m: group(m, 0.5, 0.5)), rtol=1e-12)


def test_a_model_can_be_copied_in_the_middle_of_a_training_and_the_copy_is_not_observed() -> None:
    """As averages of weights do, after passes have left their traces in the hooks."""

    def weights(copies: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = NaturalSGD(model, lr=0.1)
        x = torch.randn(6, 3)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if copies:
                average = torch.optim.swa_utils.AveragedModel(model)
                average(x).sum().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(one, two) for one, two in zip(weights(False), weights(True)))

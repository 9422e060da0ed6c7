"""The trace by random signs against the exact one, and C(f) against a slow accumulation by hand."""

import copy

import pytest
import torch
from torch import nn

from tangentlab import NTK, LayerCollection, verify
from tangentlab.alignment import LearningFlow, kernel_trace
from tangentlab.errors import InputError
from tests.alignment.linear import network, normal


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(12, 3)
    ).double()


MODELS = {"dense": (network, (5, 3)), "convolutional": (convolutional, (4, 2, 8, 8))}


@pytest.mark.parametrize("name", MODELS)
def test_the_exact_trace_is_that_of_the_kernel(name, seed):
    make, shape = MODELS[name]
    model, inputs = make(), normal(*shape)
    found = kernel_trace(model, [(inputs[:2],), (inputs[2:],)], draws=None)
    assert float(found.estimate) == pytest.approx(float(NTK(model, inputs).trace()), rel=1e-12)
    assert float(found.standard_error) == 0


@pytest.mark.parametrize("name", MODELS)
def test_random_signs_are_unbiased_with_the_stated_variance(name, seed):
    """3000 draws: the mean within 4.5 standard errors, the variance within 12 % of the closed form."""
    make, shape = MODELS[name]
    model, inputs = make(), normal(*shape)
    kernel = NTK(model, inputs).data
    blocks = torch.stack([kernel[:, i, :, i] for i in range(len(inputs))])
    variance = 2 * (blocks.square().sum() - blocks.diagonal(dim1=1, dim2=2).square().sum())
    found = kernel_trace(model, [(inputs[:2],), (inputs[2:],)], draws=3000, generator=seed(3))
    truth = float(NTK(model, inputs).trace())
    assert abs(float(found.estimate) - truth) < 4.5 * float((variance / 3000).sqrt())
    assert float(found.standard_error) == pytest.approx(float((variance / 3000).sqrt()), rel=0.06)


def test_every_draw_is_unbiased_not_only_their_mean():
    """All sign patterns of one example with three outputs, enumerated through the mean over many one-draw calls."""
    model, inputs = network(outputs=1), normal(5, 3)
    for value in range(3):  # one output: exact with one draw
        found = kernel_trace(model, inputs, generator=torch.Generator().manual_seed(value))
        assert float(found.estimate) == pytest.approx(float(NTK(model, inputs).trace()), rel=1e-12)
    assert found.matvecs == 1 and float(found.standard_error) == torch.inf


def test_one_draw_is_one_backward_pass():
    model, inputs = network(), normal(5, 3)
    count = 0

    def passed(grad):
        nonlocal count
        count += 1

    def forward(net, batch):
        out = net(batch)
        if out.requires_grad:
            out.register_hook(passed)
        return out

    with verify(False):
        kernel_trace(model, inputs, forward=forward)
        assert count == 1


def trained(flow=None, steps=7, dropout=False):
    """Momentum SGD; the parameters along the way."""
    torch.manual_seed(1)
    model = network(width=9)
    if dropout:
        model.insert(2, nn.Dropout(0.3))
    inputs, targets = normal(12, 3, seed=5), normal(12, 2, seed=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    meter = flow(model) if flow else None
    path = [copy.deepcopy(model)]
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        if meter:
            meter.update()
        path.append(copy.deepcopy(model))
    return path, meter


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("every", [1, 3])
def test_both_forms_of_the_complexity_are_their_sums(every):
    probe = normal(4, 3, seed=8)
    path, meter = trained(lambda model: LearningFlow(model, probe, every=every, draws=None))
    norms = [float(NTK(model, probe).trace()) ** 0.5 for model in path]
    steps = [float((flat(b) - flat(a)).norm()) for a, b in zip(path, path[1:])]
    expected = sum(step * norms[t - t % every] for t, step in enumerate(steps))
    assert meter.complexity == pytest.approx(expected, rel=1e-10)
    logged = sorted({*range(0, 8, every), 7})
    jumps = [float((flat(path[b]) - flat(path[a])).norm()) * norms[a] for a, b in zip(logged, logged[1:])]
    assert meter.complexity_between_logs == pytest.approx(sum(jumps), rel=1e-10)
    assert meter.path_length == pytest.approx(sum(steps), rel=1e-12) and meter.steps == 7
    if every == 1:
        assert meter.complexity == pytest.approx(meter.complexity_between_logs, rel=1e-12)
    else:
        assert meter.complexity_between_logs < meter.complexity


def test_training_goes_on_bit_for_bit_as_without_it():
    probe = normal(4, 3, seed=8)
    for dropout in (False, True):
        plain = trained(dropout=dropout)[0][-1]
        state = torch.get_rng_state()
        watched = trained(lambda model: LearningFlow(model, probe, every=2), dropout=dropout)[0][-1]
        assert torch.equal(flat(plain), flat(watched))
        assert torch.equal(state, torch.get_rng_state())
        assert all(module.training for module in watched.modules())


def test_random_signs_give_the_complexity_up_to_their_error():
    """Relative error of one draw per step, over 40 steps of 4 examples and 2 outputs."""
    probe = normal(4, 3, seed=8)
    exact = trained(lambda model: LearningFlow(model, probe, draws=None), steps=40)[1]
    drawn = trained(lambda model: LearningFlow(model, probe, draws=4, seed=1), steps=40)[1]
    assert drawn.complexity == pytest.approx(exact.complexity, rel=0.05)


def test_some_layers_only_and_wrong_counts():
    model, inputs = network(), normal(5, 3)
    part = kernel_trace(model, inputs, draws=None, layers=model[2])
    assert float(part.estimate) == pytest.approx(float(NTK(model, inputs, layers=model[2]).trace()), rel=1e-12)
    meter = LearningFlow(model, inputs, draws=None, layers=LayerCollection.from_model(model, model[2]))
    assert meter.feature_norm == pytest.approx(float(part.estimate) ** 0.5, rel=1e-12)
    with pytest.raises(InputError, match="every"):
        LearningFlow(model, inputs, every=0)
    with pytest.raises(InputError, match="draws"):
        kernel_trace(model, inputs, draws=0)


@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_that_are_frozen_or_unfrozen_on_the_way_are_refused(frozen, seed):
    model = network()
    first = next(model.parameters()).requires_grad_(frozen)
    flow = LearningFlow(model, normal(5, 3))
    flow.update()
    first.requires_grad_(not frozen)
    with pytest.raises(InputError, match="frozen or unfrozen"):
        flow.update()

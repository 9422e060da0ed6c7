"""Training goes on bit for bit as without the recorder, also when a snapshot fails."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.recorder import TangentRecorder
from tangentlab.recorder.isolation import undisturbed
from tests.recorder.trainings import STEADY, convolutional, probes, train


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list:
    """All that training depends on, as comparable values."""
    tensors = list(model.state_dict().values())
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*tensors, *momenta, *gradients, torch.get_rng_state()]


def same(one: list, two: list) -> bool:
    pairs = list(zip(one, two, strict=True))
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


def trained(steps: int = 12, **recording) -> tuple[list, nn.Module]:
    """The end of a training with dropout and batch norm, recorded or not."""
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    model = convolutional()
    model[1].eval()
    torch.manual_seed(8)
    if recording:
        recorder = TangentRecorder(model, probes(), **STEADY, **recording)
        with recorder:
            optimizer = train(model, steps, recorder)
        assert [row["step"] for row in recorder.snapshots][-1] == steps
    else:
        optimizer = train(model, steps)
    return [*everything(model, optimizer), torch.tensor([random.random(), np.random.rand()])], model


def test_weights_buffers_momenta_gradients_and_random_states_are_those_of_a_training_without_it():
    plain, _ = trained()
    recorded, _ = trained(schedule=1, measures=None)
    assert same(plain, recorded)


def test_weights_are_others_when_something_does_disturb():
    """The comparison above can fail: a change in the last digits is seen."""
    plain, _ = trained()

    def careless(view):
        view.model[0].weight.data.mul_(1 + 1e-6)
        return {}

    disturbed, _ = trained(schedule=4, measures=[careless])
    assert not same(plain, disturbed)


class Broken(Exception):
    pass


def test_a_snapshot_that_fails_leaves_training_alone_and_is_noted():
    plain, _ = trained()

    def rude(view):
        """Does everything wrong, then fails."""
        view.model.train()
        view.model[0].register_forward_hook(lambda *_: None)
        view.model(view.batch[0]).sum().backward()
        for parameter in view.model.parameters():
            parameter.requires_grad_(not parameter.requires_grad)
        torch.rand(3), random.random(), np.random.rand()
        if view.step:
            raise Broken("no luck")
        return {}

    with pytest.warns(RuntimeWarning, match="no luck"):
        recorded, model = trained(schedule=1, measures=["performance", rude])
    assert same(plain, recorded)
    assert not model[0]._forward_hooks
    assert [parameter.requires_grad for parameter in model[3].parameters()] == [True, False]
    assert model[0].training and not model[1].training


def test_modes_flags_hooks_and_gradients_come_back_also_after_an_exception():
    model = convolutional()
    model[4].eval()
    kept = model[0].register_forward_hook(lambda *_: None)
    model(torch.randn(3, 1, 6, 6)).sum().backward()
    modes = [module.training for module in model.modules()]
    gradients = [parameter.grad for parameter in model.parameters()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    copies = [None if g is None else g.clone() for g in gradients]
    with pytest.raises(Broken), undisturbed(model):
        assert not any(module.training for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
        model[3].weight.requires_grad_(False)
        model(torch.randn(3, 1, 6, 6)).sum().backward()
        model[2].register_forward_hook(lambda *_: None)
        raise Broken
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(a is p.grad for a, p in zip(gradients, model.parameters()))
    assert all(a is None or torch.equal(a, b) for a, b in zip(gradients, copies))
    assert list(model[0]._forward_hooks) == [kept.id] and not model[2]._forward_hooks


def test_hooks_on_gradients_are_not_called_and_come_back_also_after_an_exception():
    model, calls = convolutional(), []
    weight, bias = model[0].weight, model[0].bias
    weight.register_hook(lambda gradient: calls.append("weight"))
    handle = weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
    with pytest.raises(Broken), undisturbed(model):
        model(torch.randn(3, 1, 6, 6)).sum().backward()
        bias.register_hook(lambda gradient: calls.append("of the look"))
        raise Broken
    assert calls == []
    model(torch.randn(3, 1, 6, 6)).sum().backward()
    assert calls == ["weight", "accumulated"]
    handle.remove()
    model(torch.randn(3, 1, 6, 6)).sum().backward()
    assert calls == ["weight", "accumulated", "weight"]


def test_hooks_that_clip_gradients_do_not_change_the_curvature():
    model = convolutional()

    def found():
        recorder = TangentRecorder(model, probes(), measures=["curvature"], **STEADY)
        recorder.start()
        return recorder.snapshots[0]["values"]

    expected = found()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    assert found() == expected


def test_batch_norm_statistics_and_dropout_masks_do_not_notice():
    model = convolutional()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recorder = TangentRecorder(model, probes(), **STEADY)
    torch.manual_seed(3)
    expected = nn.functional.dropout(torch.ones(50))
    torch.manual_seed(3)
    recorder.start()
    assert torch.equal(nn.functional.dropout(torch.ones(50)), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_tensor_of_the_training_graph_is_touched():
    """A snapshot between forward and backward does not break the backward."""
    model = convolutional()
    x = torch.randn(8, 1, 6, 6)
    torch.manual_seed(0)
    model(x).square().sum().backward()
    expected = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    recorder = TangentRecorder(model, probes(), **STEADY)
    statistics = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    loss = model(x).square().sum()
    recorder.start()
    loss.backward()
    assert all(e is None or torch.allclose(e, p.grad, rtol=1e-5) for e, p in zip(expected, model.parameters()))
    assert not torch.equal(model[1].running_mean, statistics["1.running_mean"])


def test_autocast_of_the_user_does_not_reach_the_kernels():
    model, data = convolutional(), probes()
    plain = TangentRecorder(model, data, **STEADY, measures=["spectrum"])
    plain.start()
    cast = TangentRecorder(model, data, **STEADY, measures=["spectrum"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast.start()
        assert torch.is_autocast_enabled("cpu")
    assert cast.snapshots[0]["values"] == plain.snapshots[0]["values"]


def test_under_no_grad_gradients_are_taken_and_stay_off_outside():
    recorder = TangentRecorder(convolutional(), probes(), **STEADY)
    with torch.no_grad():
        recorder.start()
        assert not torch.is_grad_enabled()
    assert recorder.snapshots[0]["values"]["train/max"] > 0


def test_wrappers_are_taken_off():
    model = convolutional()
    assert TangentRecorder(nn.DataParallel(model), probes(), **STEADY).model is model
    compiled = torch.compile(model, backend="eager")
    recorder = TangentRecorder(compiled, probes(), **STEADY)
    recorder.start()
    assert recorder.model is model and "train/layer/0" in recorder.snapshots[0]["values"]

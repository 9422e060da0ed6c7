"""The training loop: deterministic, resumable at every step, with callbacks that fire when they should."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tangentlab.bench import course as course_module
from tangentlab.bench.errors import RunStopped
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.row_files import read_rows
from tangentlab.bench.runner import make_config
from tangentlab.errors import InputError
from tangentlab.experiments import (
    Lab,
    Minibatches,
    OnPeriod,
    OnProgress,
    OnSteps,
    Training,
    find,
    geometric_steps,
    train,
)

X = torch.linspace(-1, 1, 20)[:, None]
Y = torch.sin(3 * X)


def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.double().flatten() for value in model.state_dict().values()])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    kind = find("toy-training")
    return RunFolder.create(tmp_path, make_config(kind.at("smoke"), "smoke"))


def lab_in(folder: RunFolder, stopping: Callable[[], bool] = lambda: False) -> Lab:
    return Lab(find("toy-training").at("smoke"), folder, 0, stopping=stopping)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("moment", [0, 1, 7, 11])
def test_a_training_stopped_at_any_step_goes_on_bit_for_bit(folder: RunFolder, optimizer: str, moment: int):
    def run(lab: Lab | None, log: list[float]) -> nn.Module:
        net = network()
        chosen = OPTIMIZERS[optimizer](net.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(chosen, 3, 0.5)
        train(
            net,
            Minibatches((X, Y), 6, seed=1),
            squared,
            chosen,
            12,
            lab=lab,
            parts={"schedule": schedule},
            after_update=lambda training: schedule.step(),
            callbacks=[OnPeriod(1, lambda training: log.append(training.loss))],
            checkpoint_seconds=1e9,
        )
        return net

    undisturbed: list[float] = []
    reference = weights(run(None, undisturbed))
    log: list[float] = []
    with pytest.raises(RunStopped):
        run(lab_in(folder, lambda: len(log) > moment), log)
    torch.manual_seed(999)  # what happened in between must not matter
    assert torch.equal(weights(run(lab_in(folder), log)), reference)
    assert str(log) == str(undisturbed)


def test_a_finished_training_is_restored_and_not_repeated(folder: RunFolder):
    calls: list[int] = []

    def run() -> Training:
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        record = OnPeriod(1, lambda training: calls.append(training.step))
        return train(net, Minibatches((X, Y), 5, 0), squared, optimizer, 4, lab=lab_in(folder), callbacks=[record])

    first, again = run(), run()
    assert calls == [0, 1, 2, 3, 4] and again.step == 4 and again.seconds == first.seconds
    assert torch.equal(weights(first.model), weights(again.model))


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    def once(seed: int) -> Tensor:
        net = network()
        train(net, Minibatches((X, Y), 6, seed), squared, torch.optim.SGD(net.parameters(), lr=0.1), 9)
        return weights(net)

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = once(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(77)
    assert torch.equal(once(1), first) and not torch.equal(once(2), first)


def test_the_log_of_a_stopped_training_continues_without_a_gap_or_a_double(folder: RunFolder):
    def run(lab: Lab) -> None:
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        log = OnPeriod(1, lambda training: lab.log("loss", step=training.step, loss=training.loss))
        train(net, Minibatches((X, Y), 5, 0), squared, optimizer, 10, lab=lab, callbacks=[log], checkpoint_seconds=1e9)

    for moment in (3, 6):
        with pytest.raises(RunStopped):
            run(lab_in(folder, lambda m=moment: len(read_rows(folder.metrics_file)) >= m))
    run(lab_in(folder))
    assert [row["step"] for row in read_rows(folder.metrics_file)] == list(range(11))


def test_callbacks_fire_at_their_steps_with_step_0_before_any_update():
    net, seen = network(), {"at": [], "every": [], "last": []}
    before = weights(net)
    callbacks = [
        OnSteps((0, 3), lambda training: seen["at"].append((training.step, torch.equal(weights(net), before)))),
        OnPeriod(4, lambda training: seen["every"].append(training.step)),
        OnSteps((), lambda training: seen["last"].append(training.step), last=True),
    ]
    train(net, Minibatches((X, Y), 5, 0), squared, torch.optim.SGD(net.parameters(), lr=0.1), 10, callbacks=callbacks)
    assert seen == {"at": [(0, True), (3, False)], "every": [0, 4, 8, 10], "last": [10]}


@pytest.mark.parametrize("falling", [True, False])
def test_progress_thresholds_fire_once_each_in_the_order_in_which_they_are_met(falling: bool):
    values = [9, 8, 8.5, 3, 7, 1, 0] if falling else [0, 1, 0.5, 6, 2, 8, 9]
    thresholds, net, calls = ((5.0, 8.0, 4.0), network(), []) if falling else ((5.0, 1.0, 6.0), network(), [])
    progress = OnProgress(
        lambda training: values[training.step], thresholds, lambda t, at: calls.append((t.step, at)), falling=falling
    )
    train(net, Minibatches((X, Y), 5, 0), squared, torch.optim.SGD(net.parameters(), lr=0), 6, callbacks=[progress])
    assert calls == ([(1, 8.0), (3, 5.0), (3, 4.0)] if falling else [(1, 1.0), (3, 5.0), (3, 6.0)])
    assert progress.reached == {at: step for step, at in calls}


def test_progress_is_not_measured_any_more_once_every_threshold_is_met():
    net, measured = network(), []
    progress = OnProgress(lambda training: measured.append(training.step) or 0.0, (1.0,), lambda t, at: None, period=3)
    train(net, Minibatches((X, Y), 5, 0), squared, torch.optim.SGD(net.parameters(), lr=0.1), 9, callbacks=[progress])
    assert measured == [0]


def test_a_callback_can_stop_the_training():
    net = network()
    stop = OnSteps((4,), lambda training: training.stop())
    done = train(
        net, Minibatches((X, Y), 5, 0), squared, torch.optim.SGD(net.parameters(), lr=0.1), 10, callbacks=[stop]
    )
    assert done.step == 4 and done.stopped


def test_a_loss_that_is_not_finite_ends_the_training_with_the_last_good_weights():
    net, steps = network(), []

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return squared(model, batch) * (math.inf if len(steps) == 4 else 1)

    record = OnPeriod(1, lambda training: steps.append(training.step))
    done = train(
        net, Minibatches((X, Y), 5, 0), loss, torch.optim.SGD(net.parameters(), lr=0.1), 10, callbacks=[record]
    )
    assert done.diverged and done.step == 3 and steps == [0, 1, 2, 3]
    assert weights(net).isfinite().all()


def test_the_clock_counts_updates_and_not_callbacks():
    net = network()
    slow = OnPeriod(1, lambda training: __import__("time").sleep(0.05))
    done = train(
        net, Minibatches((X, Y), 5, 0), squared, torch.optim.SGD(net.parameters(), lr=0.1), 5, callbacks=[slow]
    )
    assert 0 < done.seconds < 0.15


@pytest.mark.parametrize(("threads", "expected"), [(1, "thread_time"), (2, "perf_counter")])
def test_the_clock_of_a_single_thread_is_its_own_computing_time(
    monkeypatch: pytest.MonkeyPatch, threads: int, expected: str
):
    readings = {"thread_time": 3.0, "perf_counter": 4.0}
    for name, value in readings.items():
        monkeypatch.setattr(course_module.time, name, lambda value=value: value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert course_module.clock() == readings[expected]


def test_an_epoch_shows_every_example_once_and_the_order_changes_between_epochs():
    batches = Minibatches((torch.arange(20), torch.arange(20)), 5, seed=3)
    epochs = [torch.cat([batches.at(4 * epoch + k)[0] for k in range(4)]) for epoch in range(2)]
    assert all(sorted(epoch.tolist()) == list(range(20)) for epoch in epochs)
    assert not torch.equal(*epochs)


def test_batch_k_depends_on_the_seed_and_on_k_alone():
    one, other = Minibatches((X,), 6, 3), Minibatches((X,), 6, 3)
    for k in (7, 0, 3):
        one.at(k)
    assert torch.equal(one.at(5)[0], other.at(5)[0])
    assert not torch.equal(one.at(5)[0], Minibatches((X,), 6, 4).at(5)[0])


def test_augmentation_repeats_with_the_step():
    def noisy(batch: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
        return (batch[0] + torch.randn(batch[0].shape, generator=generator),)

    batches = Minibatches((X,), 6, 3, augment=noisy)
    assert torch.equal(batches.at(2)[0], batches.at(2)[0]) and not torch.equal(batches.at(2)[0], batches.at(3)[0])


def test_a_batch_larger_than_the_data_is_refused_and_none_means_all():
    with pytest.raises(InputError, match="21 examples cannot be made from 20"):
        Minibatches((X,), 21, 0)
    assert torch.equal(Minibatches((X,), None, 0).at(9)[0], X)


def test_geometric_steps_are_dense_at_the_start_and_end_at_the_last():
    steps = geometric_steps(400)
    assert steps[:4] == [0, 5, 6, 7] and steps[-1] == 400 and steps == sorted(set(steps))
    assert all(b - a <= 0.16 * a + 1 for a, b in zip(steps[1:-1], steps[2:]))

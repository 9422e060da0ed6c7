"""Information stopping: what it measures, when it stops, what it gives back, and that it leaves the training alone."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.recorder import InformationStopping, Patience

N, CLASSES = 60, 3


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, 5, generator=generator), torch.randint(CLASSES, (N,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def test_the_error_is_that_in_the_leading_directions_of_the_initial_trace_kernel():
    model, (x, y) = network(), data()
    stopping = InformationStopping(model, (x, y), r=4)
    model.eval()
    vectors = torch.linalg.eigh(NTK(model, x, outputs="trace").matrix().double())[1][:, -4:]
    with torch.no_grad():
        residual = model(x).softmax(1).double() - torch.eye(CLASSES, dtype=torch.float64)[y]
    assert stopping.history[0] == (0, pytest.approx(float((vectors.T @ residual).norm()), rel=1e-4))


def test_patience_is_a_share_of_the_elapsed_steps():
    rule = Patience(0.5, least=10)
    assert rule.improved(0, 5.0) and rule.improved(4, 3.0) and not rule.improved(6, 3.0)
    assert [rule.exhausted(step) for step in (7, 8, 9, 10)] == [False, False, False, True]
    assert rule.improved(12, 2.0) and not rule.exhausted(23) and rule.exhausted(24)
    for share in (0.0, 1.0):
        with pytest.raises(InputError, match="share"):
            Patience(share)


def test_it_stops_after_the_least_error_and_gives_that_model_back():
    model, (x, y) = network(), data()
    stopping = InformationStopping(model, (x, y), r=3, least=4, schedule=1)
    better, states = [3.0, 2.0, 1.0, 4.0, 5.0, 6.0, 7.0], []
    stopping.rule.best_value = 10.0
    stopping.space = SimpleNamespace(
        split=lambda _: SimpleNamespace(information=torch.tensor(better[stopping.steps - 1]))
    )
    while True:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        states.append(model[0].bias.detach().clone())
        if stopping.step():
            break
    assert stopping.steps == 6 and stopping.best_step == 3
    stopping.restore()
    assert torch.equal(model[0].bias, states[2])


def test_an_error_that_is_not_a_number_stops():
    model, (x, y) = network(), data()
    stopping = InformationStopping(model, (x, y), r=3, schedule=1)
    with torch.no_grad():
        model[0].bias.fill_(torch.nan)
    assert stopping.step()
    stopping.restore()
    assert bool(torch.isfinite(model[0].bias).all())


def test_a_training_with_it_is_the_same_as_without():
    def trained(watch: bool):
        model, (x, y) = network(), data()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        stopping = InformationStopping(model, (x, y), r=5, schedule=2, least=1000) if watch else None
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if stopping is not None:
                stopping.step()
        assert model.training
        return model.state_dict()

    plain, watched = trained(False), trained(True)
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_it_goes_on_from_its_state():
    model, (x, y) = network(), data()
    one = InformationStopping(model, (x, y), r=5, schedule=1)
    one.step()
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    other = InformationStopping(model, (x, y), r=5, schedule=1)
    other.load_state_dict(one.state_dict())
    assert (one.step(), one.history) == (other.step(), other.history)


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_data_may_be_a_loader_or_a_dataset(kind: str):
    dataset = TensorDataset(*data())
    stopping = InformationStopping(
        network(), DataLoader(dataset, 16) if kind == "loader" else dataset, r=4, examples=20
    )
    assert stopping.residual().shape[0] == CLASSES


def test_wrong_arguments_are_refused_in_words():
    x, y = data()
    with pytest.raises(InputError, match="labels"):
        InformationStopping(network(), x)
    with pytest.raises(InputError, match="r must be"):
        InformationStopping(network(), (x, y), r=N + 1)


def test_lightning_stops_and_ends_with_the_best_weights(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    x, y = data()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, inputs):
            return self.net(inputs)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    stopping = InformationStopping(module, (x, y), r=3, schedule=1, least=6)
    stopping.rule.best_value = 0.0  # nothing is better than the start
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        callbacks=[stopping.lightning_callback()],
    )
    start = {name: value.clone() for name, value in module.state_dict().items()}
    trainer.fit(module, DataLoader(TensorDataset(x, y), 10))
    assert trainer.global_step == 6
    assert all(torch.equal(start[name], value) for name, value in module.state_dict().items())


def test_the_trainer_of_hugging_face_is_told_to_stop(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    model, (x, y) = network(), data()
    stopping = InformationStopping(model, (x, y), r=3, schedule=1, least=2)
    stopping.rule.best_value = 0.0
    callback = stopping.hugging_face_callback()
    control, state = SimpleNamespace(should_training_stop=False), SimpleNamespace(global_step=0)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(None, state, control)
    assert not control.should_training_stop
    callback.on_step_end(None, state, control)
    assert control.should_training_stop


def test_events_of_lightning_count_updates_and_end_with_the_best_weights(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=object))
    model, (x, y) = network(), data()
    start = model[0].weight.detach().clone()
    stopping = InformationStopping(model, (x, y), r=3, schedule=1, least=2)
    stopping.rule.best_value = 0.0
    callback, trainer = stopping.lightning_callback(), SimpleNamespace(global_step=0, should_stop=False)
    callback.on_train_start(trainer, model)
    for step in (1, 1, 2):  # the second batch is accumulated
        trainer.global_step = step
        with torch.no_grad():
            model[0].weight.add_(1.0)
        assert not trainer.should_stop
        callback.on_train_batch_end(trainer, model, None, None, 0)
    assert trainer.should_stop and stopping.steps == 2
    callback.load_state_dict(callback.state_dict())
    callback.on_train_end(trainer, model)
    assert torch.equal(model[0].weight, start)

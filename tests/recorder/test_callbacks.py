"""The recorder in the trainers of others: with the packages where they are installed, else by their documented protocol."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tangentlab.errors import InputError
from tangentlab.recorder import Recording, TangentRecorder
from tests.recorder.trainings import STEADY, convolutional, digits_like, probes


def make_recorder(model, folder=None, **options):
    return TangentRecorder(model, probes(), schedule=2, folder=folder, **{**STEADY, **options})


# ---------------------------------------------------------------- protocols, with stand-ins for the packages


@pytest.fixture
def fake_lightning(monkeypatch):
    package, inner = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    inner.Callback = type("Callback", (), {})
    package.pytorch = inner
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", inner)


class FakeTrainer:
    def __init__(self, total):
        self.estimated_stepping_batches, self.global_step, self.is_global_zero = total, 0, True


def fake_fit(callback, model, batches, accumulate=1, begin=0, total=6):
    trainer = FakeTrainer(total)
    trainer.global_step = begin
    callback.on_train_start(trainer, model)
    x, y = digits_like(60)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(batches):
        loss = nn.functional.cross_entropy(model(x[:16]), y[:16])
        loss.backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, {"loss": loss}, None, number)
    callback.on_train_end(trainer, model)


@pytest.mark.usefixtures("fake_lightning")
def test_lightning_counts_updates_not_batches_and_knows_the_length():
    model = convolutional()
    recorder = make_recorder(model)
    fake_fit(recorder.lightning_callback(), model, 10, accumulate=2, total=5)
    assert recorder.steps == 5 and recorder.total_steps == 5
    assert [row["step"] for row in recorder.snapshots] == [0, 2, 4, 5]
    assert recorder.snapshots[1]["scalars"]["loss"] > 0


@pytest.mark.usefixtures("fake_lightning")
def test_lightning_without_a_known_length_and_in_other_processes():
    model = convolutional()
    recorder = make_recorder(model)
    fake_fit(recorder.lightning_callback(), model, 3, total=float("inf"))
    assert recorder.total_steps is None and recorder.steps == 3
    silent = make_recorder(model)
    callback, trainer = silent.lightning_callback(), FakeTrainer(3)
    trainer.is_global_zero = False
    callback.on_train_start(trainer, model)
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, model, None, None, 0)
    callback.on_train_end(trainer, model)
    assert not silent.rows


@pytest.mark.usefixtures("fake_lightning")
def test_lightning_takes_the_state_through_its_checkpoints(tmp_path):
    model = convolutional()
    first = make_recorder(model, tmp_path)
    callback = first.lightning_callback()
    fake_fit(callback, model, 2, total=2)
    state = callback.state_dict()
    second = make_recorder(model, tmp_path)
    callback = second.lightning_callback()
    callback.load_state_dict(state)
    fake_fit(callback, model, 2, begin=2, total=4)
    assert [row["step"] for row in second.snapshots] == [0, 2, 4]
    callback.on_exception(None, None, KeyboardInterrupt())


def test_without_the_packages_the_way_to_get_them_is_named(monkeypatch):
    recorder = make_recorder(convolutional())
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"tangentlab\[lightning\]"):
        recorder.lightning_callback()
    with pytest.raises(InputError, match=r"tangentlab\[transformers\]"):
        recorder.hugging_face_callback()


@pytest.fixture
def fake_transformers(monkeypatch):
    package = types.ModuleType("transformers")
    package.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", package)


class FakeState:
    def __init__(self, step, total):
        self.global_step, self.max_steps, self.is_world_process_zero = step, total, True


def fake_train(callback, folder, begin, steps):
    arguments, state = types.SimpleNamespace(output_dir=str(folder)), FakeState(begin, 6)
    callback.on_train_begin(arguments, state, None)
    for _ in range(steps):
        state.global_step += 1
        callback.on_step_end(arguments, state, None)
        callback.on_log(arguments, state, None, logs={"loss": 1.0 / state.global_step, "epoch": 0.5})
        if state.global_step == 3:
            (folder / "checkpoint-3").mkdir()
            callback.on_save(arguments, state, None)
    if state.global_step == 6:
        callback.on_train_end(arguments, state, None)


@pytest.mark.usefixtures("fake_transformers")
def test_hugging_face_saves_beside_the_checkpoint_and_resumes_from_it(tmp_path):
    model = convolutional()
    first = make_recorder(model, tmp_path / "recording")
    fake_train(first.hugging_face_callback(), tmp_path, 0, 5)
    second = make_recorder(model, tmp_path / "recording")
    fake_train(second.hugging_face_callback(), tmp_path, 3, 3)
    assert [row["step"] for row in second.snapshots] == [0, 2, 4, 6]
    assert second.total_steps == 6
    assert second.snapshots[-1]["scalars"] == {"loss": pytest.approx(0.2)}
    assert [row["step"] for row in second.rows if row["kind"] == "resumed"] == [3]


@pytest.mark.usefixtures("fake_lightning")
def test_lightning_without_a_state_is_joined_at_its_step():
    model = convolutional()
    recorder = make_recorder(model)
    fake_fit(recorder.lightning_callback(), model, 5, begin=500, total=505)
    assert [row["step"] for row in recorder.snapshots] == [500, 502, 504, 505]
    assert [(row["kind"], row["step"]) for row in recorder.recording.events] == [("joined", 500)]
    assert "step 500" in recorder.recording.events[0]["text"]


@pytest.mark.usefixtures("fake_transformers")
def test_hugging_face_without_a_state_is_joined_at_its_step(tmp_path):
    model = convolutional()
    recorder = make_recorder(model, tmp_path / "recording")
    fake_train(recorder.hugging_face_callback(), tmp_path, 3, 3)
    assert [row["step"] for row in recorder.snapshots] == [3, 4, 6]
    assert [(row["kind"], row["step"]) for row in Recording.load(tmp_path / "recording").events] == [("joined", 3)]


# ---------------------------------------------------------------- the packages themselves


def test_a_fit_of_lightning_ends_with_the_weights_of_one_without_recorder(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = convolutional()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)

    def fit(record, epochs=2, checkpoint=None):
        torch.manual_seed(0)
        module = Module()
        recorder = make_recorder(module, tmp_path / "recording") if record else None
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
            callbacks=[recorder.lightning_callback()] if record else [],
        )
        torch.manual_seed(1)
        trainer.fit(module, DataLoader(TensorDataset(*digits_like(48)), 16, shuffle=True), ckpt_path=checkpoint)
        if record:
            trainer.save_checkpoint(tmp_path / "kept.ckpt")
        return module, recorder

    plain, _ = fit(False)
    recorded, recorder = fit(True)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), recorded.state_dict().values()))
    assert [row["step"] for row in recorder.snapshots] == [0, 2, 4, 6]
    _, resumed = fit(True, epochs=3, checkpoint=tmp_path / "kept.ckpt")
    assert [row["step"] for row in resumed.snapshots] == [0, 2, 4, 6, 8, 9]


def test_a_trainer_of_hugging_face_ends_with_the_weights_of_one_without_recorder(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(vocab_size=13, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    tokens = torch.randint(0, 13, (32, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    probe = {"input_ids": tokens[:12, :-1], "labels": tokens[:12, 1:]}

    def fit(name, record, steps=4, resume=None):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        recorder = None
        if record:
            recorder = TangentRecorder(
                model, {"train": probe}, schedule=2, size=(12, 4), folder=tmp_path / "recording", strict=True, **STEADY
            )
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / name),
            max_steps=steps,
            per_device_train_batch_size=8,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=5,
        )
        callbacks = [recorder.hugging_face_callback()] if record else []
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return model, recorder

    plain, _ = fit("plain", False)
    recorded, recorder = fit("recorded", True)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), recorded.state_dict().values()))
    assert [row["step"] for row in recorder.snapshots] == [0, 2, 4]
    assert recorder.snapshots[-1]["scalars"]["loss"] > 0
    _, resumed = fit("recorded", True, steps=6, resume=str(tmp_path / "recorded" / "checkpoint-3"))
    assert [row["step"] for row in resumed.snapshots] == [0, 2, 4, 6]

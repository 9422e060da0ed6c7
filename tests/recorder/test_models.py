"""Any model: tokens, recurrences, frozen parameters, dict batches, loaders, odd outputs."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tangentlab import NTK
from tangentlab.alignment import label_alignment
from tangentlab.errors import InputError
from tangentlab.models import GPT, LSTMClassifier
from tangentlab.recorder import TangentRecorder
from tests.recorder.trainings import STEADY, convolutional, dense, digits_like, probes, train


def steps_of(model, batch, recorder, loss, count=3):
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with recorder:
        for _ in range(count):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            recorder.step(loss=value)
    return recorder.snapshots


def test_a_language_model_on_dict_batches():
    torch.manual_seed(0)
    model = GPT(11, context=6, n_layers=1, n_heads=2, width=8)
    tokens = torch.randint(0, 11, (16, 7))
    batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:].clone()}
    batch["labels"][0, 0] = -100
    recorder = TangentRecorder(model, {"train": batch}, schedule=1, size=(12, 5), **STEADY)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    rows = steps_of(model, batch, recorder, loss)
    assert len(rows) == 4 and all(not row["problems"] for row in rows)
    assert (rows[0]["examples"], rows[0]["outputs"]) == (12, 5)
    values = rows[-1]["values"]
    assert values["train/cka"] > 0 and values["train/layer/token"] > 0 and 0 < values["train/ntk_similarity"] < 1
    view = recorder._observer.probes["train"].batch
    kernel = NTK(model, view, outputs=recorder._observer.outputs)
    index = torch.tensor(recorder._observer.outputs)
    targets = (view["labels"][:, index // 11] == index % 11).double()
    assert values["train/cka"] == pytest.approx(label_alignment(kernel, targets, "per_output"), rel=1e-4)


def test_a_recurrent_classifier():
    torch.manual_seed(0)
    model = LSTMClassifier(3, hidden=5, vocab_size=7, input_size=4)
    batch = (torch.randint(0, 7, (10, 4)), torch.randint(0, 3, (10,)))
    recorder = TangentRecorder(model, {"train": batch}, schedule=1, **STEADY)
    rows = steps_of(model, batch, recorder, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))
    assert all(not row["problems"] for row in rows)
    assert {"train/layer/embedding", "train/layer/lstm", "train/layer/head"} <= rows[-1]["values"].keys()
    assert rows[-1]["values"]["train/hessian_trace"] == pytest.approx(rows[-1]["values"]["train/hessian_trace"])


def test_frozen_parameters_have_no_features_and_stay_frozen():
    model = dense()
    model[1].weight.requires_grad_(False)
    x, y = digits_like(12)
    recorder = TangentRecorder(model, {"train": (x.double(), y)}, size=(12, None), **STEADY)
    recorder.start()
    x, y = recorder._observer.probes["train"].batch
    kernel = NTK(model, x, layers=["1.bias", "3.weight", "3.bias"])
    assert recorder.snapshots[0]["values"]["feature_norm"] ** 2 == pytest.approx(float(kernel.trace()))
    assert not model[1].weight.requires_grad


def test_a_layer_that_is_unfrozen_on_the_way_joins_the_path_and_the_features():
    model = convolutional()
    model[0].requires_grad_(False)
    recorder = TangentRecorder(model, probes(), schedule=2, **STEADY)
    with recorder:
        train(model, 2, recorder)
        model[0].requires_grad_(True)
        train(model, 2, recorder)
    assert "train/layer/0" not in recorder.snapshots[1]["values"]
    assert recorder.snapshots[-1]["values"]["train/layer/0"] > 0
    assert recorder.snapshots[-1]["values"]["path_length"] > recorder.snapshots[1]["values"]["path_length"]


def test_loaders_give_their_first_batches_and_leave_the_random_state_alone():
    x, y = digits_like(50)
    whole, few = convolutional(), convolutional()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ordered = DataLoader(TensorDataset(x, y), batch_size=8)
    first = TangentRecorder(whole, {"train": ordered}, **STEADY)._observer.probes["train"]
    shuffled = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    other = TangentRecorder(few, {"train": shuffled}, size=(20, 2), **STEADY)
    other.start()
    assert torch.equal(torch.rand(2), expected)
    assert first.examples == 50 and sorted(first.labels.tolist()) == sorted(y.tolist())
    assert other.size.examples == 20


def test_examples_of_a_sorted_batch_are_drawn_by_chance():
    x, y = digits_like(90)
    order = y.argsort()
    recorder = TangentRecorder(convolutional(), {"train": (x[order], y[order])}, size=(30, 3), **STEADY)
    assert len(recorder._observer.probes["train"].labels.unique()) == 3


def test_a_probe_that_is_smaller_than_asked_for_limits_all():
    recorder = TangentRecorder(convolutional(), {"train": digits_like(40), "test": digits_like(7)}, **STEADY)
    assert (recorder.size.examples, recorder.size.outputs) == (7, 3)


def test_functions_and_forwards_of_the_user():
    model = dense()
    x, y = digits_like(12)
    batch = {"picture": x.double(), "answer": y}
    recorder = TangentRecorder(
        model,
        {"train": batch},
        forward=lambda model, batch: model(batch["picture"]),
        function=lambda output, batch: output[:, 1] - output[:, 0],
        measures=["spectrum"],
        **STEADY,
    )
    recorder.start()
    found = recorder._observer.probes["train"].batch["picture"]
    kernel = NTK(model, found, function=lambda o, b: o[:, 1] - o[:, 0], center="per_output")
    assert recorder.snapshots[0]["values"]["train/trace"] == pytest.approx(float(kernel.trace()))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"model": lambda x: x}, "Module"),
        ({"probes": digits_like(4)}, "dict"),
        ({"probes": {}}, "dict"),
        ({"probes": {"a/b": digits_like(4)}}, "slash"),
        ({"probes": {"train": (torch.randn(3, 1, 6, 6), torch.zeros(2))}}, "first axis"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_training(bad, message):
    arguments = {"model": convolutional(), "probes": probes(), **bad}
    with pytest.raises(InputError, match=message):
        TangentRecorder(**arguments)


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(InputError, match="trainable"):
        TangentRecorder(convolutional().requires_grad_(False), probes())


def test_a_first_snapshot_that_fails_raises_at_once():
    recorder = TangentRecorder(convolutional(), {"train": (torch.randn(5, 1, 6, 6), torch.randn(5, 7))}, **STEADY)
    with pytest.raises(Exception, match=r"fit|size|shape"):
        recorder.start()


def test_weights_that_diverge_are_noted_and_training_goes_on():
    model = convolutional()
    recorder = TangentRecorder(model, probes(), schedule=1, **STEADY)
    with recorder, pytest.warns(RuntimeWarning, match="NaN"):
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))
        recorder.step(loss=float("nan"))
        recorder.step()
    assert [row["step"] for row in recorder.snapshots] == [0, 1, 2]
    assert "train/spectrum" in recorder.snapshots[-1]["problems"]


def test_with_strict_it_raises():
    model = convolutional()
    recorder = TangentRecorder(model, probes(), schedule=1, strict=True, **STEADY)
    recorder.start()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    with pytest.raises(ArithmeticError):
        recorder.step()


def test_a_step_before_the_start_says_how_to_start():
    with pytest.raises(InputError, match="with recorder"):
        TangentRecorder(convolutional(), probes()).step()


def test_an_exception_in_training_passes_and_closes_the_files(tmp_path):
    model = convolutional()
    recorder = TangentRecorder(model, probes(), folder=tmp_path, **STEADY)
    with pytest.raises(KeyboardInterrupt), recorder:
        train(model, 1, recorder)
        raise KeyboardInterrupt
    assert [row["step"] for row in recorder.snapshots] == [0] and recorder._ledger.closed


def test_the_cost_is_told_before_anything_is_computed(capsys):
    recorder = TangentRecorder(convolutional(), probes(30), size=(30, None), total_steps=1000)

    def stop(*_, **__):
        assert "30 examples x 3 outputs" in capsys.readouterr().err
        assert recorder.rows[0]["planned_seconds"] > 0
        raise StopIteration

    recorder._observer.look = stop
    with pytest.raises(StopIteration):
        recorder.start()

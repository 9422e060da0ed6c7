"""Labels of every kind: two classes, classes on any axis, real targets, and likelihoods of the user."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tangentlab.engine.likelihood import Binary, Classification, Likelihood, Regression
from tangentlab.errors import InputError
from tangentlab.recorder import TangentRecorder
from tangentlab.recorder.likelihoods import guessed, target_columns
from tests.recorder.test_measures import centred_kernel, jacobian
from tests.recorder.trainings import STEADY


def small(outputs: int, *more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs), *more).double()


def inputs(count: int = 12) -> torch.Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def first_values(model, batch, **options):
    recorder = TangentRecorder(model, {"train": batch}, **{"size": (12, None), **STEADY, **options})
    recorder.start()
    return recorder.snapshots[0]["values"]


def test_targets_as_values_of_outputs():
    labels, classes = torch.tensor([2, 0, -100]), Classification()
    hot = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 0, 0]]).double()
    assert torch.equal(target_columns(labels, torch.Size([3]), [0, 1, 2], classes), hot)
    assert torch.equal(target_columns(labels, torch.Size([3]), [2, 0], classes), hot[:, [2, 0]])
    tokens = torch.tensor([[1, 3], [0, -100]])
    flat = F.one_hot(tokens.clamp_min(0), 4).double() * (tokens >= 0)[..., None]
    found = target_columns(tokens, torch.Size([2, 4]), [7, 1, 0], classes)
    assert torch.equal(found, flat.flatten(1)[:, [7, 1, 0]])
    for two in (torch.tensor([0, 1]), torch.tensor([-1, 1]), torch.tensor([0.0, 1.0]), torch.tensor([False, True])):
        assert target_columns(two, torch.Size([1]), [0], Binary()).flatten().tolist() == [-1, 1]
    assert target_columns(torch.tensor([3, 7]), torch.Size([1]), [0], Regression()).flatten().tolist() == [3, 7]
    real = torch.randn(2, 5)
    assert torch.equal(target_columns(real, torch.Size([5]), [4, 0], Regression()), real[:, [4, 0]].double())
    with pytest.raises(InputError, match="do not fit"):
        target_columns(torch.randn(2, 3), torch.Size([5]), [0], Regression())


@pytest.mark.parametrize(("targets", "outputs"), [("real", 2), ("binary", 1)])
def test_regression_and_two_classes_of_one_output(targets, outputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    x = torch.randn(12, 4, dtype=torch.float64)
    y = torch.randn(12, 2, dtype=torch.float64) if targets == "real" else (x[:, 0] > 0).long()
    recorder = TangentRecorder(model, {"train": (x, y)}, size=(12, None), **STEADY)
    recorder.start()
    values, (x, y) = recorder.snapshots[0]["values"], recorder._observer.probes["train"].batch
    if targets == "real":
        assert values["train/loss"] == pytest.approx(float(0.5 * (model(x) - y).square().sum(1).mean()))
        label = (y - y.mean(0)).flatten()
    else:
        assert values["train/accuracy"] == pytest.approx(float(((model(x)[:, 0] > 0) == (y > 0)).double().mean()))
        signs = 2.0 * y.double() - 1
        label = signs - signs.mean()
    kernel = centred_kernel(jacobian(model, x))
    assert values["train/cka"] == pytest.approx(float(label @ kernel @ label / (kernel.norm() * (label @ label))))
    assert values["train/fisher_trace"] > 0


@pytest.mark.parametrize(
    ("labels", "outputs", "expected"),
    [
        ([torch.tensor([0, 4, 2])], 5, "classification"),
        ([torch.tensor([0, 1, 1])], 5, "classification"),
        ([torch.tensor([0, 1, 1])], 1, "binary"),
        ([torch.tensor([-1, 1])], 1, "binary"),
        ([torch.tensor([0.0, 1.0])], 1, "binary"),
        ([torch.tensor([[0.0, 1.0]])], 2, "binary"),
        ([torch.tensor([[0, 1]])], 2, "binary"),
        ([torch.tensor([0.0, 1.0, 0.5])], 1, "regression"),
        ([torch.tensor([0.0, 1.0]), torch.tensor([2.0])], 1, "regression"),
        ([torch.tensor([[0.0, 1.0]])], 3, "regression"),
    ],
)
def test_labels_suggest_a_likelihood(labels, outputs, expected):
    assert guessed(labels, torch.Size([outputs])).name == expected


def test_without_labels_nothing_is_guessed():
    assert guessed([], torch.Size([3])) is None


@pytest.mark.parametrize("kind", ["0 and 1", "-1 and 1", "bool", "float", "float (n, 1)"])
def test_two_classes_give_the_same_numbers_however_they_are_written(kind):
    """Loss, alignment and Hessian are those of 0 / 1 probabilities."""
    model, x = small(1), inputs()
    y = (x[:, 0] > 0).long()
    labels = {
        "0 and 1": y,
        "-1 and 1": 2 * y - 1,
        "bool": y.bool(),
        "float": y.double(),
        "float (n, 1)": y.double()[:, None],
    }
    values = first_values(model, (x, labels[kind]))
    assert values["train/loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(model(x)[:, 0], y.double())))
    assert values["train/accuracy"] == pytest.approx(float(((model(x)[:, 0] > 0) == y.bool()).double().mean()))
    reference = first_values(model, (x, y.double()), likelihood="binary")
    assert values == pytest.approx(reference)


def test_several_labels_per_example_are_two_classes_each():
    model, x = small(3), inputs()
    y = torch.randint(0, 2, (12, 3), generator=torch.Generator().manual_seed(2))
    truth = F.binary_cross_entropy_with_logits(model(x), y.double(), reduction="none").sum(1).mean()
    for labels in (y, y.double()):
        assert first_values(model, (x, labels))["train/loss"] == pytest.approx(float(truth))


def test_probabilities_as_labels_of_two_classes_are_targets_between_the_signs():
    model, x = small(1), inputs()
    y = torch.linspace(0, 1, 12, dtype=torch.float64)
    recorder = TangentRecorder(model, {"train": (x, y)}, size=(12, None), likelihood="binary", **STEADY)
    recorder.start()
    x, y = recorder._observer.probes["train"].batch
    kernel, label = centred_kernel(jacobian(model, x)), y - y.mean()
    values = recorder.snapshots[0]["values"]
    assert values["train/cka"] == pytest.approx(float(label @ kernel @ label / (kernel.norm() * (label @ label))))
    assert values["train/accuracy"] == pytest.approx(float(((model(x)[:, 0] > 0) == (y > 0.5)).double().mean()))


@pytest.mark.parametrize("targets", [torch.tensor([-1.0, 1.0]), torch.tensor([0, 2])])
def test_the_binary_loss_refuses_targets_that_are_no_probabilities(targets):
    with pytest.raises(InputError, match=r"\[0, 1\].*targets > 0"):
        Binary().loss(torch.zeros(2, 1), targets)
    with pytest.raises(InputError, match="do not fit"):
        Binary().loss(torch.zeros(2, 3), targets)


class Tagger(nn.Module):
    """(n, 2, positions) -> (n, classes, positions), with as many positions as classes, so that axes can be mistaken."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv1d(2, 5, 3, padding=1).double()

    def forward(self, x):
        return {"logits": self.layer(x)}


@pytest.mark.parametrize("likelihood", ["segmentation", Classification(class_axis=1), Classification(class_axis=-2)])
def test_classes_on_another_axis_are_those_of_a_function_that_moves_them_to_the_end(likelihood):
    x = torch.randn(12, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 5, (12, 5), generator=torch.Generator().manual_seed(2))
    found = first_values(Tagger(), (x, y), likelihood=likelihood)
    moved = first_values(Tagger(), (x, y), function=lambda out, batch: out["logits"].movedim(1, -1))
    assert found == moved and {"train/accuracy", "train/cka", "train/hessian_trace"} <= found.keys()
    truth = F.cross_entropy(Tagger()(x)["logits"], y, reduction="none").sum(1).mean()
    assert found["train/loss"] == pytest.approx(float(truth))


def test_a_class_axis_is_that_of_the_function_of_the_user():
    x = torch.randn(12, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 5, (12, 4), generator=torch.Generator().manual_seed(2))
    options = {"function": lambda out, batch: out["logits"][:, :, 1:], "likelihood": "segmentation"}
    truth = F.cross_entropy(Tagger()(x)["logits"][:, :, 1:], y, reduction="none").sum(1).mean()
    assert first_values(Tagger(), (x, y), **options)["train/loss"] == pytest.approx(float(truth))


@pytest.mark.parametrize("axis", [0, -2, 2])
def test_a_class_axis_that_the_outputs_do_not_have_is_refused(axis):
    with pytest.raises(InputError, match="class_axis"):
        first_values(small(3), (inputs(), torch.zeros(12).long()), likelihood=Classification(class_axis=axis))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.full((12,), 3), "0..2"),
        (torch.full((12,), -1), "0..2"),
        (torch.zeros(12, 1).long(), "one per position"),
        (torch.zeros(12, 3), "integers"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        first_values(small(3), (inputs(), labels), likelihood="classification")


class Poisson(Likelihood):
    """Counts with the logarithm of their rate as the only output."""

    name = "poisson"

    def factor_count(self, outputs):
        return 1

    def factor(self, outputs, index):
        return (outputs.detach() / 2).exp()[None]

    def weigh(self, outputs, tangents):
        return outputs.exp() * tangents

    def sample(self, outputs, samples, generator=None):
        return torch.poisson(outputs.exp().expand(samples, *outputs.shape), generator)

    def score(self, outputs, labels):
        return labels - outputs.exp()


def test_a_likelihood_without_a_loss_leaves_the_loss_out_and_says_so_once(capsys):
    model, x = small(1), inputs()
    y = torch.poisson(torch.ones(12, 1).double(), torch.Generator().manual_seed(0))
    recorder = TangentRecorder(model, {"train": (x, y)}, likelihood=Poisson(), schedule=1, max_overhead=100.0)
    with recorder:
        recorder.step()
    values = recorder.snapshots[-1]["values"]
    assert "train/loss" not in values and "train/hessian_trace" not in values
    assert values["train/fisher_trace"] > 0 and values["train/cka"] > 0
    assert capsys.readouterr().err.count("no loss is known") == 1
    assert "no loss and no hessian_trace" in recorder.recording.about["text"]
    assert all(not row["problems"] for row in recorder.snapshots)


def test_log_probabilities_have_an_accuracy():
    model, x = small(3, nn.LogSoftmax(-1)), inputs()
    y = torch.arange(12) % 3
    values = first_values(model, (x, y), likelihood="log_softmax")
    assert values["train/accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
    assert values["train/loss"] == pytest.approx(float(F.nll_loss(model(x), y)))

"""likelihood="model": the loss in a model's own output, per example, and how it relates to the likelihoods by name."""

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.network import Network
from tangentlab.engine.own_loss import ReadLoss, with_loss
from tangentlab.errors import InputError, ModelError

VOCABULARY, LENGTH = 7, 5


@dataclass
class Output:
    """As models of transformers return it."""

    logits: Tensor
    loss: Tensor | None = None


class Causal(nn.Module):
    """A small language model that shifts its labels; `extra` adds to its loss."""

    def __init__(self, extra: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None, smoothing: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, VOCABULARY)
        self.extra, self.smoothing = extra, smoothing

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        hidden = self.embed(input_ids).cumsum(1)
        hidden = torch.tanh(self.mix(hidden))
        logits = self.head(hidden)
        if labels is None:
            return Output(logits)
        shifted = labels[:, 1:].flatten()
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted, label_smoothing=self.smoothing)
        return Output(logits, loss if self.extra is None else loss + self.extra(hidden, logits, labels))


class Headed(nn.Module):
    """A linear network with a loss of its own kind, whose output is a dict."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.loss = nn.Linear(3, 4), nn.Linear(4, outputs), loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.last(torch.tanh(self.first(x)))
        return {"logits": logits, "loss": self.loss(logits, labels)}


class Span(nn.Module):
    """Two kinds of labels under other names, as in question answering."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = nn.Linear(3, 2)

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> dict[str, Tensor]:
        starts, ends = self.ends(x).unbind(-1)
        return {"start_logits": starts, "loss": F.cross_entropy(starts, start) + F.cross_entropy(ends, end)}


def tokens() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (4, LENGTH), generator=generator)
    labels = ids.clone()
    labels[0, :3], labels[2, 4:] = -100, -100
    return {"input_ids": ids, "labels": labels}


def vectors(labels: Tensor) -> dict[str, Tensor]:
    return {"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64), "labels": labels}


def balance(hidden: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    return hidden.square().mean()


def z_loss(hidden: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    return 1e-3 * logits.logsumexp(-1).square().mean()


real = torch.linspace(-1, 1, 8, dtype=torch.float64)
KNOWN: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "next token": (Causal, tokens()),
    "classes": (lambda: Headed(F.cross_entropy, 3), vectors(torch.tensor([0, 2, 1, 1]))),
    "one real target": (lambda: Headed(lambda f, y: F.mse_loss(f.squeeze(-1), y), 1), vectors(real[:4])),
    "real targets": (lambda: Headed(F.mse_loss, 2), vectors(real.reshape(4, 2))),
    "several labels": (
        lambda: Headed(F.binary_cross_entropy_with_logits, 2),
        vectors((real > 0.2).double().reshape(4, 2)),
    ),
}
UNKNOWN: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "a loss of hidden units": (lambda: Causal(balance), tokens()),
    "a further loss of the logits": (lambda: Causal(z_loss), tokens()),
    "label smoothing": (lambda: Causal(smoothing=0.1), tokens()),
    "a little label smoothing": (lambda: Causal(smoothing=1e-7), tokens()),
    "a sum": (lambda: Headed(lambda f, y: F.cross_entropy(f, y, reduction="sum"), 3), vectors(torch.arange(4) % 3)),
    "a mean for four examples only": (
        lambda: Headed(lambda f, y: F.cross_entropy(f, y, reduction="sum") / 4, 3),
        vectors(torch.arange(4) % 3),
    ),
    "huber": (lambda: Headed(F.huber_loss, 2), vectors(3 * real.reshape(4, 2))),
    "other names": (
        Span,
        {"x": torch.randn(4, 6, 3, dtype=torch.float64), "start": torch.arange(4), "end": torch.arange(4)},
    ),
}
ALL = KNOWN | UNKNOWN


def made(case: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(7)
    build, batch = ALL[case]
    return build().double(), batch


def flat(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def example(batch: dict[str, Tensor], n: int) -> dict[str, Tensor]:
    return {key: value[n : n + 1] for key, value in batch.items()}


def own_gradients(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The definition: the gradient of the loss that the model gives for each example alone."""

    def loss(n: int) -> Tensor:
        output = model(**example(batch, n))
        return output["loss"] if isinstance(output, dict) else output.loss

    return torch.stack([flat(model, loss(n)) for n in range(4)])


each = pytest.mark.parametrize("case", list(ALL))


@each
def test_gradients_are_those_of_the_loss_that_the_model_gives_for_the_example_alone(case: str) -> None:
    model, batch = made(case)
    truth = own_gradients(model, batch)
    for data in (
        batch,
        [example(batch, n) for n in range(4)],
        [{k: v[:3] for k, v in batch.items()}, example(batch, 3)],
    ):
        found = tl.per_example_grads(model, data, likelihood="model").flat
        assert torch.allclose(found, truth, rtol=1e-10, atol=1e-12)
    assert torch.allclose(tl.per_example_grads(model, batch, "model").flat, truth, rtol=1e-10, atol=1e-12)


@each
def test_norms_and_matrices_follow_from_these_gradients(case: str) -> None:
    model, batch = made(case)
    truth = own_gradients(model, batch)
    assert torch.allclose(tl.per_example_grad_norms(model, batch, likelihood="model"), truth.norm(dim=1))
    moment = tl.FIM_Empirical(model, batch, likelihood="model").to_dense()
    assert torch.allclose(moment, truth.T @ truth / 4, atol=1e-12)
    diagonal = tl.FIM_Empirical(model, batch, tl.PMatDiag, loss="model").diag().flat
    assert torch.allclose(diagonal, truth.square().mean(0), atol=1e-12)
    centred = truth - truth.mean(0)
    covariance = tl.GradientCovariance(model, batch, loss="model").to_dense()
    assert torch.allclose(covariance, centred.T @ centred / 4, atol=1e-12)


@each
def test_the_hessian_is_that_of_the_mean_over_examples_alone(case: str) -> None:
    model, batch = made(case)
    parameters = list(model.parameters())
    total: Any = 0
    for n in range(4):
        output = model(**example(batch, n))
        total = total + (output["loss"] if isinstance(output, dict) else output.loss) / 4
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, parameters, create_graph=True)])
    rows = [
        torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
        for entry in gradient
    ]  # fmt: skip
    truth = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    found = tl.Hessian(model, batch, tl.PMatDense, loss="model").to_dense()
    assert torch.allclose(found, truth, rtol=1e-9, atol=1e-11)


@each
def test_losses_of_known_form_are_taken_from_the_logits_and_others_one_example_at_a_time(case: str) -> None:
    model, batch = made(case)
    _, _, loss = with_loss(Network.of(model), batch, "model")
    assert isinstance(loss, ReadLoss) == (case in UNKNOWN)


@pytest.mark.parametrize("case", list(KNOWN))
def test_losses_of_known_form_have_kronecker_factors_and_gauss_newton_matrices(case: str) -> None:
    model, batch = made(case)
    layers = "head" if case == "next token" else "last"
    tl.FIM_Empirical(model, batch, tl.PMatKFAC, likelihood="model", layers=layers)
    _, _, loss = with_loss(Network.of(model), batch, "model")
    options = {"forward": lambda net, b: net(**b), "layers": layers}
    found, truth = (tl.GGN(model, batch, loss=one, **options).to_dense() for one in ("model", loss))
    assert torch.allclose(found, truth, atol=1e-12) and float(truth.abs().max()) > 1e-4


@pytest.mark.parametrize("case", list(UNKNOWN))
def test_a_gauss_newton_matrix_of_a_loss_of_unknown_form_is_refused(case: str) -> None:
    model, batch = made(case)
    with pytest.raises(ModelError, match=r"not a known mean over its logits: pass loss=callable"):
        tl.GGN(model, batch, loss="model")


def test_the_gradient_of_the_batch_weighs_examples_by_their_counted_labels() -> None:
    """model(**batch).loss is a mean over the counted labels of the batch, the own loss of an example over its own."""
    model, batch = made("next token")
    counts = (batch["labels"][:, 1:] != -100).sum(1).double()
    grads = tl.per_example_grads(model, batch, likelihood="model").flat
    assert torch.allclose((counts / counts.sum()) @ grads, flat(model, model(**batch).loss), atol=1e-12)


def test_shifted_by_hand_the_likelihood_by_name_sums_where_the_model_takes_means() -> None:
    model, batch = made("next token")
    shifted = {"input_ids": batch["input_ids"], "labels": batch["labels"][:, 1:]}
    summed = tl.per_example_grads(model, shifted, function=lambda out, b: out.logits[:, :-1]).flat
    counts = (shifted["labels"] != -100).sum(1, keepdim=True)
    means = tl.per_example_grads(model, batch, likelihood="model").flat
    assert torch.allclose(summed, counts * means, atol=1e-12)
    assert torch.allclose(summed.sum(0) / counts.sum(), flat(model, model(**batch).loss), atol=1e-12)


def test_without_a_shift_the_labels_belong_to_the_positions_where_they_are() -> None:
    model, batch = made("next token")
    found = tl.per_example_grads(model, batch).flat
    for n in range(4):
        logits, labels = model(batch["input_ids"][n : n + 1]).logits[0], batch["labels"][n]
        assert torch.allclose(found[n], flat(model, F.cross_entropy(logits, labels, reduction="sum")), atol=1e-12)


def test_an_example_without_a_label_that_counts_has_a_zero_row_by_name_and_is_refused_as_the_models_own() -> None:
    model, batch = made("next token")
    batch = {**batch, "labels": batch["labels"].clone()}
    batch["labels"][1] = -100
    assert not tl.per_example_grads(model, batch).flat[1].any()
    with pytest.raises(InputError, match="Example 1 of a batch has no label that counts"):
        tl.per_example_grads(model, batch, likelihood="model")


@pytest.mark.parametrize(
    "factory", [tl.FIM_Empirical, tl.GradientCovariance, tl.Hessian, tl.GGN], ids=lambda f: f.__name__
)
def test_padded_labels_are_ignored_by_every_matrix(factory: Callable[..., Any]) -> None:
    """The same as if the padded positions were not there."""
    torch.manual_seed(0)
    model = nn.Linear(3, VOCABULARY).double()
    x, y = torch.randn(4, 5, 3, dtype=torch.float64), torch.arange(20).reshape(4, 5) % VOCABULARY
    padded = torch.cat([y[:, :3], torch.full((4, 2), -100)], 1)
    with_padding, without = (
        factory(model, (x, padded), tl.PMatDense),
        factory(model, (x[:, :3], y[:, :3]), tl.PMatDense),
    )
    assert torch.allclose(with_padding.to_dense(), without.to_dense(), atol=1e-12)


def test_expectations_over_labels_do_not_look_at_padding() -> None:
    model, x = nn.Linear(3, VOCABULARY).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    padded = torch.full((4, 5), -100)
    assert torch.equal(tl.FIM(model, (x, padded)).to_dense(), tl.FIM(model, x).to_dense())
    seeds = (torch.Generator().manual_seed(1) for _ in range(2))
    one, two = (tl.FIM_MonteCarlo(model, data, generator=seed) for data, seed in zip(((x, padded), x), seeds))
    assert torch.equal(one.to_dense(), two.to_dense())


@pytest.mark.parametrize("factory", [tl.FIM, tl.FIM_MonteCarlo], ids=["exact", "sampled"])
def test_a_loss_has_no_distribution_of_labels(factory: Callable[..., Any]) -> None:
    model, batch = made("next token")
    with pytest.raises(InputError, match="a loss is not a distribution of labels: name the likelihood"):
        factory(model, batch, likelihood="model")


def test_tuples_of_arguments_and_a_forward_of_ones_own_are_asked_too() -> None:
    model, batch = made("next token")
    truth = own_gradients(model, batch)
    pair = (batch["input_ids"], batch["labels"])
    by_hand = tl.per_example_grads(model, pair, likelihood="model", forward=lambda net, b: net(b[0], labels=b[1])).flat
    for found in (tl.per_example_grads(model, pair, likelihood="model").flat, by_hand):
        assert torch.allclose(found, truth, atol=1e-12)


class Encoding(UserDict):
    """A mapping that is no dict, with its entries as attributes, as tokenizers give it."""

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("data", {}):
            raise AttributeError(name)
        return self.data[name]


MAPPINGS: dict[str, Callable[..., Any]] = {
    "encoding": Encoding,
    "ordered": OrderedDict,
    "default": lambda **entries: defaultdict(list, entries),
    "read-only": lambda **entries: MappingProxyType(entries),
}


@pytest.mark.parametrize("case", ["next token", "a loss of hidden units"])
@pytest.mark.parametrize("kind", list(MAPPINGS))
def test_mappings_of_any_class_are_dicts(kind: str, case: str) -> None:
    model, batch = made(case)
    truth = own_gradients(model, batch)
    make = MAPPINGS[kind]
    for data in (make(**batch), [make(**example(batch, n)) for n in range(4)]):
        found = tl.per_example_grads(model, data, likelihood="model").flat
        assert torch.allclose(found, truth, rtol=1e-10, atol=1e-12)
    assert torch.allclose(tl.FIM_Empirical(model, make(**batch), likelihood="model").to_dense(), truth.T @ truth / 4)


class Nested(nn.Module):
    """Its inputs come in a mapping within the batch; the mask belongs to a list below that."""

    def __init__(self, extra: bool) -> None:
        super().__init__()
        self.inner, self.extra = Causal(), extra

    def forward(self, inputs: Any, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = torch.tanh(self.inner.mix(self.inner.embed(inputs["ids"]) * inputs["more"][0][..., None]))
        logits = self.inner.head(hidden)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"logits": logits, "loss": loss + hidden.square().mean() if self.extra else loss}


@pytest.mark.parametrize("extra", [False, True], ids=["known form", "one by one"])
@pytest.mark.parametrize("inner", [dict, Encoding, OrderedDict], ids=["dict", "encoding", "ordered"])
@pytest.mark.parametrize("outer", [dict, Encoding, OrderedDict], ids=["in dict", "in encoding", "in ordered"])
def test_inputs_in_a_mapping_within_the_batch_are_cut_with_it(outer: Any, inner: Any, extra: bool) -> None:
    torch.manual_seed(7)
    model, ids, labels = Nested(extra).double(), tokens()["input_ids"], tokens()["labels"]
    mask = torch.linspace(0, 1, 20, dtype=torch.float64).reshape(4, 5)
    part = [{"inputs": {"ids": i[None], "more": [m[None]]}, "labels": t[None]} for i, m, t in zip(ids, mask, labels)]
    truth = torch.stack([flat(model, model(**one)["loss"]) for one in part])
    batch = outer(inputs=inner(ids=ids, more=[mask]), labels=labels)
    assert torch.allclose(tl.per_example_grads(model, batch, likelihood="model").flat, truth, rtol=1e-10, atol=1e-12)
    assert torch.allclose(tl.FIM_Empirical(model, batch, loss="model").to_dense(), truth.T @ truth / 4, atol=1e-12)
    rows = [[flat(model, entry) for entry in model(one["inputs"])["logits"].flatten()] for one in part]
    jacobian = torch.stack([torch.stack(row) for row in rows], 1)
    assert torch.allclose(tl.Jacobian(model, batch).data, jacobian, atol=1e-12) and tl.check(model, batch).passed


def test_a_forward_of_ones_own_is_given_a_mapping_of_the_same_class_also_for_one_example() -> None:
    model, batch = made("a loss of hidden units")
    truth = own_gradients(model, batch)
    ask = {"forward": lambda net, b: net(b.input_ids, labels=b.labels)}
    assert torch.allclose(tl.per_example_grads(model, Encoding(**batch), likelihood="model", **ask).flat, truth)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (lambda b: b["input_ids"], {}, "needs the labels in the batch"),
        (lambda b: {"input_ids": b["input_ids"]}, {}, "returns a Output without one"),
        (lambda b: b, {"function": lambda out, b: out.logits}, "leave function= out"),
        (lambda b: b, {"forward": lambda net, b: net(b["input_ids"]).logits}, "returns a Tensor without one"),
    ],
    ids=["no labels", "labels left out", "function", "tensor"],
)
def test_what_has_no_loss_to_read_is_refused(data: Any, options: dict[str, Any], message: str) -> None:
    model, batch = made("next token")
    with pytest.raises(InputError, match=message):
        tl.FIM_Empirical(model, data(batch), likelihood="model", **options)


def test_a_batch_that_cannot_be_cut_is_refused_where_examples_are_asked_one_by_one() -> None:
    model, batch = made("a loss of hidden units")
    with pytest.raises(InputError, match="this batch cannot be cut"):
        tl.per_example_grads(
            model, {**batch, "scale": torch.ones(3)}, "model", forward=lambda net, b: net(b["input_ids"], b["labels"])
        )


def test_a_loss_that_changes_its_form_after_the_first_batch_is_refused() -> None:
    def extra(hidden: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        return z_loss(hidden, logits, labels) if len(labels) == 3 else logits.new_zeros(())

    model, batch = Causal(extra).double(), tokens()
    with pytest.raises(ModelError, match="was the cross-entropy of the next token .* and is not on another"):
        tl.per_example_grads(model, [batch, {key: value[:3] for key, value in batch.items()}], "model")


def test_in_single_and_half_precision_the_form_is_still_recognised() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model, batch = Causal().to(dtype), tokens()
        _, _, loss = with_loss(Network.of(model), batch, "model")
        assert not isinstance(loss, ReadLoss)
        assert tl.per_example_grads(model, batch, "model").dtype == dtype


@pytest.mark.parametrize(
    "loss", ["regression", tl.Regression(), lambda f, y: 0.5 * (f - y).square()], ids=["name", "likelihood", "function"]
)
def test_losses_by_name_likelihood_or_function_are_taken_everywhere(loss: Any) -> None:
    model, x, y = nn.Linear(3, 2).double(), torch.randn(4, 3).double(), torch.randn(4, 2).double()
    truth = tl.per_example_grads(model, (x, y), likelihood="regression").flat
    assert torch.allclose(tl.per_example_grads(model, (x, y), loss).flat, truth)
    assert torch.allclose(tl.per_example_grad_norms(model, (x, y), loss), truth.norm(dim=1))
    assert torch.allclose(tl.FIM_Empirical(model, (x, y), loss=loss).to_dense(), truth.T @ truth / 4)

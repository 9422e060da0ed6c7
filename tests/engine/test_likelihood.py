"""Likelihoods: exact factors, products, samples and scores, against the definition E[score score^T]."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, MultivariateNormal

from tangentlab.engine.likelihood import (
    Binary,
    Classification,
    Likelihood,
    LogSoftmax,
    Regression,
    likelihood_of,
)
from tangentlab.errors import InputError

COVARIANCE = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 4.0]], dtype=torch.float64)


def outputs_of(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


CASES = {
    "classes": (Classification(), outputs_of(4, 5)),
    "two classes": (Classification(), outputs_of(4, 2)),
    "extreme logits": (Classification(), outputs_of(4, 5, scale=30.0)),
    "tokens": (Classification(), outputs_of(3, 2, 4)),
    "segmentation": (Classification(class_axis=1), outputs_of(3, 4, 2, 2)),
    "log-softmax": (LogSoftmax(), outputs_of(4, 5).log_softmax(-1)),
    "binary": (Binary(), outputs_of(4, 1)),
    "multi-label": (Binary(), outputs_of(4, 3)),
    "regression": (Regression(), outputs_of(4, 3)),
    "variance": (Regression(0.25), outputs_of(4, 3)),
    "variances": (Regression(torch.tensor([1.0, 2.0, 3.0])), outputs_of(4, 3)),
    "covariance": (Regression(COVARIANCE), outputs_of(4, 3)),
}
each = pytest.mark.parametrize("name", list(CASES))


def output_fisher(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """(N, C, C) by the definition: second derivatives of -log p, which the mean over labels leaves unchanged here."""
    if isinstance(likelihood, Regression):
        size = outputs[0].numel()
        variance = likelihood.variance.double()
        full = variance if variance.ndim == 2 else torch.diag(variance.expand(size))
        return torch.linalg.inv(full).expand(len(outputs), -1, -1)
    if isinstance(likelihood, Binary):
        p = outputs.sigmoid().flatten(1)
        return torch.diag_embed(p * (1 - p))
    if isinstance(likelihood, LogSoftmax):
        return torch.diag_embed(outputs.exp())
    axis = likelihood.class_axis  # type: ignore[attr-defined]
    p = outputs.movedim(axis, -1).softmax(-1)
    index = torch.arange(outputs[0].numel()).reshape(outputs.shape[1:])
    index = index.movedim(axis if axis < 0 else axis - 1, -1).reshape(-1, p.shape[-1])
    result = torch.zeros(len(outputs), outputs[0].numel(), outputs[0].numel(), dtype=outputs.dtype)
    for position, own in enumerate(index):
        q = p.flatten(1, -2)[:, position] if p.ndim > 2 else p
        block = torch.diag_embed(q) - q[:, :, None] * q[:, None, :]
        result[:, own[:, None], own[None, :]] = block
    return result


@each
def test_the_factors_multiply_to_the_fisher_of_the_outputs(name: str) -> None:
    likelihood, outputs = CASES[name]
    u = likelihood.factor(outputs, range(likelihood.factor_count(outputs))).flatten(2)
    assert torch.allclose(torch.einsum("kna,knb->nab", u, u), output_fisher(likelihood, outputs), atol=1e-13)


@each
def test_factors_can_be_asked_for_in_parts(name: str) -> None:
    likelihood, outputs = CASES[name]
    count = likelihood.factor_count(outputs)
    whole = likelihood.factor(outputs, range(count))
    parts = [likelihood.factor(outputs, range(k, min(k + 2, count))) for k in range(0, count, 2)]
    assert torch.equal(torch.cat(parts), whole)
    assert whole.shape == (count, *outputs.shape)


@each
def test_weighing_a_tangent_multiplies_it_with_the_fisher_of_the_outputs(name: str) -> None:
    likelihood, outputs = CASES[name]
    tangents = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = torch.einsum("nab,nb->na", output_fisher(likelihood, outputs), tangents.flatten(1))
    assert torch.allclose(likelihood.weigh(outputs, tangents).flatten(1), truth, atol=1e-13)


@each
def test_the_score_is_the_gradient_of_the_log_probability(name: str) -> None:
    likelihood, outputs = CASES[name]
    labels = likelihood.sample(outputs, 3, torch.Generator().manual_seed(2))
    leaf = outputs.clone().requires_grad_()
    for sample, score in zip(labels, likelihood.score(outputs, labels)):
        if isinstance(likelihood, Classification):
            log_p = Categorical(logits=leaf.movedim(likelihood.class_axis, -1)).log_prob(sample)
        elif isinstance(likelihood, LogSoftmax):
            log_p = leaf.gather(-1, sample[..., None])
        elif isinstance(likelihood, Binary):
            log_p = Bernoulli(logits=leaf).log_prob(sample)
        else:
            covariance = torch.linalg.inv(output_fisher(likelihood, outputs))
            log_p = MultivariateNormal(leaf, covariance).log_prob(sample)
        (truth,) = torch.autograd.grad(log_p.sum(), leaf)
        assert torch.allclose(score, truth, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if name != "extreme logits"])
def test_scores_of_many_samples_average_to_the_fisher_of_the_outputs(name: str) -> None:
    likelihood, outputs = CASES[name]
    samples = 20_000
    labels = likelihood.sample(outputs, samples, torch.Generator().manual_seed(3))
    scores = likelihood.score(outputs, labels).flatten(2)
    products = torch.einsum("kna,knb->knab", scores, scores)
    deviation = products.mean(0) - output_fisher(likelihood, outputs)
    assert (deviation.abs() <= 6 * products.std(0) / samples**0.5 + 1e-9).all()


@each
def test_samples_follow_the_generator_and_leave_the_global_one_alone(name: str) -> None:
    likelihood, outputs = CASES[name]
    state = torch.get_rng_state()
    first, again, other = (likelihood.sample(outputs, 50, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("alias", "kind"),
    [
        ("classification", Classification),
        ("classif_logits", Classification),
        ("segmentation_logits", Classification),
        ("log_softmax", LogSoftmax),
        ("classif_logsoftmax", LogSoftmax),
        ("binary", Binary),
        ("multi_label", Binary),
        ("classif_binary_logits", Binary),
        ("regression", Regression),
    ],
)
def test_every_name_means_its_likelihood(alias: str, kind: type[Likelihood]) -> None:
    assert type(likelihood_of(alias)) is kind
    instance = likelihood_of(alias)
    assert likelihood_of(instance) is instance


def test_an_unknown_likelihood_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"Unknown likelihood 'poisson'.*classification.*regression"):
        likelihood_of("poisson")


@pytest.mark.parametrize(
    "variance",
    [
        -1.0,
        torch.zeros(3),
        torch.zeros(2, 3),
        torch.tensor([[1.0, 2.0], [2.0, 1.0]]),
        torch.tensor([[1.0, 0.5], [0, 1]]),
    ],
    ids=["negative", "zero", "oblong", "indefinite", "asymmetric"],
)
def test_what_is_no_variance_is_refused(variance: float | Tensor) -> None:
    with pytest.raises(InputError, match=r"[Vv]ariance"):
        Regression(variance)


def test_a_variance_for_another_number_of_outputs_is_refused() -> None:
    for variance in (torch.ones(2), torch.eye(2)):
        with pytest.raises(InputError, match="for 2 outputs and the model has 3"):
            Regression(variance).factor(outputs_of(4, 3), range(1))


@pytest.mark.parametrize("likelihood", [Classification(), LogSoftmax()], ids=["softmax", "log-softmax"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([[0, 1, 2, 5]]), r"0..4 .*, found 0..5.*ignore_index="),
        (torch.tensor([[0, 1, 2, -1]]), r"Labels must lie in 0..4 \(or be -100, to be ignored\), found -1..2"),
        (torch.zeros(1, 4, 1, dtype=torch.long), "one per position"),
        (torch.zeros(1, 3, dtype=torch.long), "one per position"),
        (torch.zeros(1, 4), "must be integers"),
    ],
)
def test_labels_that_are_no_classes_are_refused(likelihood: Likelihood, labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        likelihood.score(outputs_of(4, 5).log_softmax(-1), labels)


@pytest.mark.parametrize("likelihood", [Binary(), Regression()], ids=["binary", "regression"])
def test_targets_of_another_shape_are_refused(likelihood: Likelihood) -> None:
    with pytest.raises(InputError, match="do not fit outputs"):
        likelihood.score(outputs_of(4, 3), torch.zeros(1, 3, 4))


def test_outputs_that_are_no_log_probabilities_are_refused() -> None:
    with pytest.raises(InputError, match="sum to one"):
        LogSoftmax().factor(outputs_of(4, 5), range(5))


ONE_CLASS = {
    "one output": (Classification(), (4, 1)),
    "tokens": (Classification(), (4, 3, 1)),
    "segmentation": (Classification(class_axis=1), (4, 1, 2, 2)),
    "log-softmax": (LogSoftmax(), (4, 1)),
    "log-softmax of tokens": (LogSoftmax(), (4, 3, 1)),
}


@pytest.mark.parametrize("name", list(ONE_CLASS))
def test_a_softmax_over_one_output_is_refused_in_favour_of_regression_and_binary(name: str) -> None:
    likelihood, shape = ONE_CLASS[name]
    outputs = torch.zeros(shape, dtype=torch.float64)
    labels = torch.zeros(outputs.movedim(getattr(likelihood, "class_axis", -1), -1).shape[:-1], dtype=torch.long)
    for use in (
        lambda: likelihood.factor(outputs, range(1)),
        lambda: likelihood.weigh(outputs, outputs),
        lambda: likelihood.sample(outputs, 2),
        lambda: likelihood.score(outputs, labels[None]),
        lambda: likelihood.loss(outputs, labels),
    ):
        with pytest.raises(InputError, match="softmax over one output.*'regression'.*'binary'"):
            use()


def test_classes_on_an_axis_that_does_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="classes are on axis 2"):
        Classification(class_axis=2).factor_count(torch.zeros(4, 3))
    with pytest.raises(InputError, match="classes are on axis 0"):
        Classification(class_axis=0).factor_count(torch.zeros(4, 3))


IGNORING = {
    "classes": (Classification(), outputs_of(6, 5), -100),
    "tokens": (Classification(), outputs_of(3, 4, 5), -100),
    "pixels": (Classification(class_axis=1, ignore_index=255), outputs_of(3, 5, 2, 2), 255),
    "log-softmax": (LogSoftmax(), outputs_of(3, 4, 5).log_softmax(-1), -100),
    "another label": (Classification(ignore_index=3), outputs_of(6, 5), 3),
}


@pytest.mark.parametrize("name", list(IGNORING))
def test_scores_and_losses_are_zero_where_the_label_is_to_be_ignored_and_as_before_elsewhere(name: str) -> None:
    likelihood, outputs, ignored = IGNORING[name]
    axis = getattr(likelihood, "class_axis", -1)
    labels = (torch.arange(outputs.numel() // 5) % 3).reshape(outputs.movedim(axis, -1).shape[:-1])
    some = labels.clone()
    some.view(-1)[::2] = ignored
    counted = some != ignored
    plain, masked = (likelihood.score(outputs, y[None])[0].movedim(axis, -1) for y in (labels, some))
    assert torch.equal(masked, plain * counted[..., None])
    before, after = (likelihood.loss(outputs, y) for y in (labels, some))
    assert torch.allclose(after, before * counted, atol=1e-15) and bool(before.gt(0).all())


def test_without_an_index_to_ignore_every_negative_label_is_refused() -> None:
    with pytest.raises(InputError, match=r"found -100..0: number"):
        Classification(ignore_index=None).score(outputs_of(2, 3), torch.tensor([[0, -100]]))
    with pytest.raises(InputError, match=r"found -100..0: number"):
        LogSoftmax(ignore_index=None).loss(outputs_of(2, 3).log_softmax(-1), torch.tensor([0, -100]))


def test_real_labels_are_not_cut_to_integers_by_the_loss() -> None:
    with pytest.raises(InputError, match="must be integers"):
        Classification().loss(outputs_of(2, 3), torch.tensor([0.7, 1.2]))


@pytest.mark.parametrize("computed", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("returned", [torch.float32, torch.float64])
def test_log_probabilities_sum_to_one_as_far_as_they_were_computed(
    computed: torch.dtype, returned: torch.dtype
) -> None:
    logits = outputs_of(64, 30).float()
    outputs = logits.to(computed).log_softmax(-1).to(returned)
    assert torch.equal(LogSoftmax().weights(outputs), outputs.exp())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [-1.0, -0.3, 0.3, 1.0])
def test_outputs_that_are_no_log_probabilities_are_refused_in_every_precision(dtype: torch.dtype, shift: float) -> None:
    outputs = (outputs_of(4, 5).log_softmax(-1) + shift).to(dtype)
    with pytest.raises(InputError, match="sum to one"):
        LogSoftmax().weights(outputs)

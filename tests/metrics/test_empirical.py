"""Second moments and norms of per-example loss gradients at the observed targets."""

import pytest
import torch
import torch.nn.functional as functional

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.truth import gradient
from tests.metrics.problems import PROBLEMS

each = pytest.mark.parametrize("name", list(PROBLEMS))


def observed(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Model, inputs and targets of a problem; the targets are one draw from the model."""
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    labels = tl.FIM_MonteCarlo(
        model, x, tl.PMatDiag, problem.likelihood, generator=torch.Generator().manual_seed(0)
    ).labels
    return model, x, labels[0][0]


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@each
@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatImplicit])
def test_likelihood_gives_the_second_moment_of_log_likelihood_gradients(name, kind):
    problem = PROBLEMS[name]
    model, x, y = observed(name)
    F = tl.FIM_Empirical(model, [(x[:3], y[:3]), (x[3:], y[3:])], kind, problem.likelihood)
    assert_close(F.to_dense(), problem.second_moment(model, x, y[None]))
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    assert_close(F.vTMv(v), v.flat @ problem.second_moment(model, x, y[None]) @ v.flat)


@each
def test_per_example_gradients_and_their_norms(name):
    problem = PROBLEMS[name]
    model, x, y = observed(name)
    truth = -torch.stack([problem.score(model, one, label) for one, label in zip(x, y)])
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    grads = tl.per_example_grads(model, batches, likelihood=problem.likelihood)
    assert_close(grads.flat, truth)
    assert_close(tl.per_example_grad_norms(model, batches, likelihood=problem.likelihood), truth.norm(dim=1))


def test_a_loss_of_ones_own_is_differentiated_example_by_example():
    model, x, y = observed("classification")

    def focal(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets) ** 2

    truth = torch.stack([gradient(focal(model(one[None]), label[None])[0], model) for one, label in zip(x, y)])
    for kind in (tl.PMatDense, tl.PMatImplicit):
        assert_close(tl.FIM_Empirical(model, (x, y), kind, loss=focal).to_dense(), truth.t() @ truth / 4)
    assert_close(tl.per_example_grads(model, (x, y), focal).flat, truth)
    assert_close(tl.per_example_grad_norms(model, (x, y), focal), truth.norm(dim=1))


def test_a_loss_with_one_value_per_token_is_summed_over_tokens():
    model, x, y = observed("tokens")

    def per_token(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs.movedim(-1, 1), targets)

    by_loss = tl.FIM_Empirical(model, (x, y), loss=per_token).to_dense()
    assert_close(by_loss, PROBLEMS["tokens"].second_moment(model, x, y[None]))


def test_gradients_of_the_loss_average_to_the_gradient_of_the_mean_loss():
    model, x, y = observed("classification")
    mean = tl.per_example_grads(model, (x, y), cross_entropy).flat.mean(0)
    functional.cross_entropy(model(x), y).backward()
    assert_close(tl.PVector.from_grad(model).flat, mean)


def test_losses_work_inside_no_grad():
    model, x, y = observed("classification")
    expected = PROBLEMS["classification"].second_moment(model, x, y[None])
    with torch.no_grad():
        assert_close(tl.FIM_Empirical(model, (x, y), loss=cross_entropy).to_dense(), expected)
        assert_close(tl.FIM_Empirical(model, (x, y)).to_dense(), expected)


def test_targets_come_from_dict_batches_by_their_label_key():
    model, x, y = observed("classification")
    expected = PROBLEMS["classification"].second_moment(model, x, y[None])
    assert_close(tl.FIM_Empirical(model, {"input": x, "labels": y}).to_dense(), expected)


def test_confident_and_right_predictions_keep_their_small_gradients():
    """The gradient of a loss of 1e-9 is of that size, in single precision too."""
    model, x, _ = observed("classification")
    with torch.no_grad():
        model[2].bias.add_(torch.tensor([20.0, 0.0, -20.0]))
    y = torch.zeros(4, dtype=torch.long)
    expected = torch.stack([PROBLEMS["classification"].score(model, one, label) for one, label in zip(x, y)]).norm(
        dim=1
    )
    assert 0 < expected.max() < 1e-6
    norms = tl.per_example_grad_norms(model.float(), (x.float(), y))
    assert_close(1e12 * norms, 1e12 * expected, torch.float32)


def test_a_loss_that_is_no_value_per_example_and_missing_targets_are_refused():
    model, x, y = observed("classification")
    with pytest.raises(InputError, match="one value per example"):
        tl.FIM_Empirical(model, (x, y), loss=functional.cross_entropy)
    with pytest.raises(InputError, match="targets"):
        tl.FIM_Empirical(model, x)
    with pytest.raises(InputError, match="found 0..3"):
        tl.FIM_Empirical(model, (x, torch.tensor([0, 1, 2, 3])))


def test_shuffling_is_refused_where_gradients_have_an_order():
    model, x, y = observed("classification")
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    assert_close(
        tl.FIM_Empirical(model, loader).to_dense(), PROBLEMS["classification"].second_moment(model, x, y[None])
    )
    for ordered in (tl.per_example_grads, tl.per_example_grad_norms):
        with pytest.raises(InputError, match="shuffles"):
            ordered(model, loader)

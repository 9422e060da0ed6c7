"""The Fisher matrix of every likelihood against its definition."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing.dense_truth import assert_close
from tests.metrics.problems import PROBLEMS

each = pytest.mark.parametrize("name", list(PROBLEMS))


@each
@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatImplicit])
def test_exact_matrices_are_the_expectation_over_labels(name, kind):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    F, exact = tl.FIM(model, [(x[:3],), (x[3:],)], kind, problem.likelihood), problem.fisher(model, x)
    assert_close(F.to_dense(), exact)
    v = tl.PVector.random_unit(model, batch=2, generator=torch.Generator().manual_seed(0))
    assert_close((F @ v).flat, v.flat @ exact)
    assert_close(F.vTMv(v), ((v.flat @ exact) * v.flat).sum(-1))
    assert_close(F.trace(), exact.trace())
    assert_close(F.diag().flat, exact.diagonal())
    assert F.likelihood.endswith("exact")


@each
def test_diagonal_and_ekfac_have_the_exact_trace(name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    exact = problem.fisher(model, x)
    assert_close(tl.FIM(model, x, tl.PMatDiag, problem.likelihood).diag().flat, exact.diagonal())
    assert_close(tl.FIM(model, x, tl.PMatEKFAC, problem.likelihood).trace(), exact.trace())


@each
def test_one_example_is_enough(name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs(1)
    for kind in (tl.PMatDense, tl.PMatImplicit):
        F = tl.FIM(model, x, kind, problem.likelihood)
        assert_close(F.to_dense(), problem.fisher(model, x))
        assert F.examples == 1


@each
def test_a_small_memory_budget_changes_nothing_but_the_number_of_chunks(name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    kinds = (tl.PMatDiag, tl.PMatKFAC, tl.PMatEKFAC)
    whole = [tl.FIM(model, x, kind, problem.likelihood).to_dense() for kind in kinds]
    tl.set_memory_budget(1)
    try:
        chunked = [tl.FIM(model, x, kind, problem.likelihood) for kind in kinds]
        traces = tl.FIM(model, x, tl.PMatImplicit, problem.likelihood).trace()
    finally:
        tl.set_memory_budget(None)
    for one, two in zip(chunked, whole):
        assert_close(one.to_dense(), two)
    assert_close(traces, whole[0].trace())


# ------------------------------------------------------------- extreme outputs


SHIFTS = {"classification": (1.0, 0.0, -1.0), "binary": (1.0,), "multi-label": (1.0, -1.0, 2.0)}


def confident(name: str, scale: float) -> nn.Module:
    """A model whose outputs are all far on one side, in double precision with weights that fit single precision."""
    model = PROBLEMS[name].model()
    with torch.no_grad():
        model[2].bias.add_(scale * torch.tensor(SHIFTS[name], dtype=torch.float64))
    return model.float().double()


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatBlockDiag, tl.PMatDiag, tl.PMatEKFAC, tl.PMatImplicit])
@pytest.mark.parametrize("name", list(SHIFTS))
@pytest.mark.parametrize("scale", [5.0, 20.0])
def test_confident_predictions_keep_their_relative_precision_in_single_precision(name, scale, kind):
    problem = PROBLEMS[name]
    model, x = confident(name, scale), problem.inputs().float().double()
    exact = problem.fisher(model, x)
    assert exact.trace() < (0.2 if scale == 5 else 1e-6)
    F = tl.FIM(model.float(), x.float(), kind, problem.likelihood)
    assert_close(1e20 * F.trace(), 1e20 * exact.trace(), torch.float32)
    if kind in (tl.PMatDense, tl.PMatImplicit):
        v = torch.randn(3, len(exact), generator=torch.Generator().manual_seed(2))
        assert_close(1e20 * F.to_dense(), 1e20 * exact, torch.float32)
        assert_close(1e20 * F.mv(v), 1e20 * v.double() @ exact, torch.float32)
        forms = ((v.double() @ exact) * v.double()).sum(-1)
        assert_close(1e20 * F.vTMv(tl.PVector(F.layout, v)), 1e20 * forms, torch.float32)


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatDiag, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatImplicit])
def test_probabilities_that_underflow_give_a_finite_matrix(kind):
    model, x = confident("classification", 200.0).float(), PROBLEMS["classification"].inputs().float()
    p = model(x).softmax(-1)
    assert bool((p == 0).any())
    F = tl.FIM(model, x, kind)
    assert bool(torch.isfinite(F.to_dense()).all()) and float(F.trace()) < 1e-6
    assert bool(torch.isfinite(F.solve(tl.PVector.ones(model), 1e-3).flat).all())


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_exact_factorization_does_not_depend_on_which_class_is_likely(position):
    """The factors are triangular, so each class in turn takes the role of the certain one."""
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    with torch.no_grad():
        model[2].bias[position] += 30.0
    exact = problem.fisher(model, x)
    F = tl.FIM(model, x)
    assert exact.abs().max() < 1e-10
    assert_close(F.to_dense() * 1e13, exact * 1e13, torch.float32)


# ------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("classif_logits", "classification"),
        ("classif_binary_logits", "binary"),
        ("classif_logsoftmax", "log-softmax"),
        ("segmentation_logits", "segmentation"),
        ("regression", "regression"),
    ],
)
def test_nngeometry_names_of_variants_mean_the_same(variant, name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    exact = problem.fisher(model, x)
    assert_close(tl.FIM(model=model, loader=x, representation=tl.PMatDense, variant=variant).to_dense(), exact)
    assert_close(tl.FIM(model, x, variant=variant, likelihood=variant).to_dense(), exact)


def test_two_likelihoods_at_once_are_refused():
    problem = PROBLEMS["classification"]
    with pytest.raises(InputError, match="two names"):
        tl.FIM(problem.model(), problem.inputs(), variant="regression", likelihood="binary")
    with pytest.raises(InputError, match="Unknown likelihood"):
        tl.FIM(problem.model(), problem.inputs(), likelihood="poisson")


def test_outputs_that_are_no_log_probabilities_are_refused():
    problem = PROBLEMS["classification"]
    for kind in (tl.PMatDense, tl.PMatKFAC):
        with pytest.raises(InputError, match="sum to one"):
            tl.FIM(problem.model(), problem.inputs(), kind, "log_softmax")
    F = tl.FIM(problem.model(), problem.inputs(), tl.PMatImplicit, "log_softmax")
    with pytest.raises(InputError, match="sum to one"):
        F @ tl.PVector.ones(problem.model())


def test_a_user_function_of_the_outputs_is_what_is_differentiated():
    problem = PROBLEMS["two classes"]
    three, x = PROBLEMS["classification"].model(), problem.inputs()

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = three

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(inputs)[:, 1:] * 2

    exact = problem.fisher(Cut(), x)
    for kind in (tl.PMatDense, tl.PMatImplicit):
        F = tl.FIM(three, (x, x), kind, function=lambda out, batch: out[:, 1:] * 2)
        assert_close(F.to_dense(), exact)


class TwoInputs(nn.Module):
    """A model called by keywords, with its logits in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body = PROBLEMS["classification"].model()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.body(left - right), "hidden": left}


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatKFAC, tl.PMatImplicit])
def test_dict_batches_custom_calls_and_plain_tensors_agree(kind):
    problem, model = PROBLEMS["classification"], TwoInputs()
    x, zero = problem.inputs(), torch.zeros(4, 3, dtype=torch.float64)
    plain = tl.FIM(model.body, x, kind).to_dense()
    batches = [{"left": x[:3], "right": zero[:3], "labels": torch.zeros(3).long()}, {"left": x[3:], "right": zero[3:]}]
    assert_close(tl.FIM(model, batches, kind).to_dense(), plain)
    called = tl.FIM(model, [("no tensor", x)], kind, forward=lambda m, batch: m(batch[1], right=zero)["logits"])
    assert_close(called.to_dense(), plain)


def test_selected_layers_give_the_rows_and_columns_of_the_matrix():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    exact = problem.fisher(model, x)
    for layers, keep in (("2", range(16, 31)), (model[0], range(16)), ("*.bias", [12, 13, 14, 15, 28, 29, 30])):
        F = tl.FIM(model, x, layers=layers)
        assert_close(F.to_dense(), exact[list(keep)][:, list(keep)])


def test_number_of_outputs_is_checked_when_given():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    assert_close(tl.FIM(model, x, n_output=3).to_dense(), problem.fisher(model, x))
    for factory in (tl.FIM, tl.FIM_MonteCarlo, tl.NTK, tl.Jacobian):
        with pytest.raises(InputError, match="n_output=10.*gives 3"):
            factory(model, x, n_output=10)


def test_what_is_no_representation_is_refused():
    problem = PROBLEMS["classification"]
    with pytest.raises(InputError, match="representation must be a class"):
        tl.FIM(problem.model(), problem.inputs(), "kfac")

"""PushForward and PullBack: dense and implicit Jacobians are one map and its adjoint."""

import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError, MemoryBudgetError, StructureError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close, of_another_model, vectors
from tangentlab.testing.small_models import ALL, EXAMPLES, Case, case_of, cases

PUSHES = (tl.PushForwardDense, tl.PushForwardImplicit)
PULLS = (tl.PullBackDense, tl.PullBackImplicit)
every = pytest.mark.parametrize("case", cases(ALL), ids=str)


def jacobian(case: Case) -> torch.Tensor:
    """(outputs, examples, d)."""
    return truth.exact_jacobian(case.name).transpose(0, 1)


def function_vectors(case: Case, *batch: int) -> tl.FVector:
    noise = torch.randn(*batch, 3, EXAMPLES, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return tl.FVector(noise.to(case.dtype))


@every
def test_dense_jacobian_is_that_of_autograd(case):
    J = tl.Jacobian(case.model, case.batches)
    assert isinstance(J, tl.PushForwardDense)
    assert_close(J.data, jacobian(case), case.dtype)


@every
@pytest.mark.parametrize("kind", PUSHES)
def test_pushing_forward_is_the_jacobian_vector_product(case, kind):
    J, expected = tl.Jacobian(case.model, case.batches, kind), jacobian(case)
    for batch in ((), (2,), (2, 1)):
        v = vectors(case, *batch)
        assert_close((J @ v).data, torch.einsum("cnd,...d->...cn", expected, v.flat.double()), case.dtype)


@every
@pytest.mark.parametrize("kind", PULLS)
def test_pulling_back_is_the_vector_jacobian_product(case, kind):
    Jt, expected = tl.Jacobian(case.model, case.batches, kind), jacobian(case)
    for batch in ((), (2,), (2, 1)):
        u = function_vectors(case, *batch)
        assert_close((Jt @ u).flat, torch.einsum("cnd,...cn->...d", expected, u.data.double()), case.dtype)


@every
@pytest.mark.parametrize("kind", PUSHES)
def test_transposed_map_is_the_adjoint(case, kind):
    J, v, u = tl.Jacobian(case.model, case.batches, kind), vectors(case), function_vectors(case)
    assert_close((J @ v).dot(u), v.dot(J.T @ u), case.dtype)
    assert type(J.T.T) is kind and isinstance(J.T, PULLS)
    assert_close((J.T.T @ v).data, (J @ v).data, case.dtype)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", PUSHES)
def test_push_after_pull_is_the_tangent_kernel(name, kind):
    case = case_of(name, split="uneven batches")
    J, u = tl.Jacobian(case.model, case.batches, kind), function_vectors(case)
    assert_close((J @ (J.T @ u)).data, (tl.NTK(case.model, case.batches) @ u).data)
    rows = jacobian(case).flatten(0, 1)
    assert_close((J @ (J.T @ u)).flat, rows @ rows.t() @ u.flat)


def test_gram_of_a_dense_jacobian_is_the_tangent_kernel():
    case = case_of("mlp")
    assert_close(tl.Jacobian(case.model, case.batches).gram().data, tl.NTK(case.model, case.batches).data)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", PUSHES)
def test_pull_after_push_is_n_times_the_regression_fisher(name, kind):
    case = case_of(name, split="uneven batches")
    J, v = tl.Jacobian(case.model, case.batches, kind), vectors(case)
    F = tl.FIM(case.model, case.batches, likelihood="regression")
    assert_close((J.T @ (J @ v)).flat, EXAMPLES * (F @ v).flat)


def test_some_outputs_and_a_scalar_function():
    case = case_of("mlp")
    expected = jacobian(case)
    assert_close(tl.Jacobian(case.model, case.batches, outputs=[2, 0]).data, expected[[2, 0]])
    difference = tl.Jacobian(case.model, case.batches, function=lambda out, batch: out[:, 1] - out[:, 0])
    assert_close(difference.data, (expected[1] - expected[0])[None])
    with pytest.raises(StructureError, match="function="):
        tl.Jacobian(case.model, case.batches, tl.PushForwardImplicit, outputs=[1])


def test_jacobian_of_some_layers_has_their_columns():
    case = case_of("mlp")
    J = tl.Jacobian(case.model, case.batches, layers="2")
    assert_close(J.data, jacobian(case)[..., 16:])


def test_implicit_maps_follow_the_model(seed):
    case = Case("mlp")
    J = tl.Jacobian(case.model, case.batches, tl.PushForwardImplicit)
    v, u = vectors(case), function_vectors(case)
    J @ v, J.T @ u
    tl.PVector.random_unit(case.model).add_to_model(case.model)
    now = truth.jacobian(case.model, case.inputs).transpose(0, 1)
    assert_close((J @ v).data, torch.einsum("cnd,d->cn", now, v.flat))
    assert_close((J.T @ u).flat, torch.einsum("cnd,cn->d", now, u.data))


@pytest.mark.parametrize("kind", PUSHES)
def test_wrong_vectors_are_refused(kind):
    case = case_of("mlp", split="uneven batches")
    J = tl.Jacobian(case.model, case.batches, kind)
    with pytest.raises(InputError, match="other parameters"):
        J @ of_another_model()
    with pytest.raises(InputError, match="PVectors"):
        J @ function_vectors(case)
    with pytest.raises(InputError, match="FVectors"):
        J.T @ vectors(case)
    for shape in ((3, EXAMPLES - 1), (3, EXAMPLES + 1), (2, EXAMPLES)):
        with pytest.raises(InputError, match="examples"):
            J.T @ tl.FVector.ones(*shape, dtype=torch.float64)
    assert type(J).__name__ in repr(J) and "31" in repr(J) and type(J.T).__name__ in repr(J.T)


def test_a_jacobian_beyond_the_memory_budget_is_refused():
    case = case_of("mlp")
    tl.set_memory_budget(1000)
    try:
        with pytest.raises(MemoryBudgetError, match="PushForwardImplicit"):
            tl.Jacobian(case.model, case.batches)
    finally:
        tl.set_memory_budget(None)


def test_a_matrix_does_not_act_on_an_implicit_jacobian_and_says_what_it_acts_on():
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches)
    with pytest.raises(InputError, match="PushForward"):
        F @ tl.Jacobian(case.model, case.batches, tl.PushForwardImplicit)
    with pytest.raises(InputError, match="other parameters"):
        F @ tl.Jacobian(case.model, case.batches, layers="2")

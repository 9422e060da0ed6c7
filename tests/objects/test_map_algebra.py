"""Sums, multiples and centred versions of Jacobians, stored or not, against the same algebra on their tensors."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close, of_another_model, vectors
from tangentlab.testing.small_models import ALL, CLASSES, EXAMPLES, Case, case_of

PAIRS = [
    (a, b) for a in (tl.PushForwardDense, tl.PushForwardImplicit) for b in (tl.PushForwardDense, tl.PushForwardImplicit)
]
HOWS = ("per_output", "global")
pairs = pytest.mark.parametrize("kinds", PAIRS, ids=lambda kinds: " ".join(kind.__name__ for kind in kinds))


@cache
def jacobian(case: Case, kind: type, scale: float = 1.0) -> tl.PushForward:
    """Of the outputs times a number, so that there are two Jacobians on one layout."""
    return tl.Jacobian(case.model, case.batches, kind, function=lambda output, batch: scale * output.sin())


@cache
def written(case: Case, scale: float = 1.0) -> Tensor:
    """(outputs, examples, d) by autograd, in double precision."""
    twin = case_of(case.name)
    plain = truth.exact_jacobian(case.name).transpose(0, 1)
    return scale * twin.model(twin.inputs).detach().cos().t()[:, :, None] * plain


def less_mean(data: Tensor, how: str) -> Tensor:
    outputs, examples, _ = data.shape
    rows = list(data.flatten(0, 1))
    groups = [rows] if how == "global" else [rows[c * examples : (c + 1) * examples] for c in range(outputs)]
    return torch.stack([row - sum(group) / len(group) for group in groups for row in group]).reshape(data.shape)


def check(J: tl.PushForward, expected: Tensor, case: Case) -> None:
    """As a map, as its transpose, and as numbers."""
    u = tl.FVector(torch.randn(2, CLASSES, EXAMPLES, generator=torch.Generator().manual_seed(1)).to(case.dtype))
    v = vectors(case, 2)
    assert isinstance(J, tl.PushForward) and isinstance(J.T, tl.PullBack)
    assert_close(J.tensor(), expected, case.dtype)
    assert_close(J.T.tensor(), expected.permute(2, 0, 1), case.dtype)
    for map_ in (J, J.T.T):
        assert_close((map_ @ v).data, torch.einsum("cnd,bd->bcn", expected, v.flat.double()), case.dtype)
    assert_close((J.T @ u).flat, torch.einsum("cnd,bcn->bd", expected, u.data.double()), case.dtype)
    with J.frozen(), J.T.frozen():
        assert_close((J @ v).data, torch.einsum("cnd,bd->bcn", expected, v.flat.double()), case.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", (tl.PushForwardDense, tl.PushForwardImplicit), ids=lambda kind: kind.__name__)
def test_multiples_and_centered_versions(name, kind, dtype):
    case = case_of(name, dtype, "uneven batches")
    J, D = jacobian(case, kind), written(case)
    check(J, D, case)
    for result, expected in ((2 * J, 2 * D), (J / 4, D / 4), (-J, -D), (J * torch.tensor(3.0), 3 * D)):
        check(result, expected, case)
        assert (type(result) is kind) == (kind is tl.PushForwardDense)
    for how in HOWS:
        check(J.center(how), less_mean(D, how), case)
    assert float(torch.as_tensor((J.center() @ vectors(case)).data.mean(1)).abs().max()) < 1e-5


@pairs
@pytest.mark.parametrize("name", ["mlp", "embedding", "bare parameters"])
def test_sums_and_differences_of_any_two(name, kinds):
    case = case_of(name, split="uneven batches")
    J, K = jacobian(case, kinds[0]), jacobian(case, kinds[1], -0.5)
    A, B = written(case), written(case, -0.5)
    check(J + K, A + B, case)
    check(J - K, A - B, case)
    check(2 * (J - K / 4) + J.center() + K, 2 * (A - B / 4) + less_mean(A, "per_output") + B, case)
    stored = kinds == (tl.PushForwardDense, tl.PushForwardDense)
    assert isinstance(J + K, tl.PushForwardDense if stored else tl.PushForwardSum)


@pytest.mark.parametrize("kind", (tl.PullBackDense, tl.PullBackImplicit), ids=lambda kind: kind.__name__)
def test_the_transposed_maps_have_the_same_algebra(kind):
    case = case_of("mlp", split="uneven batches")
    Jt = tl.Jacobian(case.model, case.batches, kind)
    D = truth.exact_jacobian("mlp").transpose(0, 1)
    for how in HOWS:
        result = (3 * Jt - Jt / 2 + (-Jt)).center(how)
        assert isinstance(result, tl.PullBack)
        check(result.T, 1.5 * less_mean(D, how), case)


@pytest.mark.parametrize("kind", (tl.PushForwardDense, tl.PushForwardImplicit), ids=lambda kind: kind.__name__)
def test_a_second_centering_takes_off_what_is_left(kind):
    case = case_of("mlp")
    J, D = jacobian(case, kind), written(case)
    for first in HOWS:
        for second in HOWS:
            check(J.center(first).center(second), less_mean(less_mean(D, first), second), case)
    check((J.center("global") + J).center(), 2 * less_mean(D, "per_output"), case)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", (tl.PushForwardDense, tl.PushForwardImplicit), ids=lambda kind: kind.__name__)
def test_the_kernel_of_a_centered_jacobian_is_the_centered_kernel(kind, how):
    case = case_of("grouped convolution", split="uneven batches")
    J = tl.Jacobian(case.model, case.batches, kind).center(how)
    K = tl.NTK(case.model, case.batches, center=how)
    u = tl.FVector.random_unit(CLASSES, EXAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_close((J @ (J.T @ u)).data, (K @ u).data)
    if kind is tl.PushForwardDense:
        assert_close(J.gram().tensor(), K.tensor())


@pytest.mark.parametrize("kind", (tl.PushForwardDense, tl.PushForwardImplicit), ids=lambda kind: kind.__name__)
def test_what_does_not_add_up_is_refused(kind):
    case = case_of("mlp")
    J = jacobian(case, kind)
    for wrong in (
        lambda: J + J.T,
        lambda: J.T - J,
        lambda: J + 1,
        lambda: J * "two",
        lambda: J / "two",
        lambda: J + vectors(case),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(InputError, match="one number"):
        J * torch.ones(3)
    with pytest.raises(InputError, match="different parameters"):
        J + tl.Jacobian(case.model, case.batches, layers="0")
    with pytest.raises(InputError, match="per_output"):
        J.center("rows")
    with pytest.raises(InputError, match="different"):
        (J + tl.Jacobian(case.model, case.inputs[:3], kind)) @ vectors(case)
    for map_ in (J + J, J.center(), 2 * J):
        with pytest.raises(InputError, match="other parameters"):
            map_ @ of_another_model()
        with pytest.raises(InputError, match="FVectors"):
            map_.T @ vectors(case)
    assert np.float64(2) * J is not None and "31" in repr(J + J)

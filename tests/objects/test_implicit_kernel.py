"""FMatImplicit against the kernel written out: products, solves, spectra, every option of NTK."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tangentlab as tl
from tangentlab.errors import InputError, SolveError, StructureError
from tangentlab.testing.dense_truth import DAMPING, assert_close
from tangentlab.testing.small_models import ALL, EXAMPLES, Case, case_of
from tangentlab.testing.truth import jacobian

OPTIONS = {
    "all outputs": {},
    "trace": {"outputs": "trace"},
    "one output": {"outputs": 1},
    "centred per output": {"center": "per_output"},
    "centred globally": {"center": "global"},
    "centred trace": {"outputs": "trace", "center": "per_output"},
}


def kernels(case: Case, **options: object) -> tuple[tl.FMatImplicit, tl.FMatDense]:
    return (
        tl.NTK(case.model, case.batches, representation=tl.FMatImplicit, **options),
        tl.NTK(case.model, case.batches, **options),
    )


def functions(K: tl.FMat, *batch: int) -> tl.FVector:
    generator = torch.Generator().manual_seed(3)
    return tl.FVector(torch.randn(*batch, *K.sizes[2:], generator=generator, dtype=K._example().dtype))


@pytest.mark.parametrize("name", ALL)
def test_product_is_that_of_the_jacobian_with_its_transpose(name):
    case = case_of(name, split="uneven batches")
    K = kernels(case)[0]
    J = jacobian(case.model, case.inputs).transpose(0, 1)
    u = functions(K, 2)
    pulled = torch.einsum("cnd,bcn->bd", J, u.data)
    assert_close((K @ u).data, torch.einsum("cnd,bd->bcn", J, pulled), factor=10)
    assert_close(K.diag().data, J.square().sum(-1), factor=10)
    assert_close(K.trace(), J.square().sum(), factor=10)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_of_the_kernel_gives_the_same_as_the_dense_one(options):
    case = case_of("mlp", split="uneven batches")
    implicit, dense = kernels(case, **options)
    u = functions(dense, 2)
    assert implicit.sizes == dense.sizes and implicit.outputs == dense.outputs and implicit.examples == EXAMPLES
    assert_close((implicit @ u).data, (dense @ u).data)
    assert_close(implicit.vTMv(u), dense.vTMv(u))
    assert_close(implicit.diag().data, dense.diag().data)
    assert_close(implicit.matrix(), dense.matrix())
    assert_close(implicit.norm(), dense.norm())
    assert_close(implicit.eigvalsh(), dense.eigvalsh())
    assert_close(implicit.logdet(DAMPING), dense.logdet(DAMPING))
    assert_close(implicit.solve(u, DAMPING).data, dense.solve(u, DAMPING).data, factor=1e3)


def test_kernels_per_layer_add_up_to_the_kernel():
    case = case_of("mlp")
    parts = tl.NTK(case.model, case.batches, representation=tl.FMatImplicit, per_layer=True)
    whole = tl.NTK(case.model, case.batches, representation=tl.FMatImplicit)
    u = functions(whole)
    assert set(parts) == {"0", "2"}
    assert_close(sum((part @ u).data for part in parts.values()), (whole @ u).data)


def test_cross_kernel_multiplies_from_the_right_and_has_no_diagonal():
    case = case_of("mlp")
    left, right = case.inputs[:3], case.inputs[3:]
    K = tl.NTK(case.model, left, right, representation=tl.FMatImplicit)
    dense = tl.NTK(case.model, left, right)
    u = functions(dense)
    assert K.is_cross and K.sizes == (3, 3, 3, 4)
    assert_close((K @ u).data, (dense @ u).data)
    for operation in (K.diag, K.trace, K.top_eigenpairs, lambda: K.solve(u, DAMPING)):
        with pytest.raises(InputError, match="square"):
            operation()


def test_leading_eigenpairs_and_estimates_agree_with_the_dense_kernel():
    case = case_of("mlp")
    implicit, dense = kernels(case)
    values = dense.eigvalsh().flip(0)
    pairs = implicit.top_eigenpairs(3)
    assert_close(pairs.values, values[:3])
    scaled = tl.FVector(pairs.values[:, None, None] * pairs.vectors.data)
    assert_close((implicit @ pairs.vectors).data, scaled.data, factor=10)
    assert_close(implicit.estimate_trace(implicit.dim).estimate, dense.trace())
    found = implicit.estimate_logdet(DAMPING, probes=32, generator=torch.Generator().manual_seed(0))
    assert abs(float(found.estimate - dense.logdet(DAMPING))) < 5 * float(found.standard_error) + 1e-6


def test_conjugate_gradients_take_the_dense_kernel_as_preconditioner():
    case = case_of("mlp")
    implicit, dense = kernels(case)
    u = functions(dense)
    solution, report = implicit.solve_cg(u, DAMPING, preconditioner=dense)
    assert report.converged and report.iterations <= 2
    assert_close(solution.data, dense.solve(u, DAMPING).data, factor=100)


def test_solve_without_damping_asks_for_one():
    K = kernels(case_of("mlp"))[0]
    with pytest.raises(SolveError, match="damping"):
        K.solve(functions(K))


def test_scalar_multiples_and_what_is_refused():
    case = case_of("mlp")
    K, dense = kernels(case)
    u = functions(K)
    assert_close(((2 * K) @ u).data, 2 * (dense @ u).data)
    assert_close((K / 2).trace(), dense.trace() / 2)
    assert K.numel() == 0 and K.nbytes() == 0 and "FMatImplicit" in repr(K)
    with pytest.raises(StructureError):
        pickle.dumps(K)
    with pytest.raises(InputError):
        K @ tl.FVector(torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="FMatDense or FMatImplicit"):
        tl.NTK(case.model, case.inputs, representation=tl.PMatDense)
    with pytest.raises(InputError, match="n_output"):
        tl.NTK(case.model, case.inputs, representation=tl.FMatImplicit, n_output=5)


@pytest.mark.parametrize("kind", [tl.FMatImplicit, tl.FMatDense])
def test_an_unknown_centering_is_refused_before_anything_is_computed(kind):
    case = case_of("mlp")
    calls = []
    case.model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(InputError, match="center must be None, 'per_output' or 'global', not 'rows'"):
        tl.NTK(case.model, case.inputs, representation=kind, center="rows")
    assert not calls


def test_shuffling_loader_is_refused():
    case = case_of("mlp")
    loader = DataLoader(TensorDataset(case.inputs), batch_size=3, shuffle=True)
    with pytest.raises(InputError, match="shuffle"):
        tl.NTK(case.model, loader, representation=tl.FMatImplicit)


def test_cut_offs_norms_and_eigenvectors_agree_with_the_dense_kernel():
    case = case_of("mlp", split="uneven batches")
    implicit = tl.NTK(case.model, case.batches, representation=tl.FMatImplicit)
    dense = tl.NTK(case.model, case.batches)
    values = dense.eigvalsh()
    cut = float((values[-2] * values[-3]).sqrt())
    u = tl.FVector.random_unit(*dense.sizes[:2], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_close(implicit.pinv(cut).matrix(), dense.pinv(cut).matrix())
    assert_close(implicit.solve(u, atol=cut).flat, dense.solve(u, atol=cut).flat)
    assert_close(implicit.norm(2), values.abs().max())
    assert_close(implicit.norm(), dense.norm())
    assert_close(implicit.eigh()[0], values)
    start = dense.solve(u, 0.1)
    assert implicit.solve_cg(u, 0.1, start=start, rtol=1e-6)[1].iterations == 0
    cross = tl.NTK(case.model, case.inputs[:3], case.inputs, representation=tl.FMatImplicit)
    assert_close(cross.norm(2), torch.linalg.svdvals(dense.tensor()[:, :3].reshape(9, -1)).max())

"""Every statement about curvlinops: our matrices against its definitions, and these against the library where it is there."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab
from tangentlab import (
    FIM,
    GGN,
    FIM_Empirical,
    FIM_MonteCarlo,
    Hessian,
    PMat,
    PMatDense,
    PMatEKFAC,
    PMatKFAC,
    PVector,
    linalg,
)
from tests.docs.coming_from import curvlinops_formulas as theirs
from tests.docs.coming_from.cases import (
    LOSSES,
    NETWORKS,
    REDUCTIONS,
    SINGLE,
    TOKENS,
    C,
    Case,
    N,
    T,
    case,
    covers,
    ours,
)

SECTION = "curvlinops"
MEAN = {"cross entropy": 1.0, "binary cross entropy": 1 / C, "squared error": 2 / C}
SUM = {"cross entropy": N, "binary cross entropy": N, "squared error": 2 * N}

each_network = pytest.mark.parametrize("network", NETWORKS)
each_single = pytest.mark.parametrize("network", SINGLE)
each_loss = pytest.mark.parametrize("loss", LOSSES)
each_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)
each_fisher = pytest.mark.parametrize("fisher", ["type-2", "empirical"])


def factor(one: Case, empirical: bool = False) -> float:
    """The page's table: their matrix over ours."""
    found = MEAN[one.loss] / one.terms if one.reduction == "mean" else SUM[one.loss]
    return 2 * found if empirical and one.loss == "squared error" else found


def close(found: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-10 * float(truth.abs().max()))


def differ(found: Tensor, truth: Tensor) -> None:
    """Not even equal up to a factor."""
    scale = (found * truth).sum() / truth.square().sum()
    assert float((found - scale * truth).norm() / found.norm()) > 1e-3


def matrix(row: str, one: Case) -> Tensor:
    """The page's code on a case, dense."""
    return ours(SECTION, row, one.names())[0].to_dense()


def kronecker(one: Case, fisher: str, sharing: str = "expand", kind: type = PMatKFAC) -> PMat:
    representation = kind.with_options(sharing=sharing)  # type: ignore[attr-defined]
    if fisher == "empirical":
        return FIM_Empirical(one.model, (one.x, one.y), representation, one.likelihood)
    return FIM(one.model, one.x, representation, one.likelihood)


# ---------------------------------------------------------------- the table of factors


@each_network
@each_loss
@each_reduction
def test_hessian_and_gauss_newton_matrices_are_ours_times_the_factor(network: str, loss: str, reduction: str) -> None:
    one = case(network, loss, reduction)
    data = one.x, one.y
    close(factor(one) * Hessian(one.model, data, PMatDense, one.likelihood).to_dense(), theirs.hessian(one))
    close(factor(one) * GGN(one.model, data, PMatDense, one.likelihood).to_dense(), theirs.ggn(one))


@each_network
@each_loss
@each_reduction
def test_the_empirical_fisher_is_ours_times_the_factor_and_another_matrix_at_tokens(
    network: str, loss: str, reduction: str
) -> None:
    one = case(network, loss, reduction)
    found = FIM_Empirical(one.model, (one.x, one.y), PMatDense, one.likelihood).to_dense()
    if network in TOKENS:
        differ(found, theirs.empirical_fisher(one))
    else:
        close(factor(one, empirical=True) * found, theirs.empirical_fisher(one))


@each_network
@each_loss
@each_reduction
@each_fisher
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_kfac_is_ours_times_the_factor_where_no_class_of_several_tokens_goes_back_together(
    network: str, loss: str, reduction: str, fisher: str, sharing: str
) -> None:
    one = case(network, loss, reduction)
    found = kronecker(one, fisher, sharing).to_dense()
    truth = theirs.kfac(theirs.kfac_factors(one, fisher, sharing))
    if fisher == "type-2" and (network == "mixed tokens" or (network == "tokens" and sharing == "reduce")):
        differ(found, truth)
    else:
        close(factor(one, fisher == "empirical") * found, truth)


@each_single
@each_loss
@each_reduction
@each_fisher
def test_ekfac_is_ours_times_the_factor(network: str, loss: str, reduction: str, fisher: str) -> None:
    one = case(network, loss, reduction)
    close(
        factor(one, fisher == "empirical") * kronecker(one, fisher, kind=PMatEKFAC).to_dense(),
        theirs.ekfac(one, fisher),
    )


# ---------------------------------------------------------------- rows

MATRICES = {
    "GGNLinearOperator(...)": theirs.ggn,
    "EFLinearOperator(...)": theirs.empirical_fisher,
    'KFACLinearOperator(..., fisher_type="type-2", separate_weight_and_bias=False)': lambda one: theirs.kfac(
        theirs.kfac_factors(one)
    ),
    'fisher_type="empirical"': lambda one: theirs.kfac(theirs.kfac_factors(one, "empirical")),
    'kfac_approx="reduce"': lambda one: theirs.kfac(theirs.kfac_factors(one, sharing="reduce")),
    "EKFACLinearOperator(...)": theirs.ekfac,
}


@covers(SECTION, *MATRICES)
@each_single
@each_reduction
@pytest.mark.parametrize("row", MATRICES)
def test_the_code_of_a_row_gives_their_matrix(row: str, network: str, reduction: str) -> None:
    one = case(network, reduction=reduction)
    close(factor(one) * matrix(row, one), MATRICES[row](one))


@covers(SECTION, "HessianLinearOperator(model, loss, params, data) @ v")
@each_network
def test_products_with_the_hessian(network: str) -> None:
    one = case(network)
    names = one.names()
    (found,) = ours(SECTION, "HessianLinearOperator(model, loss, params, data) @ v", names)
    close(factor(one) * found.flat, theirs.hessian(one) @ names["v"].flat)


@covers(SECTION, "FisherMCLinearOperator(..., mc_samples=3, seed=0)")
@each_network
def test_a_sampled_fisher_is_theirs_of_the_same_labels_and_another_matrix_at_tokens(network: str) -> None:
    one = case(network)
    (sampled,) = ours(SECTION, "FisherMCLinearOperator(..., mc_samples=3, seed=0)", one.names())
    labels = torch.cat([torch.as_tensor(part) for part in sampled.labels], 1).reshape(3, -1)
    truth = theirs.second_moment(one, theirs.sampled_gradients(one, labels))
    if network in TOKENS:
        differ(sampled.to_dense(), truth)
    else:
        close(factor(one) * sampled.to_dense(), truth)


@covers(SECTION, 'fisher_type="mc"')
@pytest.mark.parametrize("network", ["plain", "shared", "tokens"])
def test_kfac_of_sampled_labels_has_the_mean_of_the_exact_one(network: str) -> None:
    one = case(network)
    assert type(ours(SECTION, 'fisher_type="mc"', one.names())[0]) is PMatKFAC
    many = FIM_MonteCarlo(one.model, one.x, PMatKFAC, samples=4000, generator=torch.Generator().manual_seed(0))
    truth = theirs.kfac(theirs.kfac_factors(one))
    assert float((factor(one) * many.to_dense() - truth).norm() / truth.norm()) < 0.03


@covers(SECTION, "params=[...]")
@each_single
def test_selected_parameters_are_a_block_of_the_matrix(network: str) -> None:
    one = case(network)
    names = {**one.names(), "model": nn.Sequential(one.model[0], one.model[1:-1], one.model[-1])}
    (found,) = ours(SECTION, "params=[...]", names)
    close(found.to_dense(), theirs.ggn(one))
    first = FIM(one.model, one.x, PMatDense, layers="0")
    close(first.to_dense(), theirs.ggn(one)[: first.dim, : first.dim])


@covers(SECTION, "JacobianLinearOperator(model, params, data) @ v", "TransposedJacobianLinearOperator(...)")
@each_network
def test_jacobian_products_have_examples_inner_here_and_outer_there(network: str) -> None:
    one = case(network)
    names = one.names()
    jacobian = theirs.row_jacobian(one)  # (R, C, d): examples outer
    (image,) = ours(SECTION, "JacobianLinearOperator(model, params, data) @ v", names)
    close(image.to_outputs().reshape(-1), (jacobian @ names["v"].flat).reshape(-1))
    (back,) = ours(SECTION, "TransposedJacobianLinearOperator(...)", names)
    close(back.flat, torch.einsum("rcd,rc->d", jacobian, names["u"].to_outputs().reshape(-1, C)))


@covers(SECTION, "K.trace, K.logdet, K.frobenius_norm")
@each_network
def test_trace_determinant_and_norm_are_those_of_the_dense_matrix(network: str) -> None:
    names = case(network).names()
    trace, logdet, norm = ours(SECTION, "K.trace, K.logdet, K.frobenius_norm", names)
    dense = names["F"].to_dense()
    close(trace, dense.trace())
    close(logdet, torch.logdet(dense + 1e-3 * torch.eye(len(dense), dtype=dense.dtype)))
    close(norm, dense.norm())


@covers(SECTION, "K.state_dict()")
@each_network
def test_a_matrix_survives_its_file_and_its_bytes(network: str, tmp_path: Path) -> None:
    names = {**case(network).names(), "path": tmp_path / "F.safetensors"}
    _, back = ours(SECTION, "K.state_dict()", names)
    for matrix in (back, pickle.loads(pickle.dumps(names["F"]))):
        assert torch.equal(matrix.tensor(), names["F"].tensor())


def solved(one: Case, fisher: str, sharing: str, damping: float, **options: Any) -> Tensor:
    """Columns of ours, as the page's rows tell: F.solve(v, damping / s) / s."""
    s = factor(one, fisher == "empirical")
    F = kronecker(one, fisher, sharing)
    rows = PVector(F.layout, torch.eye(F.dim, dtype=torch.float64))
    return (F.solve(rows, damping / s, **options) / s).flat


@each_network
@each_loss
@each_reduction
@pytest.mark.parametrize("mode", ["exact", "heuristic"])
def test_inverses_with_exact_and_heuristic_damping_are_ours_with_damping_over_s(
    network: str, loss: str, reduction: str, mode: str
) -> None:
    one = case(network, loss, reduction)
    for fisher, sharing in (("type-2", "expand"), ("empirical", "expand"), ("empirical", "reduce")):
        if fisher == "type-2" and network == "mixed tokens":
            continue
        truth = theirs.inverse(theirs.kfac_factors(one, fisher, sharing), 0.03, mode)
        found = solved(one, fisher, sharing, 0.03, **({"factored": True} if mode == "heuristic" else {}))
        torch.testing.assert_close(found, truth, rtol=1e-7, atol=1e-8 * float(truth.abs().max()))


@covers(
    SECTION,
    "KFACInverseLinearOperator(K, damping, use_exact_damping=True) @ v",
    "KFACInverseLinearOperator(K, damping, use_heuristic_damping=True)",
)
@each_single
@pytest.mark.parametrize("mode", ["exact", "heuristic"])
def test_the_code_of_the_inverse_rows(network: str, mode: str) -> None:
    one = case(network)
    names = one.names()
    row = f"KFACInverseLinearOperator(K, damping, use_{mode}_damping=True)" + " @ v" * (mode == "exact")
    (found,) = ours(SECTION, row, names)
    truth = theirs.inverse(theirs.kfac_factors(one), 1e-2, mode) @ names["v"].flat
    torch.testing.assert_close(found.flat, truth, rtol=1e-7, atol=1e-9)


@covers(SECTION, "KFACInverseLinearOperator(K, damping=1e-2)")
@each_network
def test_the_plain_inverse_has_pi_one_without_weight_sharing_only(network: str) -> None:
    one = case(network)
    names = one.names()
    (found,) = ours(SECTION, "KFACInverseLinearOperator(K, damping=1e-2)", names)
    truth = theirs.inverse(theirs.kfac_factors(one), 1e-2) @ names["v"].flat
    if network == "plain":
        close(found.flat, truth)
    else:
        differ(found.flat, truth)


@each_network
@each_loss
@each_reduction
def test_the_plain_inverse_of_a_layer_is_ours_with_pi_of_its_positions(network: str, loss: str, reduction: str) -> None:
    one, damping = case(network, loss, reduction), 1e-2
    s, factors = factor(one, empirical=True), theirs.kfac_factors(one, "empirical")
    for layer, pair in factors.items():
        positions = {("shared", "0"): T, ("conv", "0"): 4}.get((network, layer), T if network in TOKENS else 1)
        F = FIM_Empirical(one.model, (one.x, one.y), PMatKFAC, one.likelihood, layers=layer)
        rows = PVector(F.layout, torch.eye(F.dim, dtype=torch.float64))
        found = F.solve(rows, damping**2 / s, factored=True, pi=positions * s**0.5) / s
        truth = theirs.inverse({layer: pair}, damping)
        torch.testing.assert_close(found.flat, truth, rtol=1e-7, atol=1e-8 * float(truth.abs().max()))


@covers(SECTION, "CGInverseLinearOperator(A)")
@each_network
def test_conjugate_gradients_solve_with_the_damped_matrix(network: str) -> None:
    one = case(network)
    names = one.names()
    ((solution, report),) = ours(SECTION, "CGInverseLinearOperator(A)", names)
    dense = theirs.ggn(one) / factor(one)
    truth = torch.linalg.solve(dense + 1e-2 * torch.eye(len(dense), dtype=dense.dtype), names["v"].flat)
    torch.testing.assert_close(solution.flat, truth, rtol=1e-5, atol=1e-7)
    assert report.converged


@covers(SECTION, "A + B, 2 * A, A @ B")
@each_network
def test_sums_multiples_and_products(network: str) -> None:
    one = case(network)
    names = one.names()
    total, double, product = ours(SECTION, "A + B, 2 * A, A @ B", names)
    dense, exact = names["F"].to_dense(), theirs.ggn(one) / factor(one)
    close(total.to_dense(), dense + torch.diag(exact.diagonal()))
    close(double.to_dense(), 2 * dense)
    close(product.to_dense(), dense @ dense)


@covers(SECTION, "SubmatrixLinearOperator(A, rows, cols)")
@each_network
def test_a_part_of_the_matrix(network: str) -> None:
    one = case(network)
    (part,) = ours(SECTION, "SubmatrixLinearOperator(A, rows, cols)", one.names())
    close(factor(one) * part, theirs.ggn(one)[:3, :5])


@covers(
    SECTION,
    "hutchinson_trace(A, m), hutchpp_trace(A, m), xtrace(A, m)",
    "hutchinson_diag(A, m), xdiag(A, m)",
    "hutchinson_squared_fro(A, m)",
)
@each_single
def test_estimates_lie_within_their_errors_and_the_norm_is_exact(network: str) -> None:
    torch.manual_seed(0)
    names = case(network).names()
    names["F"] = names["F"].to(dtype=torch.float32)  # the type of the page's model, and of the probes by default
    dense = names["F"].to_dense()
    (traces,) = ours(SECTION, "hutchinson_trace(A, m), hutchpp_trace(A, m), xtrace(A, m)", names)
    for estimate in traces:
        assert abs(estimate.estimate - dense.trace()) <= 5 * estimate.standard_error + 1e-4 * dense.trace()
    for estimate in ours(SECTION, "hutchinson_diag(A, m), xdiag(A, m)", names):
        off = (estimate.estimate - dense.diagonal()).abs() / (estimate.standard_error + 1e-4 * dense.diagonal().max())
        assert float(off.median()) < 2
    (square,) = ours(SECTION, "hutchinson_squared_fro(A, m)", names)
    torch.testing.assert_close(square, dense.square().sum())


@covers(SECTION, "lanczos_approximate_spectrum(A, ncv)", "eigsh(A.to_scipy(), k=3)")
@each_single
def test_spectra_are_those_of_the_dense_matrix(network: str) -> None:
    torch.manual_seed(0)
    names = case(network).names()
    spectrum = torch.linalg.eigvalsh(names["F"].to_dense())
    (pairs,) = ours(SECTION, "eigsh(A.to_scipy(), k=3)", names)
    close(pairs.values.sort().values, spectrum[-3:])
    close((names["F"] @ pairs.vectors).flat, pairs.values[:, None] * pairs.vectors.flat)
    (density,) = ours(SECTION, "lanczos_approximate_spectrum(A, ncv)", names)
    mean = torch.trapezoid(density.density * density.grid, density.grid)
    torch.testing.assert_close(mean, spectrum.mean(), rtol=0.5, atol=density.width)


@covers(SECTION, 'fisher_type="forward-only"', "LSMRInverseLinearOperator, NeumannInverseLinearOperator")
def test_what_is_not_here_is_not_here() -> None:
    for word in ("lsmr", "neumann", "forward_only"):
        assert not [name for name in (*dir(tangentlab), *dir(linalg)) if word in name.lower()]


# ---------------------------------------------------------------- the library itself


class ClassesFirst(nn.Module):
    """Logits of tokens as torch's cross entropy wants them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).movedim(-1, 1)


@each_network
@each_loss
@each_reduction
def test_the_definitions_are_those_of_the_installed_library(network: str, loss: str, reduction: str) -> None:
    library = pytest.importorskip("curvlinops")
    one = case(network, loss, reduction)
    model = ClassesFirst(one.model) if one.terms > 1 and loss == "cross entropy" else one.model
    arguments = model, one.torch_loss(), list(one.model.parameters()), [(one.x, one.y)]

    def dense(operator: Any) -> Tensor:
        return operator @ torch.eye(operator.shape[1], dtype=torch.float64)

    close(theirs.ggn(one), dense(library.GGNLinearOperator(*arguments)))
    close(theirs.hessian(one), dense(library.HessianLinearOperator(*arguments)))
    close(theirs.empirical_fisher(one), dense(library.EFLinearOperator(*arguments)))
    for fisher in ("type-2", "empirical"):
        options = {"fisher_type": fisher, "separate_weight_and_bias": False}
        if one.terms == 1:
            close(theirs.ekfac(one, fisher), dense(library.EKFACLinearOperator(*arguments, **options)))
        for sharing in ("expand", "reduce"):
            kfac = library.KFACLinearOperator(*arguments, kfac_approx=sharing, **options)
            factors = theirs.kfac_factors(one, fisher, sharing)
            close(theirs.kfac(factors), dense(kfac))
            for mode in ("default", "heuristic", "exact"):
                damping = {f"use_{mode}_damping": True} if mode != "default" else {}
                inverse = library.KFACInverseLinearOperator(kfac, damping=0.03, **damping)
                close(theirs.inverse(factors, 0.03, mode), dense(inverse))

"""Every statement about nngeometry: our objects against its definitions, and these against the library where it is there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tangentlab as tl
from tangentlab import FIM, FIM_MonteCarlo, Jacobian, LayerCollection, PMatDense, PMatEKFAC, PMatKFAC, PVector
from tests.docs.coming_from import curvlinops_formulas as formulas
from tests.docs.coming_from.cases import NETWORKS, SINGLE, C, Case, N, case, covers, default_double, ours
from tests.docs.coming_from.test_curvlinops import close, differ, factor
from tests.engine.truth import dense_jacobian

SECTION = "nngeometry"
each_network = pytest.mark.parametrize("network", NETWORKS)
each_single = pytest.mark.parametrize("network", SINGLE)
VARIANTS = {
    "classif_logits": ("cross entropy", C - 1),
    "classif_binary_logits": ("binary cross entropy", C),
    "regression": ("squared error", C),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def value(row: str, one: Case) -> Any:
    (found,) = ours(SECTION, row, one.names())
    return found


def fisher(one: Case) -> Tensor:
    """1/n sum_i J_i^T M_i J_i, the Gauss-Newton matrix of the summed negative log-likelihood over n."""
    return formulas.ggn(one) / factor(one)


def kfac_factors(one: Case, k: int) -> formulas.Factors:
    """A = sqrt(k)/n sum_n sum_t a a^T and B = 1/(sqrt(k) n T) sum g g^T for k functions of the outputs."""
    total = case(one.name, one.loss, "sum")
    shrink = 1 if one.loss != "squared error" else 0.5
    factors = {}
    for name, (inputs, grads) in formulas.calls(total, formulas.columns_of(total, "type-2")).items():
        a, g = inputs.flatten(0, 1), grads.flatten(0, 2)
        rows = N * inputs.shape[1]
        factors[name] = k**0.5 * a.T @ a / N, shrink * g.T @ g / (k**0.5 * rows)
    return factors


def solved(factors: formulas.Factors, regul: float, use_pi: bool) -> Tensor:
    """(A + pi sqrt(regul))^-1 (x) (B + sqrt(regul) / pi)^-1."""
    return formulas.inverse(factors, regul if use_pi else regul**0.5, "heuristic" if use_pi else "default")


# ---------------------------------------------------------------- Fisher matrices


@covers(SECTION, 'FIM(model, loader, PMatKFAC, variant="classif_logits")', 'FIM(..., variant="regression")')
@each_single
@each_variant
def test_fisher_matrices_are_equal_in_every_variant(network: str, variant: str) -> None:
    loss, k = VARIANTS[variant]
    one = case(network, loss)
    close(FIM(one.model, one.x, PMatDense, variant=variant).to_dense(), fisher(one))
    kfac = formulas.kfac(kfac_factors(one, k))
    close(FIM(one.model, one.x, PMatKFAC, variant=variant).to_dense(), kfac)
    rows = {
        "classif_logits": 'FIM(model, loader, PMatKFAC, variant="classif_logits")',
        "regression": 'FIM(..., variant="regression")',
    }
    if variant in rows:
        close(value(rows[variant], one).to_dense(), kfac)


def pixels() -> tuple[nn.Sequential, Tensor]:
    """Three outputs at each of four pixels, classes on axis 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, C, 1)).double()
    return model, torch.randn(N, 2, 3, 3, dtype=torch.float64)


def test_outputs_at_every_pixel_are_flattened_in_a_regression() -> None:
    model, x = pixels()
    rows = dense_jacobian(model, x).flatten(0, 1)
    close(FIM(model, x, PMatDense, variant="regression").to_dense(), rows.T @ rows / N)


@covers(SECTION, "FIM_MonteCarlo(..., trials=5)")
@each_single
def test_sampled_fisher_matrices_are_those_of_the_same_labels(network: str) -> None:
    one = case(network)
    sampled = FIM_MonteCarlo(one.model, one.x, PMatDense, trials=5, generator=torch.Generator().manual_seed(0))
    labels = torch.cat([torch.as_tensor(part) for part in sampled.labels], 1)
    assert labels.shape == (5, N)
    close(sampled.to_dense(), formulas.second_moment(one, formulas.sampled_gradients(one, labels)))
    assert type(value("FIM_MonteCarlo(..., trials=5)", one)) is PMatKFAC


def test_sampled_labels_of_pixels_add_up_within_an_example() -> None:
    model, x = pixels()
    sampled = FIM_MonteCarlo(
        model, x, PMatDense, variant="segmentation_logits", trials=2, generator=torch.Generator().manual_seed(0)
    )
    labels = torch.cat([torch.as_tensor(part) for part in sampled.labels], 1)  # (2, N, pixels)
    log_p = lambda m, b: m(b).log_softmax(1).flatten(2)  # noqa: E731
    jacobian = dense_jacobian(model, x, log_p).reshape(C, 4, N, -1)
    rows = []
    for draw in labels.reshape(2, N, 4):
        rows += [sum(jacobian[draw[n, p], p, n] for p in range(4)) for n in range(N)]
    close(sampled.to_dense(), torch.stack(rows).T @ torch.stack(rows) / (2 * N))


@covers(SECTION, "FIM(..., function=lambda *d: f(model, d))")
@each_single
def test_a_function_of_the_model_and_the_batch(network: str) -> None:
    one = case(network)
    close(value("FIM(..., function=lambda *d: f(model, d))", one).diag().flat, fisher(one).diagonal())


@covers(SECTION, "GramMatrix(model, loader)", "Jacobian(model, loader)")
@each_network
def test_kernel_and_jacobian_have_the_same_layout(network: str) -> None:
    one = case(network)
    jacobian = dense_jacobian(one.model, one.x)
    close(value("Jacobian(model, loader)", one).data, jacobian)
    close(value("GramMatrix(model, loader)", one).data, torch.einsum("cnd,emd->cnem", jacobian, jacobian))


@covers(SECTION, "J.jvp(v), J.vjp(u)", "PFMapImplicit")
@each_network
def test_products_with_the_jacobian(network: str) -> None:
    one = case(network)
    names, jacobian = one.names(), dense_jacobian(one.model, one.x)
    forward, back = ours(SECTION, "J.jvp(v), J.vjp(u)", names)
    close(forward.data, jacobian @ names["v"].flat)
    close(back.flat, torch.einsum("cnd,cn->d", jacobian, names["u"].data))
    (implicit,) = ours(SECTION, "PFMapImplicit", names)
    close(implicit.data, jacobian @ names["v"].flat)
    transposed = Jacobian(one.model, one.x, tl.PushForwardImplicit).T @ names["u"]
    close(transposed.flat, back.flat)


@covers(SECTION, "Hessian(model, loader, PMatDense, function=loss)")
@each_network
def test_the_hessian_is_a_mean_over_examples(network: str) -> None:
    found = value("Hessian(model, loader, PMatDense, function=loss)", case(network)).to_dense()
    close(N * found, formulas.hessian(case(network, reduction="sum")))
    if network in SINGLE:
        close(found, formulas.hessian(case(network, reduction="mean")))


# ---------------------------------------------------------------- layers and vectors


@covers(
    SECTION,
    "layer_collection=lc",
    "LayerCollection.from_model(model)",
    "lc.add_layer_from_model(model, module)",
)
def test_selections_name_parameters_in_the_order_of_the_model() -> None:
    one = case("plain")
    assert value("layer_collection=lc", one).layout.names == tuple(dict(one.model.named_parameters()))
    assert value("LayerCollection.from_model(model)", one).names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert value("lc.add_layer_from_model(model, module)", one).names == ("0.weight", "0.bias")

    class Late(nn.Module):
        """Registers its second parameter first."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2, bias=False)
            self.register_parameter("own", nn.Parameter(torch.zeros(3)))

    assert LayerCollection.from_model(Late()).names == ("own", "head.weight")


@covers(
    SECTION,
    "PVector.from_model(model)",
    "PVector.from_model_grad(model)",
    "PVector(lc, vector_repr=t)",
    "v.to_torch(), v.to_dict()",
    "v.add_to_model(model), v.copy_to_model(model)",
)
@each_network
def test_vectors_carry_what_the_model_carries(network: str) -> None:
    one = case(network)
    names = one.names()
    weights = torch.cat([p.detach().flatten() for p in one.model.parameters()])
    grads = torch.cat([p.grad.flatten() for p in one.model.parameters()])
    assert torch.equal(ours(SECTION, "PVector.from_model(model)", names)[0].flat, weights)
    assert torch.equal(ours(SECTION, "PVector.from_model_grad(model)", names)[0].flat, grads)
    assert torch.equal(ours(SECTION, "PVector(lc, vector_repr=t)", names)[0].flat, grads)
    flat, parts = ours(SECTION, "v.to_torch(), v.to_dict()", names)
    assert torch.equal(flat, grads)
    assert list(parts) == [name for name, _ in one.model.named_parameters()]
    ours(SECTION, "v.add_to_model(model), v.copy_to_model(model)", names)
    assert torch.equal(PVector.from_model(one.model).flat, weights)
    names["v"].add_to_model(one.model)
    close(PVector.from_model(one.model).flat, weights + grads)


@covers(SECTION, "random_pvector(lc)", "random_fvector(n, c)")
def test_random_vectors_have_length_one() -> None:
    torch.manual_seed(0)
    one = case("plain")
    vector, outputs = value("random_pvector(lc)", one), value("random_fvector(n, c)", one)
    assert vector.flat.numel() == 43 and outputs.shape == (C, N)
    close(vector.flat.norm(), torch.ones((), dtype=vector.flat.dtype))
    close(outputs.flat.norm(), torch.ones(()))


# ---------------------------------------------------------------- operations


@covers(
    SECTION,
    "F.mv(v), F.vTMv(v), F.trace()",
    "F.frobenius_norm()",
    "F.to_torch(), F.get_diag()",
    "F.mm(G)",
)
@each_network
def test_operations_are_those_of_the_dense_matrix(network: str) -> None:
    one = case(network)
    names = one.names()
    dense, v = names["F"].to_dense(), names["v"].flat
    product, form, trace = ours(SECTION, "F.mv(v), F.vTMv(v), F.trace()", names)
    close(product.flat, dense @ v)
    close(form, v @ dense @ v)
    close(trace, dense.trace())
    close(ours(SECTION, "F.frobenius_norm()", names)[0], dense.norm())
    whole, diagonal = ours(SECTION, "F.to_torch(), F.get_diag()", names)
    close(whole, dense)
    close(diagonal, dense.diagonal())
    close(ours(SECTION, "F.mm(G)", names)[0].to_dense(), dense @ torch.diag(fisher(one).diagonal()))


@covers(
    SECTION,
    "F.solve(v, regul=1e-3), not KFAC",
    "F_kfac.solve(v, regul=1e-3)",
    "F_kfac.solvePVec(v, regul=1e-3, use_pi=False)",
    "F.inverse(regul), F.pow(2)",
)
@each_single
def test_solves_and_powers(network: str) -> None:
    one = case(network)
    names = one.names()
    v, eye = names["v"].flat, torch.eye(names["F"].dim, dtype=torch.float64)
    ekfac = FIM(one.model, one.x, PMatEKFAC).to_dense()
    (found,) = ours(SECTION, "F.solve(v, regul=1e-3), not KFAC", names)
    torch.testing.assert_close(found.flat, torch.linalg.solve(ekfac + 1e-3 * eye, v), rtol=1e-6, atol=1e-8)
    factors = kfac_factors(one, C - 1)
    (found,) = ours(SECTION, "F_kfac.solve(v, regul=1e-3)", names)
    torch.testing.assert_close(found.flat, solved(factors, 1e-3, True) @ v, rtol=1e-6, atol=1e-8)
    (found,) = ours(SECTION, "F_kfac.solvePVec(v, regul=1e-3, use_pi=False)", names)
    torch.testing.assert_close(found.flat, solved(factors, 1e-3, False) @ v, rtol=1e-6, atol=1e-8)
    dense = names["F"].to_dense()
    differ(names["F"].solve(names["v"], 1e-3).flat, solved(factors, 1e-3, True) @ v)
    inverse, root = ours(SECTION, "F.inverse(regul), F.pow(2)", names)
    torch.testing.assert_close(inverse.to_dense(), torch.linalg.inv(dense + 1e-3 * eye), rtol=1e-6, atol=1e-6)
    close((root @ root @ names["F"] @ names["F"]).to_dense(), dense)
    close(names["F"].pow(2).to_dense(), dense @ dense)


@each_single
@each_variant
def test_without_pi_theirs_is_ours_with_pi_of_the_number_of_functions(network: str, variant: str) -> None:
    loss, k = VARIANTS[variant]
    one = case(network, loss)
    F = FIM(one.model, one.x, PMatKFAC, variant=variant)
    rows = PVector(F.layout, torch.eye(F.dim, dtype=torch.float64))
    found = F.solve(rows, 1e-2, factored=True, pi=k**-0.5).flat
    torch.testing.assert_close(found, solved(kfac_factors(one, k), 1e-2, False), rtol=1e-6, atol=1e-6)


@covers(
    SECTION,
    "PMatEKFAC(...), then F.update_diag(loader)",
    "F.compute_eigendecomposition(), F.get_eigendecomposition()",
    "F.project_to_diag(v), F.project_from_diag(v)",
)
@each_single
def test_eigenbases(network: str) -> None:
    one = case(network)
    names = one.names()
    (corrected,) = ours(SECTION, "PMatEKFAC(...), then F.update_diag(loader)", names)
    close(corrected.to_dense(), formulas.ekfac(one))
    first = FIM(one.model, one.x, PMatEKFAC.with_options(corrected=False))
    close(first.to_dense(), formulas.kfac(kfac_factors(one, C - 1)))
    (values, vectors), pairs = ours(SECTION, "F.compute_eigendecomposition(), F.get_eigendecomposition()", names)
    truth = torch.linalg.eigvalsh(names["F"].to_dense())
    close(values, truth)
    close((vectors.flat.t() * values) @ vectors.flat, names["F"].tensor())
    close(pairs.values.sort().values, truth[-5:])
    names["F"] = corrected
    there, _ = ours(SECTION, "F.project_to_diag(v), F.project_from_diag(v)", names)
    close(corrected.project_from_diag(there).flat, names["v"].flat)
    close(there.flat.norm(), names["v"].flat.norm())


@covers(SECTION, "PMatDense, PMatBlockDiag, PMatDiag, PMatQuasiDiag, PMatLowRank, PMatImplicit")
@each_single
def test_representations_hold_what_their_names_say(network: str) -> None:
    one = case(network)
    names = one.names()
    row = "PMatDense, PMatBlockDiag, PMatDiag, PMatQuasiDiag, PMatLowRank, PMatImplicit"
    (found,) = ours(SECTION, row, names)
    exact = fisher(one)
    owner = torch.cat([torch.full((p.numel(),), int(n[0])) for n, p in one.model.named_parameters()])
    blocks = torch.where(owner[:, None] == owner[None], exact, 0)
    dense, block, diagonal, quasi, low, implicit = (matrix.to_dense() for matrix in found)
    close(dense, exact)
    close(low, exact)
    close(implicit, exact)
    close(block, blocks)
    close(diagonal, torch.diag(exact.diagonal()))
    arrow = FIM(one.model, one.x, tl.PMatQuasiDiag.with_options(form="arrow")).to_dense()
    close(quasi.diagonal(), exact.diagonal())
    assert float(torch.linalg.eigvalsh(quasi)[0]) > -1e-12 * float(quasi.max())
    kept = arrow != 0
    close(arrow[kept], blocks[kept])
    assert int(kept.sum()) == len(exact) + 2 * sum(
        p.numel() for name, p in one.model.named_parameters() if "weight" in name
    )


# ---------------------------------------------------------------- the library itself


@pytest.mark.parametrize("network", ["plain", "conv"])
@each_variant
def test_the_definitions_are_those_of_the_installed_library(network: str, variant: str) -> None:
    pytest.importorskip("nngeometry")
    from nngeometry import metrics
    from nngeometry import object as objects

    loss, k = VARIANTS[variant]
    one = case(network, loss)
    loader = DataLoader(TensorDataset(one.x.clone(), one.y), batch_size=N)
    about: Callable[[Tensor, Tensor], None] = lambda a, b: torch.testing.assert_close(  # noqa: E731
        a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max())
    )  # theirs adds the smallest number of float32 to a denominator
    with default_double():
        dense = metrics.FIM(one.model, loader, objects.PMatDense, variant=variant)
        kfac = metrics.FIM(one.model, loader, objects.PMatKFAC, variant=variant)
        about(fisher(one), dense.to_torch())
        for (a, b), (their_a, their_b) in zip(kfac_factors(one, k).values(), kfac.data.values()):
            about(a, their_a)
            about(b, their_b)
        ekfac = metrics.FIM(one.model, loader, objects.PMatEKFAC, variant=variant)
        ekfac.update_diag(loader)
        about(formulas.ekfac(one) / factor(one), ekfac.to_torch())
        collection = kfac.generator.layer_collection
        v = torch.randn(collection.numel(), generator=torch.Generator().manual_seed(0))
        for use_pi in (True, False):
            found = kfac.solvePVec(objects.PVector(collection, vector_repr=v), regul=1e-2, use_pi=use_pi)
            about(solved(kfac_factors(one, k), 1e-2, use_pi) @ v, found.to_torch())


@pytest.mark.parametrize("network", ["plain", "conv"])
def test_kernels_jacobians_and_hessians_of_the_installed_library(network: str) -> None:
    pytest.importorskip("nngeometry")
    from nngeometry import gram, hessian, jacobian
    from nngeometry import object as objects

    for reduction in ("mean", "sum"):
        one = case(network, reduction=reduction)
        loader = DataLoader(TensorDataset(one.x.clone(), one.y), batch_size=N)
        found = dense_jacobian(one.model, one.x)
        with default_double():
            close(found, jacobian.Jacobian(one.model, loader).to_torch())
            kernel = gram.GramMatrix(one.model, loader)
            close(torch.einsum("cnd,emd->cnem", found, found), kernel.data)
            function = one.torch_loss()
            theirs = hessian.Hessian(one.model, loader, objects.PMatDense, function=function)
            close(formulas.hessian(one), theirs.to_torch())
            halves = DataLoader(TensorDataset(one.x.clone(), one.y), batch_size=N // 2)
            twice = hessian.Hessian(one.model, halves, objects.PMatDense, function=function)
            close((2 if reduction == "mean" else 1) * formulas.hessian(one), twice.to_torch())

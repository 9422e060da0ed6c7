"""Every statement about BackPACK: our quantities against its definitions, and these against the library where it is there."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tangentlab import (
    FIM,
    GGN,
    KFRA,
    FIM_Empirical,
    FIM_MonteCarlo,
    GradientCovariance,
    Hessian,
    PMat,
    PMatDiag,
    PMatKFAC,
    per_example_grad_norms,
    per_example_grads,
)
from tests.docs.coming_from import backpack_formulas as theirs
from tests.docs.coming_from import curvlinops_formulas as matrices
from tests.docs.coming_from.cases import (
    LOSSES,
    NETWORKS,
    REDUCTIONS,
    SINGLE,
    Case,
    N,
    case,
    covers,
    default_double,
    ours,
)
from tests.docs.coming_from.test_curvlinops import close, differ, factor

SECTION = "BackPACK"
each_network = pytest.mark.parametrize("network", NETWORKS)
each_single = pytest.mark.parametrize("network", SINGLE)
each_loss = pytest.mark.parametrize("loss", LOSSES)
each_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


def weight(one: Case, flat: Tensor) -> Tensor:
    """The part of 0.weight in flat vectors (..., d)."""
    p = one.model[0].weight
    return flat[..., : p.numel()].reshape(*flat.shape[:-1], *p.shape)


@each_network
@each_loss
@each_reduction
def test_gradients_are_ours_times_s_over_n_and_their_squares_times_its_square(
    network: str, loss: str, reduction: str
) -> None:
    one = case(network, loss, reduction)
    data, kind, k = (one.x, one.y), one.likelihood, factor(one) / N
    grads = theirs.batch_grad(one)
    close(k * per_example_grads(one.model, data, likelihood=kind).flat, grads)
    norms = per_example_grad_norms(one.model, data, likelihood=kind, layers="0.weight")
    close(k**2 * norms.square(), weight(one, grads).flatten(1).square().sum(1))
    squares = N * FIM_Empirical(one.model, data, PMatDiag, kind).diag().flat
    close(k**2 * squares, grads.square().sum(0))
    close(k**2 * GradientCovariance(one.model, data, PMatDiag, kind).diag().flat, theirs.variance(one))


@each_network
@each_loss
@each_reduction
def test_diagonals_are_ours_times_s(network: str, loss: str, reduction: str) -> None:
    one = case(network, loss, reduction)
    data, kind, s = (one.x, one.y), one.likelihood, factor(one)
    close(s * GGN(one.model, data, PMatDiag, kind).diag().flat, matrices.ggn(one).diagonal())
    close(s * Hessian(one.model, data, PMatDiag, kind).diag().flat, matrices.hessian(one).diagonal())
    parts = torch.stack([FIM(one.model, example, PMatDiag, kind).diag().flat for example in one.x.split(1)])
    close(s / N * parts, theirs.batch_ggn(one).diagonal(dim1=1, dim2=2))


def weight_blocks(F: PMat, one: Case) -> list[Tensor]:
    return [F.to_dense()[where, where] for where in places(one).values()]


def places(one: Case) -> dict[str, slice]:
    """Where the weight of every layer lies in a flat vector."""
    found, start = {}, 0
    for name, p in one.model.named_parameters():
        if name.endswith("weight"):
            found[name.removesuffix(".weight")] = slice(start, start + p.numel())
        start += p.numel()
    return found


@each_single
@each_loss
@each_reduction
def test_kflr_is_ours_times_s_on_linear_layers_and_another_matrix_for_convolutions(
    network: str, loss: str, reduction: str
) -> None:
    one = case(network, loss, reduction)
    exact = FIM(one.model, one.x, PMatKFAC, one.likelihood)
    reduced = FIM(one.model, one.x, PMatKFAC.with_options(sharing="reduce"), one.likelihood)
    for (layer, (a, b)), found in zip(theirs.kflr(one).items(), weight_blocks(exact, one)):
        if (network, layer) in (("shared", "0"), ("conv", "0")):
            differ(found, torch.kron(b, a))
            (names,) = (names for names in exact.blocks if names[0] == f"{layer}.weight")
            close(a, exact.blocks[names].right[0, :-1, :-1])
            close(b, factor(one) * reduced.blocks[names].left[0])
        else:
            close(factor(one) * found, torch.kron(b, a))


@each_loss
@each_reduction
def test_kfra_is_ours_times_s_on_weights(loss: str, reduction: str) -> None:
    one = case("plain", loss, reduction)
    found = weight_blocks(KFRA(one.model, (one.x, one.y), one.likelihood), one)
    for block, (a, b) in zip(found, theirs.kfra(one).values()):
        close(factor(one) * block, torch.kron(b, a))


# ---------------------------------------------------------------- rows

VECTORS = {
    "BatchGrad, p.grad_batch": (lambda s: s / N, lambda one: weight(one, theirs.batch_grad(one))),
    "BatchL2Grad, p.batch_l2": (
        lambda s: (s / N) ** 2,
        lambda one: weight(one, theirs.batch_grad(one)).flatten(1).square().sum(1),
    ),
    "SumGradSquared, p.sum_grad_squared": (
        lambda s: (s / N) ** 2,
        lambda one: weight(one, theirs.batch_grad(one).square().sum(0)),
    ),
    "Variance, p.variance": (lambda s: (s / N) ** 2, lambda one: weight(one, theirs.variance(one))),
    "DiagGGNExact, p.diag_ggn_exact": (lambda s: s, lambda one: weight(one, matrices.ggn(one).diagonal())),
}


@covers(SECTION, *VECTORS)
@each_network
@each_reduction
@pytest.mark.parametrize("row", VECTORS)
def test_the_code_of_a_row_gives_their_numbers(row: str, network: str, reduction: str) -> None:
    one = case(network, reduction=reduction)
    scale, truth = VECTORS[row]
    (found,) = ours(SECTION, row, one.names())
    close(scale(factor(one)) * found, truth(one))


@covers(SECTION, "BatchDiagGGNExact", "DiagHessian, p.diag_h", "SqrtGGNExact, p.sqrt_ggn_exact")
@each_network
@each_reduction
def test_the_code_of_the_rows_of_diagonals_and_roots(network: str, reduction: str) -> None:
    one = case(network, reduction=reduction)
    names, s = one.names(), factor(one)
    (parts,) = ours(SECTION, "BatchDiagGGNExact", names)
    close(s / N * torch.stack([part.flat for part in parts]), theirs.batch_ggn(one).diagonal(dim1=1, dim2=2))
    (diagonal,) = ours(SECTION, "DiagHessian, p.diag_h", names)
    close(s * diagonal.flat, matrices.hessian(one).diagonal())
    (root,) = ours(SECTION, "SqrtGGNExact, p.sqrt_ggn_exact", names)
    close(s * root.to_dense(), matrices.ggn(one))


@covers(SECTION, "KFLR, p.kflr", "KFRA, p.kfra")
@each_reduction
def test_the_code_of_the_rows_of_kronecker_products(reduction: str) -> None:
    one = case("plain", reduction=reduction)
    for row, truth in (("KFLR, p.kflr", theirs.kflr(one)), ("KFRA, p.kfra", theirs.kfra(one))):
        (found,) = ours(SECTION, row, one.names())
        for block, (a, b) in zip(weight_blocks(found, one), truth.values()):
            close(factor(one) * block, torch.kron(b, a))


@covers(SECTION, "DiagGGNMC(mc_samples=3)", "KFAC(mc_samples=3), p.kfac")
def test_sampled_quantities_have_the_mean_of_the_exact_ones() -> None:
    one = case("plain")
    (diagonal,) = ours(SECTION, "DiagGGNMC(mc_samples=3)", one.names())
    (product,) = ours(SECTION, "KFAC(mc_samples=3), p.kfac", one.names())
    assert diagonal.flat.shape == matrices.ggn(one).diagonal().shape and type(product) is PMatKFAC
    generator = torch.Generator().manual_seed(0)
    sampled = FIM_MonteCarlo(one.model, one.x, PMatDiag, samples=4000, generator=generator).diag().flat
    truth = matrices.ggn(one).diagonal()
    assert float((sampled - truth).norm() / truth.norm()) < 0.03
    many = FIM_MonteCarlo(one.model, one.x, PMatKFAC, samples=4000, generator=generator)
    for block, (a, b) in zip(weight_blocks(many, one), theirs.kflr(one).values()):
        assert float((block - torch.kron(b, a)).norm() / block.norm()) < 0.03


@covers(
    SECTION,
    "GGNMP, HMP",
    "ggn_vector_product(loss, output, model, v)",
    "hessian_vector_product(loss, params, v)",
)
@each_network
@each_reduction
def test_products_are_ours_times_s(network: str, reduction: str) -> None:
    one = case(network, reduction=reduction)
    names, s = one.names(), factor(one)
    ggn, hessian = matrices.ggn(one), matrices.hessian(one)
    first = sum(p.numel() for p in one.model[0].parameters())
    for found, truth in zip(ours(SECTION, "GGNMP, HMP", names), (ggn, hessian)):
        close(s * found.flat, truth[:first, :first].sum(1))
    (found,) = ours(SECTION, "ggn_vector_product(loss, output, model, v)", names)
    close(s * found.flat, ggn @ names["v"].flat)
    (found,) = ours(SECTION, "hessian_vector_product(loss, params, v)", names)
    close(s * found.flat, hessian @ names["v"].flat)


@covers(SECTION, "extend(model), with backpack(...)")
def test_nothing_is_left_on_the_model() -> None:
    one = case("plain")
    before = [copy.copy(vars(module)) for module in one.model.modules()]
    per_example_grads(one.model, (one.x, one.y))
    assert [vars(module).keys() for module in one.model.modules()] == [known.keys() for known in before]
    assert not any(module._forward_hooks or module._backward_hooks for module in one.model.modules())


# ---------------------------------------------------------------- the library itself


@pytest.mark.parametrize("network", [*SINGLE, "tokens"])
@pytest.mark.parametrize("loss", ["cross entropy", "squared error"])
@each_reduction
@pytest.mark.filterwarnings("ignore")
def test_the_definitions_are_those_of_the_installed_library(network: str, loss: str, reduction: str) -> None:
    library = pytest.importorskip("backpack")
    from backpack.custom_module.permute import Permute

    one = case(network, loss, reduction)
    where = places(one)

    def quantity(name: str, layer: str = "0") -> Any:
        model, extension = copy.deepcopy(one.model), getattr(library.extensions, name)()
        if one.terms > 1 and loss == "cross entropy":
            model.append(Permute(0, 2, 1))
        model, criterion = library.extend(model), library.extend(one.torch_loss())
        with default_double(), library.backpack(extension):
            criterion(model(one.x), one.y).backward()
        return getattr(model.get_submodule(layer).weight, extension.savefield)

    grads = theirs.batch_grad(one)
    close(weight(one, grads), quantity("BatchGrad"))
    close(weight(one, grads).flatten(1).square().sum(1), quantity("BatchL2Grad"))
    close(weight(one, grads.square().sum(0)), quantity("SumGradSquared"))
    close(weight(one, theirs.variance(one)), quantity("Variance"))
    if one.terms == 1 or loss == "cross entropy":
        close(weight(one, matrices.ggn(one).diagonal()), quantity("DiagGGNExact"))
        close(weight(one, theirs.batch_ggn(one).diagonal(dim1=1, dim2=2)), quantity("BatchDiagGGNExact"))
    if one.terms == 1:
        close(weight(one, matrices.hessian(one).diagonal()), quantity("DiagHessian"))
        root = quantity("SqrtGGNExact").flatten(0, 1).flatten(1)
        close(matrices.ggn(one)[where["0"], where["0"]], root.T @ root)
    if network in ("plain", "conv"):
        for layer, (a, b) in theirs.kflr(one).items():
            found = [part.contiguous() for part in quantity("KFLR", layer)]
            close(torch.kron(b, a), torch.kron(*found))
    if network == "plain":
        for layer, (a, b) in theirs.kfra(one).items():
            close(torch.kron(b, a), torch.kron(*(part.contiguous() for part in quantity("KFRA", layer))))

"""KFAC and EKFAC: damped factors, refusals, second moments that are kept up to date, choices layer by layer."""

import pickle

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import InputError, SolveError, StructureError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import DAMPING, assert_close, vectors
from tangentlab.testing.small_models import KRONECKER, Branches, Case, case_of, mlp


def factored_inverse(case: Case, damping: float, pi: float | None) -> torch.Tensor:
    """(B + sqrt(damping) / pi I)^-1 x (A + pi sqrt(damping) I)^-1 of every layer, dense, pi^2 = ratio of mean eigenvalues."""
    full = torch.zeros_like(truth.exact(case.name))
    for layer in case.recipe.kron:
        a, b = truth.kronecker_factors(truth.layer_data(case, layer), "expand")
        embedding = isinstance(case.model.get_submodule(layer.modules[0]), nn.Embedding)
        index = truth.flat_index(case, layer, b.shape[-1], a.shape[-1], a.shape[0], embedding)
        for group, (one, two) in enumerate(zip(a, b)):
            balance = ((one.trace() / len(one)) / (two.trace() / len(two))) ** 0.5 if pi is None else pi
            damped_a = one + damping**0.5 * balance * torch.eye(len(one), dtype=one.dtype)
            damped_b = two + damping**0.5 / balance * torch.eye(len(two), dtype=two.dtype)
            block = torch.kron(torch.linalg.inv(damped_b), torch.linalg.inv(damped_a))
            truth.place(full, index[group], block)
    return full


def moved(model: nn.Module) -> nn.Module:
    """Take a step, as an optimizer would."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("name", KRONECKER)
def test_factored_solve_damps_each_factor_balanced_by_their_mean_eigenvalues(name):
    case = case_of(name)
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC)
    v = vectors(case, 2)
    assert_close(F.solve(v, DAMPING, factored=True).flat, v.flat @ factored_inverse(case, DAMPING, None))
    assert_close(F.solve(v, regul=DAMPING, factored=True).flat, v.flat @ factored_inverse(case, DAMPING, None))


@pytest.mark.parametrize("name", KRONECKER)
def test_factored_solve_takes_a_given_balance(name):
    case = case_of(name)
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC)
    v = vectors(case)
    assert_close(F.solve(v, DAMPING, factored=True, pi=3.0).flat, factored_inverse(case, DAMPING, 3.0) @ v.flat)


def test_factored_solve_needs_a_damping():
    case = case_of("mlp")
    with pytest.raises(SolveError, match="damping"):
        tl.FIM(case.model, case.batches, tl.PMatKFAC).solve(vectors(case), factored=True)


def test_other_inverses_take_no_cut_off():
    case = case_of("mlp")
    for kind, form in ((tl.PMatKFAC, "factored"), (tl.PMatQuasiDiag, "reduced")):
        with pytest.raises(InputError, match=f"{form}=True is another inverse, which takes no atol"):
            tl.FIM(case.model, case.batches, kind).solve(vectors(case), DAMPING, atol=0.1, **{form: True})


@pytest.mark.parametrize("kind", [tl.PMatKFAC, tl.PMatEKFAC])
@pytest.mark.parametrize(("name", "missing"), [("norms", "1.weight"), ("bare parameters", "scale")])
def test_parameters_without_kronecker_structure_are_refused_by_name(kind, name, missing):
    case = case_of(name)
    with pytest.raises(StructureError, match=f"{missing}.*PMatMixed.default"):
        tl.FIM(case.model, case.batches, kind)


def test_layers_with_kronecker_structure_can_be_selected():
    case = case_of("norms")
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC, layers=["0", "4"])
    whole = truth.kronecker("norms", corrected=False)
    keep = torch.cat([torch.arange(16), torch.arange(len(whole) - 12, len(whole))])
    assert_close(F.to_dense(), whole[keep][:, keep])


def test_an_unknown_way_of_sharing_is_refused():
    case = case_of("mlp")
    with pytest.raises(InputError, match="sharing"):
        tl.FIM(case.model, case.batches, tl.PMatKFAC.with_options(sharing="mean"))


# ------------------------------------------------------------- EKFAC


@pytest.mark.parametrize("name", KRONECKER)
def test_ekfac_without_correction_is_kfac_until_its_diagonal_is_updated(name):
    case = case_of(name, split="uneven batches")
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC.with_options(corrected=False))
    assert_close(F.to_dense(), truth.kronecker(name, corrected=False))
    F.update_diag()
    assert_close(F.to_dense(), truth.kronecker(name, corrected=True))
    G = tl.FIM(case.model, case.batches, tl.PMatEKFAC.with_options(corrected=False))
    G.update_diag(case.batches)
    assert_close(G.to_dense(), truth.kronecker(name, corrected=True))


@pytest.mark.parametrize("name", ["mlp", "wide", "sequence", "grouped convolution"])
def test_updated_diagonal_is_that_of_the_model_as_it_is_now_in_the_old_basis(name, seed):
    case = Case(name)
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC)
    basis = {names: tuple(side.vectors.clone() for side in block.bases) for names, block in F.blocks.items()}
    moved(case.model)
    F.update_diag()
    exact = truth.fisher(case.model, case.inputs)
    assert_close(F.trace(), exact.trace())
    for names, block in F.blocks.items():
        for before, now in zip(basis[names], block.bases):
            assert torch.equal(now.vectors[..., : before.shape[-1]], before)
        vectors_of_block = block.spectrum.back(torch.eye(block.dim, dtype=torch.float64))
        index = torch.cat([torch.arange(F.layout.slices[n].start, F.layout.slices[n].stop) for n in names])
        expected = ((vectors_of_block @ exact[index][:, index]) * vectors_of_block).sum(1)
        assert_close(block.scale.flatten(), expected)


def test_diagonal_updated_through_data_attributes_is_not_stale(seed):
    case = Case("wide")
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC)
    F.update_diag()
    for p in case.model.parameters():
        p.data.mul_(-0.5)
    F.update_diag()
    assert_close(F.trace(), truth.fisher(case.model, case.inputs).trace())


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_refreshed_basis_is_that_of_a_new_matrix_with_the_same_options(sharing, seed):
    case = Case("sequence")
    representation = tl.PMatEKFAC.with_options(sharing=sharing)
    F = tl.FIM(case.model, case.batches, representation)
    moved(case.model)
    F.refresh_basis()
    assert_close(F.to_dense(), tl.FIM(case.model, case.batches, representation).to_dense())


@pytest.mark.parametrize("mixed", [False, True], ids=["EKFAC", "Mixed"])
def test_reduced_ekfac_of_a_wide_layer_keeps_the_exact_trace(mixed, seed):
    """The inputs' means span less than the inputs, so gradients have a part outside a thin basis."""
    model, x = Branches(nn.Linear(40, 3), 3).double(), torch.randn(3, 5, 40, dtype=torch.float64)
    kind = tl.PMatMixed.default(kronecker=tl.PMatEKFAC, sharing="reduce")
    F = tl.FIM(model, x, kind if mixed else tl.PMatEKFAC.with_options(sharing="reduce"))
    assert_close(F.trace(), truth.fisher(model, x).trace())


def test_other_data_updates_the_diagonal_and_counts_its_examples(seed):
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC)
    more = torch.randn(12, 3, dtype=torch.float64)
    F.update_diag([(more[:5],), (more[5:],)])
    assert F.examples == 12
    assert_close(F.trace(), truth.fisher(case.model, more).trace())


def test_unpickled_ekfac_is_ekfac_with_the_same_scales_and_says_that_it_lost_its_model():
    case = case_of("grouped convolution")
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC)
    back = pickle.loads(pickle.dumps(F))
    assert type(back) is tl.PMatEKFAC
    for names, block in F.blocks.items():
        assert torch.equal(back.blocks[names].scale, block.scale)
    with pytest.raises(InputError, match="does not know its model"):
        back.update_diag()


def test_monte_carlo_labels_are_kept_for_the_same_data_and_drawn_anew_for_other_data():
    case = case_of("mlp")
    F = tl.FIM_MonteCarlo(case.model, case.batches, tl.PMatEKFAC, generator=torch.Generator().manual_seed(0))
    before = F.to_dense()
    F.update_diag()
    assert_close(F.to_dense(), before)
    F.update_diag(case.batches)
    assert float((F.to_dense() - before).abs().max()) > 1e-6


# ------------------------------------------------------------- Mixed


def test_mixed_takes_diagonals_beyond_the_block_limit():
    case = case_of("norms")
    F = tl.FIM(case.model, case.batches, tl.PMatMixed.default(block_limit=3))
    covered = torch.tensor([key[0] in "04" for key, p in truth.trainable(case.model).items() for _ in range(p.numel())])
    expected = torch.where(
        covered[:, None] & covered[None, :], truth.kronecker("norms", False), truth.diagonal("norms")
    )
    assert_close(F.to_dense(), expected)


def test_mixed_by_name_gives_each_layer_what_was_chosen():
    case = case_of("norms")
    F = tl.FIM(
        case.model, case.batches, tl.PMatMixed.of({"1.*": tl.PMatDiag, "3*": tl.PMatBlockDiag, "*": tl.PMatEKFAC})
    )
    owner = [key[0] for key, p in truth.trainable(case.model).items() for _ in range(p.numel())]
    parts = {"1": truth.diagonal("norms"), "3": truth.layer_blocks("norms")}
    rows = [parts.get(name, truth.kronecker("norms", corrected=True))[i] for i, name in enumerate(owner)]
    assert_close(F.to_dense(), torch.stack(rows))


@pytest.mark.parametrize("choice", [{"0": tl.PMatDiag}, {"0.weight": tl.PMatDiag}, {"?.bias": tl.PMatDiag}])
def test_mixed_by_name_takes_the_name_of_a_layer_or_of_any_of_its_parameters(choice):
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatMixed.of({**choice, "*": tl.PMatEKFAC}))
    expected = truth.kronecker("mlp", corrected=True).clone()
    size = sum(p.numel() for p in case.model[0].parameters())
    layers = slice(None) if "?.bias" in choice else slice(size)
    expected[layers] = truth.diagonal("mlp")[layers]
    assert_close(F.to_dense(), expected)


def test_mixed_says_what_it_cannot_contain_and_what_nothing_matches():
    case = case_of("norms")
    for choice, message, kind in (
        ({"*": tl.PMatKFAC}, "1.weight", StructureError),
        ({"0*": tl.PMatKFAC}, r"end the choice with '\*'", InputError),
        ({"*": tl.PMatImplicit}, "PMatImplicit", InputError),
    ):
        with pytest.raises(kind, match=message):
            tl.FIM(case.model, case.batches, tl.PMatMixed.of(choice))


def test_representation_with_options_tells_them():
    assert repr(tl.PMatKFAC.with_options(sharing="reduce")) == "PMatKFAC.with_options(sharing='reduce')"


def test_kfac_of_one_example_with_one_position_is_exact_in_both_ways_of_sharing(seed):
    model, x = mlp().double(), torch.randn(1, 3, dtype=torch.float64)
    for sharing in ("expand", "reduce"):
        F = tl.FIM(model, x, tl.PMatKFAC.with_options(sharing=sharing)).to_dense()
        exact = truth.fisher(model, x)
        exact[:16, 16:], exact[16:, :16] = 0, 0
        assert_close(F, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("sua", [False, True, "centred"])
@pytest.mark.parametrize("dead", ["inputs", "gradients", "both"])
def test_factored_solve_of_a_layer_with_a_factor_of_zero_divides_by_the_damping(dead, sua, size, dtype):
    """With A = 0 or B = 0, (A + pi sqrt(eps))^-1 (x) (B + sqrt(eps) / pi)^-1 tends to 1 / eps as pi balances them."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    convolution, last = nn.Conv2d(2, 3, 2, bias=False), nn.Linear(12, 2)
    model = nn.Sequential(convolution, nn.Flatten(), last).to(dtype)
    with torch.no_grad():
        last.weight.mul_(0.0 if dead in ("gradients", "both") else 1.0)
    x = size * torch.randn(4, 2, 3, 3, generator=generator, dtype=dtype) * (0.0 if dead in ("inputs", "both") else 1.0)
    F = tl.FIM(model, x, tl.PMatKFAC.with_options(sua=sua), likelihood="regression", layers=["0"])
    v = tl.PVector(F.layout, torch.randn(F.dim, generator=generator, dtype=dtype))
    difference = F.solve(v, DAMPING, factored=True) - v / DAMPING
    assert float(difference.norm()) < 1000 * torch.finfo(dtype).eps * float(v.norm()) / DAMPING

"""Options of KFAC and EKFAC: pi by layer, and weights apart from biases."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.objects.pmat.kronecker import EigenBlock
from tangentlab.testing.dense_truth import DAMPING, assert_close, vectors
from tangentlab.testing.small_models import KRONECKER, case_of


def apart(F: tl.PMatKFAC) -> torch.Tensor:
    """The dense matrix with zeros between different parameters."""
    owner = torch.cat([torch.full((s.stop - s.start,), i) for i, s in enumerate(F.layout.slices.values())])
    return torch.where(owner[:, None] == owner[None, :], F.tensor(), 0.0)


def solves(name: str, pi, layer: str = "") -> torch.Tensor:
    case = case_of(name)
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC)
    solution = F.solve(vectors(case), DAMPING, factored=True, pi=pi)
    return solution.flat if not layer else torch.cat([solution[n].flatten() for n in F.layout.layers[layer]])


@pytest.mark.parametrize("name", KRONECKER)
def test_pi_of_every_layer_is_that_of_a_mapping(name):
    assert_close(solves(name, {"*": 3.0}), solves(name, 3.0))
    assert_close(solves(name, {"*": True}), solves(name, None))
    assert_close(solves(name, True), solves(name, None))
    assert_close(solves(name, False), solves(name, 1.0))


def test_pi_by_layer_takes_the_first_pattern_that_covers_it_and_balances_the_others():
    mixed = {"0": 3.0, "2.bias": 0.5, "*.weight": 7.0}
    for layer, alone in (("0", 3.0), ("2", 0.5)):
        assert_close(solves("mlp", mixed, layer), solves("mlp", alone, layer))
    some = {"0.*": 3.0}
    assert_close(solves("mlp", some, "0"), solves("mlp", 3.0, "0"))
    assert_close(solves("mlp", some, "2"), solves("mlp", None, "2"))
    assert not torch.allclose(solves("mlp", 3.0, "0"), solves("mlp", None, "0"))


@pytest.mark.parametrize(
    ("pi", "message"),
    [
        (0.0, "positive"),
        (-1.0, "positive"),
        ({"0": float("nan")}, "positive"),
        ({"*": "x"}, "positive"),
        ({"7": 1.0}, "'7'"),
    ],
)
def test_pi_that_means_nothing_is_refused(pi, message):
    with pytest.raises(InputError, match=message):
        solves("mlp", pi)


@pytest.mark.parametrize("name", KRONECKER)
@pytest.mark.parametrize("options", [{}, {"sharing": "reduce"}, {"sua": True}, {"sua": "centred"}])
def test_separate_kfac_is_zero_between_weight_and_bias_and_equal_elsewhere(name, options):
    case = case_of(name, split="uneven batches")
    joint = tl.FIM(case.model, case.batches, tl.PMatKFAC.with_options(**options))
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC.with_options(separate_weight_and_bias=True, **options))
    assert type(F) is tl.PMatKFAC and all(len(names) == 1 for names in F.blocks)
    assert_close(F.tensor(), apart(joint))
    assert_close(joint.separated().tensor(), F.tensor())
    assert_close(F.diag().flat, joint.diag().flat)
    v = vectors(case, 2)
    damped = F.tensor() + DAMPING * torch.eye(F.dim, dtype=torch.float64)
    assert_close(F.solve(v, DAMPING).flat, torch.linalg.solve(damped, v.flat.t()).t())


@pytest.mark.parametrize("name", KRONECKER)
@pytest.mark.parametrize("options", [{}, {"sharing": "reduce"}, {"sua": True}, {"sua": "centred"}])
def test_separate_ekfac_has_the_diagonal_of_the_exact_matrix_in_its_bases(name, options):
    case = case_of(name, split="uneven batches")
    exact = tl.FIM(case.model, case.batches, tl.PMatDense).tensor()
    representation = tl.PMatEKFAC.with_options(separate_weight_and_bias=True, **options)
    F = tl.FIM(case.model, case.batches, representation)
    assert_close(F.trace(), exact.trace())
    for names, block in F.blocks.items():
        assert isinstance(block, EigenBlock) and len(names) == 1
        basis = block.spectrum.back(torch.eye(block.scale.numel(), dtype=torch.float64))
        where = F.layout.slices[names[0]]
        assert_close(block.scale.flatten(), ((basis @ exact[where, where]) * basis).sum(1))
    before = F.tensor()
    F.update_diag()
    F.refresh_basis()
    assert_close(F.tensor(), before)


def test_thin_sides_are_separated_without_being_written_out():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(40, 3)).double(), torch.randn(6, 40, dtype=torch.float64)
    joint, F = (tl.FIM(model, x, tl.PMatKFAC.with_options(separate_weight_and_bias=option)) for option in (False, True))
    assert F.numel() < 40**2
    assert_close(F.tensor(), apart(joint))

"""Every representation under the contract, against its definition."""

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import MemoryBudgetError
from tangentlab.testing import PMatContract, stored_only, truth
from tangentlab.testing.dense_truth import dimension
from tangentlab.testing.small_models import EXAMPLES, KRONECKER, Case, case_of


def layer_sizes(case: Case) -> list[int]:
    """Number of parameters per module."""
    sizes: dict[str, int] = {}
    for name, p in truth.trainable(case.model).items():
        owner = name.rpartition(".")[0]
        sizes[owner] = sizes.get(owner, 0) + p.numel()
    return list(sizes.values())


def kronecker_size(case: Case, eigenbases: bool, sharing: str = "expand") -> int:
    """Two factors per layer and group, or their eigenbases and the scales between them.

    The input factor of the wide model comes from one row per example: these rows are kept instead, of full rank. That of a
    lookup is diagonal, and needs no eigenbasis.
    """
    total = 0
    for layer in case.recipe.kron:
        inputs, grads = truth.layer_data(case_of(case.name), layer)[0]
        groups, rows, columns = inputs.shape[0], grads.shape[-1], inputs.shape[-1]
        rank = EXAMPLES if columns >= 2 * EXAMPLES else columns
        owner = case_of(case.name).model.get_submodule(layer.modules[0])
        lookup = isinstance(owner, nn.Embedding) and sharing == "expand"
        of_inputs = columns * (not eigenbases) if lookup else columns * rank
        total += groups * (rows**2 + of_inputs + eigenbases * rows * rank)
    return total


class TestDense(PMatContract):
    representation = tl.PMatDense
    sums = powers = inverses = tl.PMatDense

    def truth(self, name: str) -> Tensor:
        return truth.exact(name)

    def stored(self, case: Case) -> int:
        return dimension(case) ** 2

    @stored_only
    def test_a_dense_form_beyond_the_memory_budget_is_refused(self, F, case):
        """It is there already; what is refused is to build it."""
        tl.set_memory_budget(100)
        try:
            with pytest.raises(MemoryBudgetError, match="PMatKFAC"):
                self.build(case)
        finally:
            tl.set_memory_budget(None)


class TestBlockDiag(PMatContract):
    representation = tl.PMatBlockDiag
    sums = powers = inverses = tl.PMatBlockDiag

    def truth(self, name: str) -> Tensor:
        return truth.layer_blocks(name)

    def stored(self, case: Case) -> int:
        return sum(size**2 for size in layer_sizes(case))


class TestDiag(PMatContract):
    representation = tl.PMatDiag
    sums = powers = inverses = tl.PMatDiag

    def truth(self, name: str) -> Tensor:
        return truth.diagonal(name)

    def stored(self, case: Case) -> int:
        return dimension(case)


class TestKFAC(PMatContract):
    representation = tl.PMatKFAC
    models = KRONECKER
    powers, inverses = tl.PMatKFAC, tl.PMatEKFAC

    def truth(self, name: str) -> Tensor:
        return truth.kronecker(name, corrected=False)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=False)


class TestKFACReduce(TestKFAC):
    representation = tl.PMatKFAC.with_options(sharing="reduce")

    def truth(self, name: str) -> Tensor:
        return truth.kronecker(name, corrected=False, sharing="reduce")

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=False, sharing="reduce")


class TestEKFAC(PMatContract):
    representation = tl.PMatEKFAC
    models = KRONECKER
    sums = powers = inverses = tl.PMatEKFAC

    def truth(self, name: str) -> Tensor:
        return truth.kronecker(name, corrected=True)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=True)


class TestMixed(PMatContract):
    representation = tl.PMatMixed.default()
    powers, inverses = tl.PMatMixed, (tl.PMatMixed, tl.PMatEKFAC)

    def truth(self, name: str) -> Tensor:
        return truth.mixed(name, corrected=False)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=False) + sum(size**2 for size in loose_sizes(case))


class TestMixedWithEKFAC(PMatContract):
    representation = tl.PMatMixed.default(kronecker=tl.PMatEKFAC)
    sums = powers = inverses = tl.PMatMixed

    def truth(self, name: str) -> Tensor:
        return truth.mixed(name, corrected=True)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=True) + sum(size**2 for size in loose_sizes(case))


class TestImplicit(PMatContract):
    representation = tl.PMatImplicit
    pseudo_inverse = pickles = False
    iterative = True

    def truth(self, name: str) -> Tensor:
        return truth.exact(name)

    def stored(self, case: Case) -> int:
        return 0


class TestSum(PMatContract):
    """KFAC + Diag, which no tighter class can hold."""

    models = ("mlp", "embedding")
    pseudo_inverse, iterative = False, True

    def build(self, case: Case) -> tl.PMat:
        kfac, diag = (tl.FIM(case.model, case.batches, kind) for kind in (tl.PMatKFAC, tl.PMatDiag))
        return kfac + 2 * diag

    def truth(self, name: str) -> Tensor:
        return truth.kronecker(name, corrected=False) + 2 * truth.diagonal(name)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=False) + dimension(case)


def loose_sizes(case: Case) -> list[int]:
    """Number of parameters without Kronecker structure, per module."""
    covered = {name for layer in case.recipe.kron for name in (layer.weight, layer.bias)}
    sizes: dict[str, int] = {}
    for name, p in truth.trainable(case.model).items():
        if name not in covered:
            owner = name.rpartition(".")[0]
            sizes[owner] = sizes.get(owner, 0) + p.numel()
    return list(sizes.values())


class TestEye(PMatContract):
    """A multiple of the identity, which knows no data."""

    models = ("mlp", "bare parameters")
    sums = powers = inverses = tl.PMatEye

    def build(self, case: Case) -> tl.PMat:
        return tl.PMatEye.from_model(case.model, factor=2.0)

    def truth(self, name: str) -> Tensor:
        return 2 * torch.eye(dimension(case_of(name)), dtype=torch.float64)

    def stored(self, case: Case) -> int:
        return dimension(case)

    def test_examples_are_counted_from_what_was_seen(self, F, case):
        assert F.examples == 0

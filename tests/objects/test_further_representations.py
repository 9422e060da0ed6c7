"""Quasi-diagonal, low-rank, per-example Kronecker and SUA matrices under the contract, against their definitions."""

from torch import Tensor, nn

import tangentlab as tl
from tangentlab.testing import PMatContract, truth
from tangentlab.testing.dense_truth import dimension
from tangentlab.testing.small_models import CLASSES, EXAMPLES, Case
from tests.objects import further_truth
from tests.objects.test_representations import kronecker_size


class TestQuasiDiag(PMatContract):
    representation = tl.PMatQuasiDiag
    models = ("mlp", "grouped convolution", "norms", "embedding", "tied weights", "bias first", "bare parameters")
    powers, inverses = tl.PMatMixed, tl.PMatQuasiDiag

    def truth(self, name: str) -> Tensor:
        return further_truth.quasi_diagonal(name)

    def stored(self, case: Case) -> int:
        return dimension(case) + sum(len(weights) for weights, _ in further_truth.units(case))


class TestLowRank(PMatContract):
    representation = tl.PMatLowRank
    models = ("mlp", "grouped convolution", "embedding", "bare parameters")
    sums, powers, inverses = tl.PMatLowRank, tl.PMatLowRank, tl.PMatSum

    def truth(self, name: str) -> Tensor:
        return truth.exact(name)

    def stored(self, case: Case) -> int:
        return (CLASSES - 1) * EXAMPLES * (dimension(case) + 1)


class TestKronSum(PMatContract):
    representation = tl.PMatKronSum
    models = ("mlp", "frozen bias", "bias first")
    sums, powers, inverses = tl.PMatKronSum, tl.PMatBlockDiag, tl.PMatBlockDiag

    def truth(self, name: str) -> Tensor:
        return truth.layer_blocks(name)

    def stored(self, case: Case) -> int:
        total = 0
        for module in case.model:
            if isinstance(module, nn.Linear):
                total += module.in_features + module.bias.requires_grad + module.out_features**2
        return EXAMPLES * total


def channel_numbers(centred: bool) -> int:
    """Two groups with one channel and one bias each; centred, the head has the channel too, and four taps are turned."""
    return 2 * (2**2 + 1) + 16 if centred else 2 * (1 + 1)


class TestKFACWithSUA(PMatContract):
    representation = tl.PMatKFAC.with_options(sua=True)
    models = ("grouped convolution",)
    powers, inverses = tl.PMatKFAC, tl.PMatEKFAC
    centred = False

    def truth(self, name: str) -> Tensor:
        return further_truth.sua(name, self.centred, corrected=False)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=False) - 2 * (4 * 1 + 1) ** 2 + channel_numbers(self.centred)


class TestKFACWithCentredSUA(TestKFACWithSUA):
    representation = tl.PMatKFAC.with_options(sua="centred")
    centred = True


class TestEKFACWithSUA(PMatContract):
    representation = tl.PMatEKFAC.with_options(sua=True)
    models = ("grouped convolution",)
    sums = powers = inverses = tl.PMatEKFAC
    centred = False

    def truth(self, name: str) -> Tensor:
        return further_truth.sua(name, self.centred, corrected=True)

    def stored(self, case: Case) -> int:
        return kronecker_size(case, eigenbases=True) - 2 * (4 * 1 + 1) ** 2 + channel_numbers(self.centred)


class TestEKFACWithCentredSUA(TestEKFACWithSUA):
    representation = tl.PMatEKFAC.with_options(sua="centred")
    centred = True

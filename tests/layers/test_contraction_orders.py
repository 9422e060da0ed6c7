"""Every contraction order of a Gram matrix gives the Gram matrix of the written-out rows."""

import pytest
import torch
from torch import Tensor, nn

from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine
from tangentlab.layers import OuterSum
from tangentlab.layers.gram import GramSizes, cheapest, gram, gram_costs, gram_options


class Words(nn.Module):
    """An embedding, mean-pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1))


def images(count: int) -> Tensor:
    return torch.randn(count, 4, 6, 6, dtype=torch.float64)


def words(count: int) -> Tensor:
    return torch.randint(0, 9, (count, 6))


NETS = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3)), images),
    "few positions": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.Flatten(), nn.Linear(24, 3)), images),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Flatten(), nn.Linear(96, 3)),
        images,
    ),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(98, 3)), images),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(120, 3)), images),
    "words": (Words, words),
}


def factors(kind: str, count: int) -> list[OuterSum]:
    torch.manual_seed(0)
    make, data = NETS[kind]
    net = make().double()
    torch.manual_seed(count)
    sweep = Engine(Network.of(net)).sweep(data(count))
    return list(sweep.factors(sweep.identity_cotangents()).values())


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("memory", [float("inf"), 3000.0])
@pytest.mark.parametrize("kind", NETS)
def test_all_orders_agree_with_rows(kind: str, trace: bool, memory: float) -> None:
    tried = set()
    for first, second in zip(factors(kind, 4), factors(kind, 3), strict=True):
        for one, two in ((first, first), (first, second)):
            truth = torch.einsum("knd,lmd->knlm", one.rows(), two.rows())
            truth = torch.einsum("knkm->nm", truth) if trace else truth
            for cost in gram_options(one, two, trace):
                value = gram(one, two, trace, route=cost.route, memory=memory)
                torch.testing.assert_close(value, truth, rtol=1e-10, atol=1e-12)
                tried.add(cost.route)
            torch.testing.assert_close(gram(one, two, trace), truth, rtol=1e-10, atol=1e-12)
    assert tried == {"rows", "product", "positions"}


def test_positions_win_where_weights_are_large_and_images_small() -> None:
    late = GramSizes(10, 16, 16, True, 1, 16, 512, 4608, True)
    early = GramSizes(10, 16, 16, True, 1, 1024, 64, 576, True)
    assert cheapest(gram_costs(late, trace=False)).route == "positions"
    assert cheapest(gram_costs(early, trace=False)).route == "rows"


def test_a_trace_over_outputs_costs_less_than_all_blocks() -> None:
    sizes = GramSizes(10, 16, 16, True, 1, 64, 256, 2304, True)
    for whole, trace in zip(gram_costs(sizes, False), gram_costs(sizes, True), strict=True):
        assert trace.operations < whole.operations


def test_examples_of_batches_join_to_the_same_rows() -> None:
    for kind in NETS:
        for first, second in zip(factors(kind, 4), factors(kind, 3), strict=True):
            joined = first.join_examples([second])
            assert joined is not None
            torch.testing.assert_close(joined.rows(), torch.cat([first.rows(), second.rows()], 1))

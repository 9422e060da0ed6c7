"""Mistakes that libraries of this kind have made, one test each, all against plain autograd."""

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.truth import fisher, jacobian, trainable, weighted_rows

EXACT = (tl.PMatDense, tl.PMatLowRank, tl.PMatImplicit)


def seeded(build: object, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def assert_exact(model: nn.Module, x: Tensor) -> None:
    """Every exact representation is the Fisher matrix, and the others have its diagonal or trace."""
    truth = fisher(model, x)
    for kind in EXACT:
        assert_close(tl.FIM(model, x, kind).to_dense(), truth)
    for kind in (tl.PMatDiag, tl.PMatQuasiDiag):
        assert_close(tl.FIM(model, x, kind).diag().flat, truth.diagonal())
    assert_close(tl.FIM(model, x, tl.PMatMixed.default(kronecker=tl.PMatEKFAC)).trace(), truth.trace())


# ---------------------------------------------------------------- data


def test_examples_are_counted_as_seen_and_not_by_the_length_of_the_sampler():
    model, x = seeded(mlp), normal(10, 3)
    loader = DataLoader(TensorDataset(x), batch_size=4, drop_last=True)
    assert len(loader.sampler) == 10
    truth = fisher(model, x[:8])
    for kind in EXACT:
        F = tl.FIM(model, loader, kind)
        assert F.examples == 8
        assert_close(F.to_dense(), truth)
    kfac = tl.FIM(model, loader, tl.PMatKFAC)
    inputs = torch.cat([x[:8], torch.ones(8, 1, dtype=x.dtype)], 1)
    assert_close(kfac.blocks[("0.weight", "0.bias")].right[0], inputs.t() @ inputs / 8)


SHUFFLING = {
    "shuffle=True": lambda data: DataLoader(data, batch_size=2, shuffle=True),
    "random subset": lambda data: DataLoader(data, batch_size=2, sampler=SubsetRandomSampler(range(6))),
    "weighted": lambda data: DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 6, 6)),
    "batch sampler": lambda data: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 2, False)),
}


@pytest.mark.parametrize("loader", SHUFFLING.values(), ids=SHUFFLING.keys())
def test_kernels_of_shuffling_loaders_are_refused_instead_of_scrambled(loader):
    model, data = seeded(mlp), TensorDataset(normal(6, 3))
    for compute in (tl.NTK, tl.Jacobian, lambda m, d: tl.NTK(m, d, representation=tl.FMatImplicit)):
        with pytest.raises(InputError, match="shuffle"):
            compute(model, loader(data))


@pytest.mark.parametrize("loader", SHUFFLING.values(), ids=SHUFFLING.keys())
def test_two_passes_over_a_shuffling_loader_see_the_same_examples_with_the_same_labels(loader):
    """EKFAC's second pass must meet the label draws of the first, or its trace is not that of F."""
    model, data = seeded(mlp), TensorDataset(normal(6, 3))
    F = tl.FIM_MonteCarlo(model, loader(data), tl.PMatEKFAC, samples=3, generator=torch.Generator().manual_seed(0))
    rows = F._rows
    exact = tl.PMatDense.from_rows(rows)
    assert_close(F.trace(), exact.trace())


# ---------------------------------------------------------------- layers


CONVOLUTIONS = {
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect": {"padding": 2, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "same": {"padding": "same"},
    "same, even kernel": {"padding": "same", "kernel_size": 2},
    "same, dilated": {"padding": "same", "dilation": 2},
    "valid": {"padding": "valid"},
    "strided and dilated": {"stride": 2, "dilation": 2, "padding": 1},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolutions_of_every_kind_are_exact(options):
    layer = {"kernel_size": 3, **options}
    model = seeded(lambda: nn.Sequential(nn.Conv2d(4, 4, **layer), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)))
    x = normal(3, 4, 5, 5)
    model(x)
    model.double()
    assert_exact(model, x)


class Reused(nn.Module):
    """One layer called three times, another weight shared by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.core(x).tanh()
        return self.right(self.left(x).tanh())


def test_tied_and_reused_modules_have_their_cross_terms():
    model = seeded(Reused)
    assert_exact(model, normal(4, 3))
    assert tl.LayerCollection.from_model(model).numel == sum(p.numel() for p in set(model.parameters()))


def test_embedding_tied_to_the_output_layer():
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens).tanh().mean(1))

    model = seeded(Language)
    tokens = torch.randint(0, 5, (4, 3), generator=torch.Generator().manual_seed(0))
    assert_exact(model, tokens)


def test_frozen_parameters_are_left_out():
    model = seeded(mlp)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    x = normal(4, 3)
    layout = tl.LayerCollection.from_model(model)
    assert layout.names == ("0.bias", "2.weight") == tuple(trainable(model))
    assert_exact(model, x)
    kfac = tl.FIM(model, x, tl.PMatKFAC)
    hidden = model[:2](x).detach()
    assert_close(kfac.blocks[("2.weight",)].right[0], hidden.t() @ hidden / 4)
    assert tl.FIM(model, x, tl.PMatQuasiDiag).dim == layout.numel


def test_bare_parameters_are_kept():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.randn(3))
            self.last = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * self.last((x * self.shift).tanh())

    model = seeded(Bare)
    assert tl.LayerCollection.from_model(model).names[:2] == ("gain", "shift")
    assert_exact(model, normal(4, 3))
    kernel = tl.NTK(model, normal(4, 3)).data
    J = jacobian(model, normal(4, 3)).transpose(0, 1)
    assert_close(kernel, torch.einsum("cnd,emd->cnem", J, J))


def test_padding_row_of_an_embedding_has_no_gradient():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(4, 3, padding_idx=2), nn.Linear(3, 3)
            nn.init.normal_(self.words.weight)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.last(self.words(tokens).tanh().mean(1))

    model = seeded(Words)
    tokens = torch.tensor([[0, 2, 1], [2, 2, 3], [1, 0, 3]])
    assert_exact(model, tokens)
    for kind in (*EXACT, tl.PMatDiag, tl.PMatQuasiDiag):
        assert not tl.PVector(tl.FIM(model, tokens, kind).layout, tl.FIM(model, tokens, kind).diag().flat)[
            "words.weight"
        ][2].any()


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "kind",
    [*EXACT, tl.PMatDiag, tl.PMatQuasiDiag, tl.PMatBlockDiag, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatKronSum],
)
def test_double_precision_models_have_double_precision_results(kind):
    """A float32 temporary would leave errors of 1e-7."""
    model, x = seeded(mlp), normal(6, 3)
    F, doubled = tl.FIM(model, x, kind), tl.FIM(seeded(mlp), x * (1 + 1e-13), kind)
    assert F.to_dense().dtype == torch.float64
    change = float((F.to_dense() - doubled.to_dense()).abs().max() / F.to_dense().abs().max())
    assert 0 < change < 1e-11
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    damped = F.to_dense() + 0.1 * torch.eye(F.dim, dtype=torch.float64)
    error = (damped @ F.solve(v, 0.1).flat - v.flat).norm()
    assert error < (1e-6 if kind is tl.PMatImplicit else 1e-12)


def test_low_rank_solve_keeps_the_part_outside_its_range():
    model, x = seeded(mlp), normal(2, 3)
    F = tl.FIM(model, x, tl.PMatLowRank)
    rows = weighted_rows(model, x).flatten(0, 1)
    v = normal(F.dim)
    outside = v - torch.linalg.pinv(rows, rtol=1e-10) @ (rows @ v)
    assert outside.norm() > 0.5 * v.norm()
    assert_close(F.solve(tl.PVector(F.layout, outside), 0.01).flat, outside / 0.01)
    expected = torch.linalg.solve(fisher(model, x) + 0.01 * torch.eye(F.dim, dtype=v.dtype), v)
    assert_close(F.solve(tl.PVector(F.layout, v), 0.01).flat, expected)


@pytest.mark.parametrize("kind", [*EXACT, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag])
def test_regression_fisher_has_the_inverse_of_the_variance(kind):
    model, x = seeded(mlp), normal(4, 3)
    unit = tl.FIM(model, x, kind, likelihood="regression").to_dense()
    assert_close(tl.FIM(model, x, kind, likelihood=tl.Regression(4.0)).to_dense(), unit / 4)
    if kind in EXACT:
        J = jacobian(model, x)
        variances = torch.tensor([0.5, 2.0, 8.0], dtype=torch.float64)
        expected = torch.einsum("ncd,c,nce->de", J, 1 / variances, J) / 4
        assert_close(tl.FIM(model, x, kind, likelihood=tl.Regression(variances)).to_dense(), expected)


def test_ekfac_keeps_its_second_moments_when_pickled():
    model, x = seeded(mlp), normal(6, 3)
    F = tl.FIM(model, x, tl.PMatEKFAC)
    kfac = tl.FIM(model, x, tl.PMatKFAC)
    back = pickle.loads(pickle.dumps(F))
    assert torch.equal(back.to_dense(), F.to_dense()) and torch.equal(back.trace(), F.trace())
    assert float((back.to_dense() - kfac.to_dense()).norm()) > 1e-3 * float(kfac.norm())
    with pytest.raises(InputError, match="does not know its model"):
        back.update_diag()


def test_norms_of_vectors_with_negative_entries():
    model = seeded(mlp)
    v = tl.PVector.ones(model) * -2.0
    d = v.flat.numel()
    assert v.norm(1) == 2 * d and v.norm(float("inf")) == 2
    assert_close(v.norm(3), torch.tensor((8.0 * d) ** (1 / 3), dtype=torch.float64))
    assert_close(v.norm(), torch.tensor(2 * d**0.5, dtype=torch.float64))


# ---------------------------------------------------------------- the model


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.calls = nn.Linear(3, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        if float(x.detach()[0, 0]) > 100:
            raise RuntimeError("a bad batch")
        return out


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, d: tl.FIM(m, d, tl.PMatKFAC),
        lambda m, d: tl.FIM(m, d, tl.PMatImplicit),
        tl.NTK,
        tl.Hessian,
        tl.GGN,
        tl.KFRA,
        tl.GradientCovariance,
    ],
    ids=["KFAC", "implicit", "NTK", "Hessian", "GGN", "KFRA", "covariance"],
)
def test_no_hook_is_left_behind_when_the_forward_raises(compute):
    model = seeded(Failing)
    x = normal(4, 3)
    bad = x.clone()
    bad[0, 0] = 1000
    targets = torch.tensor([0, 1, 2, 0])
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError, match="a bad batch"):
        compute(model, [(x, targets), (bad, targets)])
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())

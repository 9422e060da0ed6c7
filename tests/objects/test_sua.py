"""SUA: what its factors are, when it is exact, and that EKFAC's second moments only improve on it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.objects.pmat.channels import ChannelBasis, ChannelSide
from tangentlab.objects.pmat.kronecker import KronBlock
from tangentlab.objects.pmat.side import decompose
from tangentlab.testing.dense_truth import assert_close


class Net(nn.Module):
    def __init__(self, convolution: nn.Module, outputs: int = 3) -> None:
        super().__init__()
        self.convolution, self.last = convolution, nn.Linear(convolution.out_channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.convolution(x).tanh().flatten(2).mean(2))


def network(seed: int = 0, **options: object) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(nn.Conv2d(4, 4, 3, **options)).double()


def images(count: int = 5, size: int = 6, channels: int = 4, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, size, size, generator=generator, dtype=torch.float64) + 0.5


def channel_block(blocks: dict) -> KronBlock:
    """The one block with a channel side."""
    return next(b for b in blocks.values() if isinstance(b.sides[1], ChannelSide))


CONVOLUTIONS = {
    "plain": {},
    "padded": {"padding": 1},
    "same": {"padding": "same", "dilation": 2},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "strided": {"stride": 2, "padding": 1},
    "grouped": {"groups": 2, "padding": 1},
    "without bias": {"bias": False},
}


@pytest.mark.parametrize("sua", [True, "centred"])
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_second_moments_are_never_further_than_kronecker_eigenvalues_in_the_sua_basis(sua, options):
    """Theorem 2 holds for any Kronecker eigenbasis: |F - EKFAC| <= |F - KFAC|, and the trace is exact."""
    model, x = network(**options), images()
    exact = tl.FIM(model, x).to_dense()
    kfac, ekfac = (tl.FIM(model, x, kind.with_options(sua=sua)) for kind in (tl.PMatKFAC, tl.PMatEKFAC))
    errors = [(exact - G.to_dense()).norm() for G in (ekfac, kfac)]
    assert errors[0] <= errors[1]
    gap = sum(
        (e.scale - k.to_eigen().scale).square().sum() for e, k in zip(ekfac.blocks.values(), kfac.blocks.values())
    )
    blocks = tl.PMatBlockDiag.from_dense(ekfac.layout, exact).to_dense()
    squares = [(blocks - G.to_dense()).square().sum() for G in (kfac, ekfac)]
    assert_close(squares[0], squares[1] + gap)
    assert_close(ekfac.trace(), exact.trace())


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_pixels_are_those_of_the_input_whatever_the_padding(options):
    model, x = network(**options), images()
    block = tl.FIM(model, x, tl.PMatKFAC.with_options(sua=True)).blocks
    found = channel_block(block)
    groups = model.convolution.groups
    pixels = x.unflatten(1, (groups, -1)).permute(1, 2, 0, 3, 4).flatten(2)
    positions = model.convolution(x)[0, 0].numel()
    assert_close(found.sides[1].tail, positions * pixels @ pixels.transpose(1, 2) / pixels.shape[-1])


def test_centred_sua_equals_kfc_when_pixels_are_uncorrelated():
    """All 2^pixels sign images, plus a mean: distinct pixels are exactly uncorrelated, so the assumption holds exactly."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 9)
    x = signs.reshape(-1, 1, 3, 3) + 0.7
    model = Net(nn.Conv2d(1, 2, 2)).double()
    kfc, centred, plain = (
        tl.FIM(model, x, tl.PMatKFAC.with_options(sua=sua)).to_dense() for sua in (False, "centred", True)
    )
    assert_close(centred, kfc)
    assert float((plain - kfc)[:8, :8].norm()) > 0.1 * float(kfc[:8, :8].norm())


def test_plain_sua_equals_kfc_when_pixels_are_uncorrelated_and_centred():
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 9)
    model = Net(nn.Conv2d(1, 2, 2)).double()
    x = signs.reshape(-1, 1, 3, 3)
    kfc, plain, centred = (
        tl.FIM(model, x, tl.PMatKFAC.with_options(sua=sua)).to_dense() for sua in (False, True, "centred")
    )
    assert_close(plain, kfc)
    assert_close(centred, kfc)


def test_kernels_of_one_tap_and_linear_layers_are_plain_kfac():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net(nn.Conv2d(4, 5, 1)).double()
    x = images()
    for sua in (True, "centred"):
        assert_close(
            tl.FIM(model, x, tl.PMatKFAC.with_options(sua=sua)).to_dense(), tl.FIM(model, x, tl.PMatKFAC).to_dense()
        )


def test_convolutions_of_other_dimensions_have_sua_factors():
    for kind, shape in ((nn.Conv1d, (4, 7)), (nn.Conv3d, (4, 3, 4, 3))):
        model = Net(kind(4, 2, 2)).double()
        x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        G = tl.FIM(model, x, tl.PMatKFAC.with_options(sua=True))
        taps = 2 ** (len(shape) - 1)
        right = channel_block(G.blocks).right[0]
        second = x.transpose(0, 1).flatten(1) @ x.transpose(0, 1).flatten(1).t() / (x.numel() / 4)
        positions = model.convolution(x)[0, 0].numel()
        expected = positions * torch.block_diag(torch.kron(second, torch.eye(taps, dtype=x.dtype)), torch.ones(1, 1))
        assert_close(right, expected)


def test_a_convolution_that_is_called_twice_takes_its_pixels_from_its_patches():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.convolution(self.convolution(x).tanh()).mean((2, 3)))

    model, x = Twice().double(), images(channels=2)
    kfac, ekfac = (tl.FIM(model, x, kind.with_options(sua=True)) for kind in (tl.PMatKFAC, tl.PMatEKFAC))
    exact = tl.FIM(model, x)
    assert_close(ekfac.trace(), exact.trace())
    assert (exact.to_dense() - ekfac.to_dense()).norm() <= (exact.to_dense() - kfac.to_dense()).norm()


def test_factored_damping_solves_the_product_of_damped_factors():
    model, x = network(padding=1), images()
    G = tl.FIM(model, x, tl.PMatKFAC.with_options(sua="centred"))
    damping, v = 0.3, tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    solution = G.solve(v, damping, factored=True)
    block = channel_block(G.blocks)
    right, left = block.right[0], block.left[0]
    pi = ((right.trace() / len(right)) / (left.trace() / len(left))).sqrt()
    matrix = torch.cat([v["convolution.weight"].flatten(1), v["convolution.bias"][:, None]], 1)
    left = left + damping**0.5 / pi * torch.eye(len(left), dtype=left.dtype)
    right = right + damping**0.5 * pi * torch.eye(len(right), dtype=right.dtype)
    expected = torch.linalg.solve(left, matrix) @ torch.linalg.inv(right)
    found = torch.cat([solution["convolution.weight"].flatten(1), solution["convolution.bias"][:, None]], 1)
    assert_close(found, expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_channel_sides_agree_with_their_dense_form(bias, centred):
    x = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.4
    second = x @ x.transpose(1, 2) / 50
    A = ChannelSide.centred(second, x.mean(2), 4, bias, 5.0) if centred else ChannelSide.plain(5 * second, 4, bias, 5.0)
    dense = A.dense()
    ((values, basis),) = decompose([A])
    assert isinstance(basis, ChannelBasis) and A.size == 12 + bias
    assert_close(A.traces(), dense.diagonal(dim1=1, dim2=2).sum(1))
    assert_close(A.diagonal(), dense.diagonal(dim1=1, dim2=2))
    assert_close(A.squared_norms(), dense.square().sum((1, 2)))
    root = A.of_eigen(values**-0.5, basis)
    assert_close(values.sort()[0], torch.linalg.eigvalsh(dense))
    assert_close(root.dense() @ dense @ root.dense(), torch.eye(A.size).double().expand_as(dense), factor=10)
    vectors = basis.into(torch.eye(A.size, dtype=torch.float64).expand_as(dense))
    assert_close((vectors * values[:, None]) @ vectors.transpose(1, 2), dense)
    assert_close(basis.out_of(vectors.transpose(1, 2).transpose(1, 2)), torch.eye(A.size).double().expand_as(dense))
    scale = torch.rand(2, 3, A.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(basis.squares_out_of(scale), scale @ vectors.square().transpose(1, 2))


def test_channel_factors_are_smaller_than_patch_factors():
    model, x = network(), images()
    plain, sua = (tl.FIM(model, x, tl.PMatKFAC.with_options(sua=sua)) for sua in (False, True))
    assert plain.numel() - sua.numel() == 37**2 - (4**2 + 1)


def test_unknown_sua_and_sua_with_reduced_sharing_are_refused():
    model, x = network(), images()
    with pytest.raises(InputError, match="sua must be"):
        tl.FIM(model, x, tl.PMatKFAC.with_options(sua="yes"))
    with pytest.raises(InputError, match="sharing"):
        tl.FIM(model, x, tl.PMatKFAC.with_options(sua=True, sharing="reduce"))


def test_mixed_matrices_take_sua_for_their_convolutions():
    model = nn.Sequential(nn.Conv2d(4, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(48, 3)).double()
    x = images()
    G = tl.FIM(model, x, tl.PMatMixed.default(kronecker=tl.PMatEKFAC, sua=True))
    layers = ["0.*", "3.*"]
    expected = tl.FIM(model, x, tl.PMatEKFAC.with_options(sua=True), layers=layers)
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    inside = v.restrict(expected.layout)
    assert_close((G @ v).restrict(expected.layout).flat, (expected @ inside).flat)


def test_refreshing_the_basis_keeps_the_option():
    model, x = network(), images()
    G = tl.FIM(model, x, tl.PMatEKFAC.with_options(sua=True))
    before = G.to_dense().clone()
    G.refresh_basis()
    assert_close(G.to_dense(), before)
    other = F.pad(images(seed=9), (0, 0, 0, 0))
    G.refresh_basis(other)
    assert_close(G.to_dense(), tl.FIM(model, other, tl.PMatEKFAC.with_options(sua=True)).to_dense())

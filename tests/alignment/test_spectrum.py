"""Spectrum statistics against their definitions, and estimates from products against the dense truth.

Statistical tests fix the seed and use a tolerance of 4.5 standard errors.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab import NTK, FMatImplicit
from tangentlab.alignment import KernelSpectrum, estimate_spectrum, kernel_modes, kernel_spectrum
from tangentlab.data import load
from tangentlab.errors import InputError, NumericsError
from tangentlab.objects.fmat import FMatDense
from tangentlab.recorder import View
from tangentlab.recorder.measures import spectrum, uncentred

SIGMAS = 4.5


def gram(rows, columns, seed=0, dtype=torch.float64):
    features = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return features @ features.t()


def test_every_number_is_its_definition():
    matrix = gram(9, 9)
    values = np.linalg.eigvalsh(matrix.numpy())[::-1]
    shares = values / values.sum()
    found = kernel_spectrum(matrix)
    assert np.allclose(found.values, values, rtol=1e-10)
    expected = {
        "max": values[0],
        "mean": values.mean(),
        "median": np.median(values),
        "trace": values.sum(),
        "effective_rank": math.exp(-(shares * np.log(shares)).sum()),
        "stable_rank": values.sum() / values[0],
        "participation_ratio": values.sum() ** 2 / (values**2).sum(),
        "T_2": shares[:2].sum(),
        "T_4": shares[:4].sum(),
    }
    assert found.summary(ks=(2, 4, 100)) == pytest.approx(expected, rel=1e-10)
    assert found.ratio(3) == pytest.approx(values[2] / values[0], rel=1e-10)
    assert set(found.standard_error((2, 4)).values()) == {0.0}


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_median_is_that_of_numpy_for_odd_and_even_sizes(size):
    values = torch.rand(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    assert KernelSpectrum.from_eigenvalues(values).median == pytest.approx(np.median(values.numpy()), rel=1e-15)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_all_ranks_of_a_projector_are_its_rank(rank):
    basis = torch.linalg.qr(torch.randn(6, rank, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    found = kernel_spectrum(3.7 * basis @ basis.t())
    for value in (found.effective_rank, found.stable_rank, found.participation_ratio):
        assert value == pytest.approx(rank, rel=1e-12)
    assert found.trace_ratio(rank) == pytest.approx(1, rel=1e-14)


def test_ranks_are_ordered_scale_free_and_at_most_the_rank():
    matrix = gram(30, 12)
    found = kernel_spectrum(matrix)
    assert 1 <= found.stable_rank <= found.participation_ratio <= found.effective_rank <= 12 + 1e-9
    for scale in (1e-200, 1e200):
        scaled = KernelSpectrum.from_eigenvalues(found.values * scale)
        assert scaled.effective_rank == pytest.approx(found.effective_rank, rel=1e-12)
        assert scaled.participation_ratio == pytest.approx(found.participation_ratio, rel=1e-12)


def test_trace_ratios_never_decrease_and_end_at_one():
    found = kernel_spectrum(gram(20, 7))
    ratios = [found.trace_ratio(k) for k in range(25)]
    assert ratios[0] == 0 and all(b >= a for a, b in zip(ratios, ratios[1:]))
    assert ratios[7] == pytest.approx(1, rel=1e-14) and ratios[24] <= 1
    with pytest.raises(InputError, match="k >= 0"):
        found.trace_ratio(-1)


def test_the_zero_kernel_and_a_single_number_have_defined_values():
    zero = kernel_spectrum(torch.zeros(4, 4)).summary((1, 2))
    assert zero["effective_rank"] == zero["stable_rank"] == zero["participation_ratio"] == zero["max"] == 0
    assert zero["T_1"] == zero["T_2"] == 1
    one = kernel_spectrum(torch.tensor([[5.0]])).summary(())
    assert one["effective_rank"] == one["stable_rank"] == 1 and one["median"] == 5
    constant = kernel_spectrum(torch.ones(6, 6), center="global")
    assert constant.trace == pytest.approx(0, abs=1e-12) and math.isfinite(constant.effective_rank)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(NumericsError, match="negative beyond rounding"):
        kernel_spectrum(torch.diag(torch.tensor([1.0, -0.1])))
    with pytest.raises(NumericsError, match="non-finite"):
        kernel_spectrum(torch.full((2, 2), math.nan))
    with pytest.raises(InputError, match="square"):
        kernel_spectrum(torch.ones(2, 3))
    with pytest.raises(InputError, match="nonempty vector"):
        KernelSpectrum.from_eigenvalues(torch.ones(2, 2))


def test_rounding_of_a_float32_kernel_is_not_taken_for_negative_eigenvalues():
    kernel = gram(300, 5, dtype=torch.float32)
    assert float(torch.linalg.eigvalsh(kernel).min()) < 0
    found, exact = kernel_spectrum(kernel), torch.linalg.eigvalsh(kernel.double()).flip(0)
    assert torch.allclose(found.values[:5], exact[:5], rtol=1e-5)
    assert float(found.values[5:].abs().max()) < 1e-5 * float(exact[0]) and not (found.values < 0).any()
    assert found.effective_rank <= 5.01


def test_centring_per_output_takes_the_mean_over_examples_of_each_output():
    features = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
    kernel = FMatDense(torch.einsum("cnp,dmp->cndm", features, features))
    moved = (features - features.mean(1, keepdim=True)).flatten(0, 1)
    expected = torch.linalg.svdvals(moved).square()
    found = kernel_spectrum(kernel, center="per_output")
    assert torch.allclose(found.values, expected, atol=1e-9)
    assert float(found.values[12:].max()) < 1e-9  # one direction per output is gone


def decaying(dim, seed=0):
    basis = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[
        0
    ]
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -1.3
    return FMatDense.from_matrix((basis * values) @ basis.t())


def test_estimates_from_products_agree_with_the_dense_spectrum_within_their_standard_errors():
    kernel = decaying(300)
    truth = kernel_spectrum(kernel).summary((10, 20))
    names = [name for name in truth if name != "median"]
    runs = 12
    for seed in range(runs):
        found = estimate_spectrum(kernel, top=20, probes=12, steps=40, generator=torch.Generator().manual_seed(seed))
        value, error = found.summary((10, 20)), found.standard_error((10, 20))
        for name in names:
            assert abs(value[name] - truth[name]) <= SIGMAS * error[name] + 1e-9 * abs(truth[name]), name
        assert value["median"] == pytest.approx(truth["median"], rel=0.25) and math.isnan(error["median"])
        assert error["effective_rank"] < 0.05 * truth["effective_rank"]


def test_standard_errors_are_the_spread_that_estimates_have():
    kernel = decaying(120)
    found = [
        estimate_spectrum(kernel, top=5, probes=8, steps=25, generator=torch.Generator().manual_seed(seed))
        for seed in range(40)
    ]
    for name in ("trace", "effective_rank", "participation_ratio"):
        spread = torch.tensor([run.summary(())[name] for run in found]).std()
        claimed = torch.tensor([run.standard_error(())[name] for run in found]).square().mean().sqrt()
        assert 0.6 < float(claimed / spread) < 1.6, name


def test_an_implicit_tangent_kernel_gives_the_statistics_of_the_dense_one(seed):
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    inputs = torch.randn(30, 5, dtype=torch.float64)
    truth = kernel_spectrum(NTK(model, inputs, center="per_output"))
    implicit = NTK(model, inputs, center="per_output", representation=FMatImplicit)
    found = estimate_spectrum(implicit, top=15, probes=10, steps=40, generator=seed(1))
    assert torch.allclose(found.values[:15], truth.values[:15], rtol=1e-8)
    assert found.effective_rank == pytest.approx(truth.effective_rank, rel=0.05)
    assert found.trace_ratio(10) == pytest.approx(truth.trace_ratio(10), rel=0.02)


def test_all_eigenpairs_asked_for_is_the_dense_answer_without_error():
    kernel = decaying(20)
    found = estimate_spectrum(kernel, top=50)
    assert torch.allclose(found.values, kernel_spectrum(kernel).values, rtol=1e-9)
    assert set(found.standard_error(()).values()) == {0.0}
    with pytest.raises(InputError, match="2 probes"):
        estimate_spectrum(kernel, probes=1)


def digits(count, dtype):
    inputs, labels = load("digits").first(count)
    return inputs.flatten(1).to(dtype), labels


def deep_network(dtype, hidden=10):
    """Default initialization: after ten layers all examples have nearly the same features."""
    torch.manual_seed(0)
    layers = [module for _ in range(hidden) for module in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, 10)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("center", ["per_output", "global"])
@pytest.mark.parametrize("value", [0.1, 0.7, 1e-30, 1e30])
def test_a_constant_kernel_is_zero_once_it_is_centred(value, center, dtype):
    kernel = torch.full((50, 50), value, dtype=dtype)
    found = kernel_spectrum(kernel, center)
    assert found.trace == found.effective_rank == 0 and found.trace_ratio(1) == 1
    with pytest.raises(InputError, match="zero"):
        kernel_modes(kernel, center=center)
    assert kernel_spectrum(kernel).trace == pytest.approx(50 * value, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_examples_have_no_spectrum_once_they_are_centred(dtype):
    inputs = digits(1, dtype)[0].expand(20, -1).contiguous()
    kernel = NTK(deep_network(dtype, hidden=2), inputs, progress=False)
    assert kernel_spectrum(kernel, "per_output").trace == 0
    assert kernel_spectrum(kernel).trace == pytest.approx(float(kernel.trace()), rel=1e-5)


def test_a_deep_network_is_centred_exactly_in_float64_and_up_to_the_rounding_of_its_kernel_in_float32():
    kernels = {}
    for dtype in (torch.float32, torch.float64):
        kernels[dtype] = NTK(deep_network(dtype), digits(20, dtype)[0], progress=False)
    exact = kernels[torch.float64]
    features = torch.linalg.cholesky(exact.matrix() + 1e-15 * float(exact.trace()) * torch.eye(200).double())
    features = features.reshape(10, 20, 200)
    values = torch.linalg.svdvals((features - features.mean(1, keepdim=True)).flatten(0, 1)).square()
    found = kernel_spectrum(exact, "per_output")
    assert 0 < found.trace < 1e-4 * float(exact.trace())
    assert torch.allclose(found.values, values, rtol=1e-5, atol=1e-11 * float(exact.trace()))
    rough = kernel_spectrum(kernels[torch.float32], "per_output")
    assert torch.allclose(rough.values, found.values, atol=1e-6 * float(exact.matrix().norm()))


@pytest.mark.parametrize("offset", [1.0, 30.0, 300.0])
def test_a_float32_kernel_with_a_large_common_part_has_the_spectrum_of_what_is_left(offset):
    """Rounding is judged beside the kernel before centring: negative eigenvalues of its size are zero, modes of it none."""
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.linalg.svdvals(features - features.mean(0)).square()
    kernel = (features @ features.t() + offset**2).float()
    rounding = 1e-6 * float(kernel.norm())
    found, modes = kernel_spectrum(kernel, "per_output"), kernel_modes(kernel, center="per_output")
    assert torch.allclose(found.values[:3], values, atol=rounding) and float(found.values[3:].max()) < rounding
    assert len(modes.values) == 3 and torch.allclose(modes.values, values, atol=rounding)


@pytest.mark.parametrize("center", [None, "per_output"])
def test_a_kernel_that_is_not_symmetric_is_refused(center):
    kernel = gram(8, 8)
    kernel[0, 3] += 0.5
    with pytest.raises(InputError, match="not symmetric"):
        kernel_spectrum(kernel, center)
    with pytest.raises(InputError, match="not symmetric"):
        kernel_modes(kernel, center=center)


def test_centring_does_not_hide_negative_eigenvalues():
    with pytest.raises(NumericsError, match="negative beyond rounding"):
        kernel_spectrum(torch.diag(torch.tensor([1.0, 1.0, -0.9])) + 3, "per_output")


def test_the_sum_of_float32_layers_is_judged_by_the_rounding_of_float32():
    """As the alignment experiments sum them; four hidden units make an ill-conditioned kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    inputs = digits(50, torch.float32)[0]
    view, true = View.of(model, inputs), View.of(copy.deepcopy(model).double(), inputs.double())
    found, truth = (spectrum(one, (40,)) | uncentred(one, (40,)) for one in (view, true))
    assert found == pytest.approx(truth, rel=1e-3, abs=1e-4)

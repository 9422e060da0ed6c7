"""Eigenfunctions of the tangent kernel as a basis: Mercer's sums, Lemma 1, tasks, energy, and the routes to them."""

import math

import pytest
import torch
from torch import nn

from tangentlab import NTK, memory_limit
from tangentlab.errors import InputError
from tangentlab.linearized.alignments import alignments, rayleigh_quotients
from tangentlab.linearized.eigenfunctions import Eigenfunctions, chance_concentration, eigenfunctions
from tangentlab.models import MLP, LeNet5, ResNet

N = 40


@pytest.fixture
def network(seed) -> nn.Module:
    return MLP((5, 16, 12, 1), "tanh").double().eval()


@pytest.fixture
def points(seed) -> torch.Tensor:
    return torch.randn(N, 5, generator=seed(1), dtype=torch.float64)


@pytest.fixture
def basis(network, points) -> Eigenfunctions:
    return eigenfunctions(network, points, N)


def test_the_kernel_is_the_sum_of_its_eigenfunctions(network, points, basis):
    rebuilt = (basis.functions.T * basis.kernel_eigenvalues) @ basis.functions
    torch.testing.assert_close(rebuilt, NTK(network, points).matrix())
    torch.testing.assert_close(basis.functions @ basis.functions.T / N, torch.eye(N, dtype=torch.float64))
    assert (basis.eigenvalues > -1e-10 * basis.eigenvalues[0]).all()


def test_alignment_by_gram_by_eigenfunctions_and_by_averaged_gradients_agree(network, points, basis, seed):
    functions = torch.randn(7, N, generator=seed(2), dtype=torch.float64)
    gram = (functions * (functions @ NTK(network, points).matrix())).sum(1) / N**2
    torch.testing.assert_close(basis.alignment(functions), gram)
    torch.testing.assert_close(alignments(network, points, functions), gram)


def test_the_alignment_is_the_squared_norm_of_one_averaged_gradient(network, points, seed):
    values = torch.randn(N, generator=seed(3), dtype=torch.float64)
    mean = (values * network(points)[:, 0]).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(mean, list(network.parameters()))])
    torch.testing.assert_close(alignments(network, points, values[None])[0], gradient.square().sum())


def test_the_rayleigh_quotient_of_an_eigenvector_is_its_eigenvalue(network, points, basis):
    found = rayleigh_quotients(network, [(points[:15],), (points[15:],)], basis.vectors[:10])
    torch.testing.assert_close(found, basis.eigenvalues[:10])


def test_lemma_1_holds_for_functions_in_the_span_and_is_tight_for_one_eigenfunction_only(basis, seed):
    leading = Eigenfunctions(basis.eigenvalues[:15], basis.vectors[:15], basis.residual_norms[:15])
    mixtures = torch.randn(30, 15, generator=seed(4), dtype=torch.float64) @ leading.functions
    found = leading.lemma_one(mixtures)
    assert (found.gap > 0).all() and (found.tightness < 1).all()
    single = leading.lemma_one(3 * leading.functions)
    torch.testing.assert_close(single.tightness, torch.ones(15, dtype=torch.float64))
    torch.testing.assert_close(single.norm_squared, 9 / leading.kernel_eigenvalues)


def test_the_norm_of_a_function_in_the_span_is_that_of_its_smallest_weights(network, points, basis, seed):
    """|f|_K is the least |w| with f(x) = <w, grad f_theta(x)> on the data."""
    leading = Eigenfunctions(basis.eigenvalues[:15], basis.vectors[:15], basis.residual_norms[:15])
    function = torch.randn(15, generator=seed(5), dtype=torch.float64) @ leading.functions
    rows = []
    for value in network(points)[:, 0]:
        gradients = torch.autograd.grad(value, list(network.parameters()), retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    weights = torch.linalg.lstsq(torch.stack(rows), function[:, None], driver="gelsd").solution
    torch.testing.assert_close(leading.norm_squared(function), weights.square().sum(), rtol=1e-6, atol=0)


def test_a_function_outside_of_the_span_is_refused_unless_its_part_is_asked_for(basis, seed):
    few = Eigenfunctions(basis.eigenvalues[:5], basis.vectors[:5], basis.residual_norms[:5])
    outside = basis.functions[0] + basis.functions[7]
    with pytest.raises(InputError, match="0.5 of the function's energy"):
        few.norm_squared(outside)
    torch.testing.assert_close(few.norm_squared(outside, truncated=True), 1 / few.kernel_eigenvalues[0])
    torch.testing.assert_close(few.missing_energy(outside), torch.tensor(0.5, dtype=torch.float64))


def test_labels_are_signs_and_binarization_is_their_cosine(basis):
    labels = basis.labels(3)
    assert labels.dtype == torch.int64 and set(labels.tolist()) == {0, 1}
    signs = (2 * labels - 1).double()
    torch.testing.assert_close(basis.binarization()[3], signs @ basis.vectors[3] / N**0.5)
    with pytest.raises(InputError, match="0 to 39"):
        basis.labels(N)


def test_binarization_of_gaussian_vectors_keeps_the_root_of_two_over_pi(seed):
    vectors = nn.functional.normalize(torch.randn(20, 20_000, generator=seed(6)), dim=1)
    found = Eigenfunctions(torch.ones(20), vectors, torch.zeros(20)).binarization()
    assert found.mean().item() == pytest.approx(math.sqrt(2 / math.pi), abs=2e-3)


def test_energy_concentration_is_a_projection_and_random_labels_have_the_chance_level(basis, seed):
    signs = 2.0 * torch.randint(0, 2, (4000, N), generator=seed(7)) - 1
    share = basis.energy_concentration(signs, 8)
    projector = basis.vectors[:8].T @ basis.vectors[:8]
    torch.testing.assert_close(share[0], (projector @ signs[0].double()).norm() / N**0.5)
    assert share.square().mean().sqrt().item() == pytest.approx(chance_concentration(8, N), rel=0.03)
    torch.testing.assert_close(basis.energy_concentration(basis.vectors[:8], 8), torch.ones(8, dtype=torch.float64))
    assert basis.energy_concentration(basis.vectors[8], 8) < 1e-10


def test_extension_to_the_same_points_gives_the_eigenfunctions_back(network, points, basis):
    leading = Eigenfunctions(basis.eigenvalues[:10], basis.vectors[:10], basis.residual_norms[:10])
    torch.testing.assert_close(leading.extend(NTK(network, points, points)), leading.functions)
    new = torch.randn(6, 5, dtype=torch.float64)
    assert leading.extend(NTK(network, new, points)).shape == (10, 6)


@pytest.mark.parametrize("method", ["gram", "lanczos", "nystrom"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_all_routes_agree_with_the_gram_matrix(points, seed, method, outputs):
    network = MLP((5, 16, outputs), "tanh").double().eval()
    values, vectors = torch.linalg.eigh(NTK(network, points).matrix())
    options = {"landmarks": N} if method == "nystrom" else {}
    found = eigenfunctions(network, [(points[:25],), (points[25:],)], 6, method=method, generator=seed(8), **options)
    assert found.outputs == outputs and found.examples == N
    torch.testing.assert_close(found.eigenvalues, values[-6:].flip(0), rtol=1e-7, atol=0)
    assert (found.vectors * vectors[:, -6:].T.flip(0)).sum(1).abs().min() > 1 - 1e-6


def test_a_convolutional_network_and_one_output_of_several(seed):
    network = LeNet5(1, 12, 4).eval()
    images = torch.rand(30, 1, 12, 12, generator=seed(9))
    found = eigenfunctions(network, [(part,) for part in images.split(8)], 5, outputs=2)
    matrix = NTK(network, images, outputs=2).matrix().double()
    torch.testing.assert_close(
        found.eigenvalues.double(), torch.linalg.eigvalsh(matrix)[-5:].flip(0), rtol=1e-4, atol=0
    )
    one = nn.Sequential(network, nn.Linear(4, 1, bias=False))
    one[1].weight.data = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    one[1].requires_grad_(False)
    found_alignments = rayleigh_quotients(one, [(part,) for part in images.split(8)], found.vectors)
    torch.testing.assert_close(found_alignments, found.eigenvalues, rtol=1e-3, atol=0)


def test_alignments_of_several_outputs_and_of_layers_in_batches_of_functions(seed, points):
    network = MLP((5, 16, 3), "tanh").double().eval()
    functions = torch.randn(9, 3, N, generator=seed(10), dtype=torch.float64)
    matrix = NTK(network, points).matrix()
    flat = functions.flatten(1)
    truth = (flat * (flat @ matrix)).sum(1) / N**2
    with memory_limit(40_000):  # a few functions, and a few outputs, at a time
        torch.testing.assert_close(alignments(network, [(points[:7],), (points[7:],)], functions), truth)


def test_alignments_of_a_residual_network_with_frozen_norms(seed):
    network = ResNet((1, 1), 1, base=4, in_channels=1).double().eval()
    images = torch.rand(12, 1, 8, 8, generator=seed(11), dtype=torch.float64)
    functions = torch.randn(4, 12, generator=seed(12), dtype=torch.float64)
    matrix = NTK(network, images).matrix()
    truth = (functions * (functions @ matrix)).sum(1) / 144
    torch.testing.assert_close(alignments(network, [(part,) for part in images.split(5)], functions), truth)


def test_beyond_memory_the_kernel_is_multiplied_and_not_stored(network, points):
    with memory_limit(N * N * 8 - 1):
        found = eigenfunctions(network, points, 3)
    assert "products" in found.message
    torch.testing.assert_close(found.eigenvalues, eigenfunctions(network, points, 3).eigenvalues)


def test_the_model_is_left_as_it_was(network, points, basis):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    eigenfunctions(network, points, 3, method="lanczos")
    alignments(network, points, basis.vectors)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters()) and not network.training


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (torch.zeros(2, N - 1, dtype=torch.float64), "more examples"),
        (torch.zeros(2, N + 1, dtype=torch.float64), "41 examples"),
        (torch.zeros(2, 2, N, dtype=torch.float64), "1 outputs"),
        (torch.zeros(2, N, dtype=torch.int64), "real"),
        (torch.zeros(N), "real"),
    ],
)
def test_targets_of_another_shape_are_refused(network, points, targets, complaint):
    with pytest.raises(InputError, match=complaint):
        alignments(network, points, targets)


def test_options_that_contradict_each_other_are_refused(network, points):
    with pytest.raises(InputError, match="landmarks"):
        eigenfunctions(network, points, 3, landmarks=10)
    with pytest.raises(InputError, match="landmarks"):
        eigenfunctions(network, points, 3, method="nystrom")
    with pytest.raises(InputError, match="between k = 3 and n = 40"):
        eigenfunctions(network, points, 3, method="nystrom", landmarks=2)
    with pytest.raises(InputError, match="method"):
        eigenfunctions(network, points, 3, method="svd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k must be"):
        chance_concentration(5, 4)


def test_the_span_of_single_precision_eigenfunctions_is_judged_in_single_precision(network, points):
    single = eigenfunctions(network.float(), points.float(), 10)
    norms = single.norm_squared(single.functions.double())
    torch.testing.assert_close(norms, 1 / single.kernel_eigenvalues, rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_a_null_space_have_no_norm_and_no_values_elsewhere(seed, dtype):
    x, model = torch.randn(9, 2, generator=seed(5)).to(dtype), nn.Linear(2, 1).to(dtype)
    whole = eigenfunctions(model, x, 9)
    assert len(whole) == 9 and whole.rank == 3
    f = torch.randn(9, generator=seed(6)).to(dtype)
    with pytest.raises(InputError, match="span of the 3"):
        whole.norm_squared(f)
    with pytest.raises(InputError, match=r"leading\(3\)"):
        whole.extend(NTK(model, x, x))
    known, inside = whole.leading(3), whole.vectors[:3].sum(0)
    torch.testing.assert_close(whole.norm_squared(inside), known.norm_squared(inside))
    torch.testing.assert_close(known.extend(NTK(model, x, x)), known.functions, rtol=1e-3, atol=1e-4)
    gap = whole.lemma_one(inside).gap
    torch.testing.assert_close(gap, known.lemma_one(inside).gap)
    assert float(gap) > 1e-3 * float(whole.norm_squared(inside))  # 0 for multiples of one eigenfunction only
    torch.testing.assert_close(whole.norm_squared(f, truncated=True), known.norm_squared(f, truncated=True))
    with pytest.raises(InputError, match="between 1 and 9"):
        whole.leading(10)


def test_a_kernel_of_zero_has_no_norm(points):
    model = nn.Sequential(nn.Linear(5, 1, bias=False)).double()
    basis = eigenfunctions(model, torch.zeros_like(points), 2)
    for ask in (basis.norm_squared, basis.lemma_one, lambda f: basis.extend(f[None])):
        with pytest.raises(InputError, match="kernel is zero"):
            ask(basis.vectors[0])


def test_routes_refuse_more_functions_than_there_are_and_take_the_same_data(network, points):
    from tangentlab.data import Dataset

    for method in ("gram", "lanczos"):
        with pytest.raises(InputError, match="between 1 and 40"):
            eigenfunctions(network, points, N + 1, method=method)
    data = Dataset(points, torch.zeros(N).long(), "points", "train")
    found = eigenfunctions(network, data, 3, method="nystrom", landmarks=N)
    torch.testing.assert_close(found.eigenvalues, eigenfunctions(network, points, 3).eigenvalues)


def test_a_basis_of_several_outputs_says_how_alignments_take_it(points):
    model = MLP((5, 6, 2), "tanh").double().eval()
    basis = eigenfunctions(model, points, 4)
    with pytest.raises(InputError, match="unflatten"):
        alignments(model, points, basis.functions)
    found = rayleigh_quotients(model, points, basis.vectors.unflatten(1, (2, -1)))
    torch.testing.assert_close(found, basis.eigenvalues)
    with pytest.raises(InputError, match="80 values"):
        basis.energy_concentration(torch.ones(N).double())

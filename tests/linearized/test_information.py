"""Information and nuisance space against the dense Jacobian's singular value decomposition."""

from math import exp, sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import DataFileError, InputError, MemoryBudgetError, NumericsError
from tangentlab.linearized import (
    information_bound,
    information_space,
    small_cutoff_bound,
    stacked,
    streamed_eigenpairs,
)

N, OUTPUTS = 24, 3


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, OUTPUTS))
    return net.double().eval()


@pytest.fixture
def data() -> list[tuple[Tensor]]:
    x = torch.randn(N, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return [(x[:10],), (x[10:17],), (x[17:],)]


def jacobian(model: nn.Module, data: list[tuple[Tensor]]) -> Tensor:
    """(outputs * n, p) by plain autograd, output-major."""
    rows = []
    for (batch,) in data:
        for example in batch:
            outputs = model(example[None])[0]
            rows.append(
                torch.stack(
                    [
                        torch.cat(
                            [g.flatten() for g in torch.autograd.grad(out, list(model.parameters()), retain_graph=True)]
                        )
                        for out in outputs
                    ]
                )
            )
    return torch.stack(rows, 1).flatten(0, 1)


@pytest.mark.parametrize("method", ["gram", "krylov"])
def test_singular_values_and_vectors_are_those_of_the_dense_jacobian(model, data, method: str):
    left, values, _ = torch.linalg.svd(jacobian(model, data), full_matrices=False)
    space = information_space(model, data, 7, method=method, tolerance=1e-7)
    torch.testing.assert_close(space.singular_values, values[:7], rtol=1e-6, atol=0)
    torch.testing.assert_close(
        space.basis.vectors.T @ space.basis.vectors, left[:, :7] @ left[:, :7].T, rtol=0, atol=1e-5
    )
    assert float(space.relative_residuals.max()) <= 1e-7


def test_streamed_residuals_are_those_of_the_kernel(model, data):
    kernel = tl.NTK(model, data).matrix()
    found = streamed_eigenpairs(model, data, 5, block=6, tolerance=0.3)
    truth = (found.vectors @ kernel - found.values[:, None] * found.vectors).norm(dim=1)
    torch.testing.assert_close(found.residual_norms, truth, rtol=1e-6, atol=1e-9)
    assert float((truth / found.values).max()) <= 0.3


def test_streamed_rows_find_what_the_examples_of_the_start_have_nothing_of(model):
    """One example in twenty is scaled up and lives on pixels of its own; the start sees those at equal distances from 0."""
    net = nn.Linear(40, 1).double()
    x = torch.zeros(400, 40, dtype=torch.float64)
    x[torch.arange(400), torch.arange(400) % 20] = 1.0
    x[101, 30] = 50.0
    found = streamed_eigenpairs(net, [(part,) for part in x.split(64)], 2, block=4, tolerance=1e-6)
    truth = torch.linalg.eigvalsh(tl.NTK(net, x).matrix())
    torch.testing.assert_close(found.values, truth.flip(0)[:2], rtol=1e-6, atol=0)


def test_a_jacobian_of_zeros_is_refused():
    with pytest.raises(InputError, match="zero"):
        streamed_eigenpairs(nn.Linear(4, 1, bias=False), torch.zeros(6, 4), 2)


def test_projections_split_a_vector_and_pseudo_inverse_is_that_of_the_cut_jacobian(model, data):
    dense = jacobian(model, data)
    left, values, right = torch.linalg.svd(dense, full_matrices=False)
    vectors = torch.randn(4, N * OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    space = information_space(model, data, 9)
    cut = left[:, :9] * values[:9] @ right[:9]
    torch.testing.assert_close(space.information(vectors), vectors @ left[:, :9] @ left[:, :9].T)
    torch.testing.assert_close(space.information(vectors) + space.nuisance(vectors), vectors)
    split = space.split(vectors)
    torch.testing.assert_close(split.information**2 + split.nuisance**2, split.total**2)
    torch.testing.assert_close(sum(share**2 for share in split.shares), torch.ones(4, dtype=torch.float64))
    moved = (vectors @ torch.linalg.pinv(cut, rtol=1e-10).T).norm(dim=1) / vectors.norm(dim=1)
    torch.testing.assert_close(space.pseudo_inverse_ratio(vectors), moved)


def test_cutoffs_by_value_and_by_the_theorems_rule_choose_the_dimension(model, data):
    values = torch.linalg.svdvals(jacobian(model, data))
    cutoff = float(values[4] + values[5]) / 2
    assert len(information_space(model, data, cutoff=cutoff)) == 5
    assert len(information_space(model, data, abar=cutoff / sqrt(N * OUTPUTS))) == 5
    assert len(information_space(model, data, 8, cutoff=cutoff, method="krylov", tolerance=1e-6)) == 5
    with pytest.raises(InputError, match="larger r"):
        information_space(model, data, 3, cutoff=cutoff, method="krylov")
    with pytest.raises(InputError, match="No singular value"):
        information_space(model, data, cutoff=2 * float(values[0]))


def test_the_trace_kernel_is_summed_over_outputs(model, data):
    dense = jacobian(model, data).reshape(OUTPUTS, N, -1)
    trace = torch.einsum("cnp,cmp->nm", dense, dense)
    space = information_space(model, data, 4, outputs="trace")
    torch.testing.assert_close(space.basis.eigenvalues, torch.linalg.eigvalsh(trace).flip(0)[:4])
    assert space.information(torch.ones(OUTPUTS, N, dtype=torch.float64)).shape == (OUTPUTS, N)


def test_diffuseness_is_one_for_even_vectors_and_one_over_n_for_a_single_example(model, data):
    space = information_space(model, data, 2)
    even = torch.full((N * OUTPUTS,), (N * OUTPUTS) ** -0.5, dtype=torch.float64)
    single = torch.zeros(N * OUTPUTS, dtype=torch.float64)
    single[[0, N]] = 0.5**0.5
    basis = type(space.basis)(torch.ones(2), torch.stack([even, single]), torch.zeros(2), OUTPUTS)
    found = type(space)(basis).diffuseness()
    torch.testing.assert_close(found.largest, torch.tensor([1 / N, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found.participation, torch.tensor([1.0, 1 / N], dtype=torch.float64))


def test_the_bound_has_the_parts_of_the_theorem_and_the_corrected_number_of_steps(model, data):
    dense = jacobian(model, data)
    left, values, _ = torch.linalg.svd(dense, full_matrices=False)
    labels = torch.randn(N, OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    bound = information_bound(information_space(model, data, 6), stacked(labels), gamma=2.0)
    y = labels.T.flatten()
    rest = y - left[:, :6] @ (left[:, :6].T @ y)
    abar = float(values[5]) / sqrt(N * OUTPUTS)
    assert bound.abar == pytest.approx(abar)
    assert bound.value == pytest.approx(exp(-2) + float(rest.norm()) / sqrt(N) + 2 / abar / sqrt(N))
    assert bound.iterations == pytest.approx(2 / abar**2)
    assert bound.width == pytest.approx(16 / abar**8)


def test_the_steps_of_the_bound_are_those_of_the_mixture_theorem():
    """abar^2 = 1 / (K^2 C) gives T = Gamma K^2 C and k = Gamma^4 K^8 C^4, as the slides have for Gaussian mixtures."""
    classes, components, gamma = 3, 2, 2.0
    bound = tl.linearized.InformationBound(gamma, (classes**2 * components) ** -0.5, 18, 0.0, 0.0)
    assert bound.iterations == pytest.approx(gamma * classes**2 * components)
    assert bound.width == pytest.approx(gamma**4 * classes**8 * components**4)


def test_with_a_small_cutoff_and_one_output_the_bound_is_the_kernel_norm_of_the_labels(data):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    labels = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).sign()
    space = information_space(net, data, N)
    truth = sqrt(float(labels @ torch.linalg.solve(tl.NTK(net, data).matrix(), labels)) / N)
    assert float(small_cutoff_bound(space, labels)) == pytest.approx(truth)
    with pytest.raises(InputError, match="outside of the span"):
        small_cutoff_bound(space.leading(5), labels)


def test_a_search_on_disk_goes_on_where_it_was_stopped_and_belongs_to_its_model(
    model, data, tmp_path: Path, monkeypatch
):
    whole = streamed_eigenpairs(model, data, 4, block=5, tolerance=1e-6)
    with pytest.raises(NumericsError, match="raise passes"):
        streamed_eigenpairs(model, data, 4, block=5, tolerance=1e-6, passes=2, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"pass-0.pt", "pass-1.pt"}
    monkeypatch.setattr("tangentlab.linearized.streamed._start", lambda *_: pytest.fail("it started over"))
    found = streamed_eigenpairs(model, data, 4, block=5, tolerance=1e-6, folder=tmp_path)
    torch.testing.assert_close(found.vectors, whole.vectors)
    with pytest.raises(InputError, match="another model"):
        streamed_eigenpairs(model, [*data, data[0]], 4, block=5, folder=tmp_path)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    with pytest.raises(InputError, match="another model"):
        streamed_eigenpairs(model, data, 4, block=5, folder=tmp_path)


def test_a_damaged_pass_is_named(model, data, tmp_path: Path):
    streamed_eigenpairs(model, data, 4, block=5, folder=tmp_path)
    content = bytearray((tmp_path / "pass-1.pt").read_bytes())
    content[200] ^= 255
    (tmp_path / "pass-1.pt").write_bytes(content)
    with pytest.raises(DataFileError, match="pass-1.pt"):
        streamed_eigenpairs(model, data, 4, block=5, folder=tmp_path)


def test_what_does_not_fit_is_refused_before_a_pass(model, data, monkeypatch):
    monkeypatch.setattr("tangentlab.linearized.streamed._one_pass", lambda *_: pytest.fail("it computed"))
    with tl.memory_limit(10_000), pytest.raises(MemoryBudgetError, match="block="):
        streamed_eigenpairs(model, data, 4)


def test_a_kernel_that_does_not_fit_is_streamed(model, data, monkeypatch):
    assert "all pairs" in information_space(model, data, 3).basis.message
    monkeypatch.setattr("tangentlab.linearized.information.memory_budget", lambda: 8 * (N * OUTPUTS) ** 2 - 1)
    assert "Krylov" in information_space(model, data, 3).basis.message


def test_the_model_is_left_as_it_was(model, data):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    information_space(model, data, 3, method="krylov")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "Give r="),
        ({"r": 3, "cutoff": 1.0, "abar": 1.0}, "one of cutoff"),
        ({"r": 3, "method": "svd"}, "method"),
        ({"cutoff": 1.0, "method": "krylov"}, "give r="),
        ({"r": 3, "method": "krylov", "outputs": "trace"}, "all outputs"),
    ],
)
def test_wrong_arguments_are_refused_in_words(model, data, arguments, words: str):
    with pytest.raises(InputError, match=words):
        information_space(model, data, **arguments)

"""Leading eigenpairs of Gram matrices: every route against a complete decomposition in float64."""

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.kernels.eigenpairs import gram_eigenpairs, landmark_eigenpairs
from tangentlab.linearized import eigenpairs


def kernel_like(n: int, generator: torch.Generator) -> torch.Tensor:
    """A Gram matrix with the spectrum of a tangent kernel: one dominant mode, then a slow power law."""
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    values = 0.03 * torch.arange(1, n + 1, dtype=torch.float64) ** -1.3
    values[0] = 1.0
    return n * (basis * values) @ basis.T


def exact(matrix: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(matrix.double())
    return values[-k:].flip(0), vectors[:, -k:].T.flip(0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_block_lanczos_finds_the_pairs_of_a_complete_decomposition(seed, monkeypatch, dtype, tolerance):
    monkeypatch.setattr(eigenpairs, "ALL_PAIRS", 0)
    matrix = kernel_like(900, seed(1)).to(dtype)
    found = gram_eigenpairs(matrix, 100)
    assert found.converged and "Lanczos" in found.message and found.vectors.dtype == dtype
    values, vectors = exact(matrix, 100)
    torch.testing.assert_close(found.values.double(), values, rtol=tolerance, atol=0)
    overlaps = (found.vectors.double() * vectors).sum(1).abs()
    assert overlaps.min() > 1 - tolerance
    identity = torch.eye(100, dtype=torch.float64)
    torch.testing.assert_close(found.vectors.double() @ found.vectors.double().T, identity, rtol=0, atol=1e-5)


def test_all_pairs_and_lanczos_agree_with_signs(seed, monkeypatch):
    matrix = kernel_like(400, seed(2))
    whole = gram_eigenpairs(matrix, 20)
    monkeypatch.setattr(eigenpairs, "ALL_PAIRS", 0)
    some = gram_eigenpairs(matrix, 20)
    assert "all pairs" in whole.message and "Lanczos" in some.message
    torch.testing.assert_close(whole.vectors, some.vectors, rtol=0, atol=1e-6)
    largest = whole.vectors.gather(1, whole.vectors.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


@pytest.mark.parametrize("k", [20, 300])
def test_residual_norms_are_those_of_the_pairs(seed, k):
    matrix = kernel_like(300, seed(3)).float()
    found = gram_eigenpairs(matrix, k)
    true = (found.vectors @ matrix - found.values[:, None] * found.vectors).norm(dim=1)
    torch.testing.assert_close(found.residual_norms, true)
    assert found.residual_norms.max() < 1e-5 * found.values[0]


def test_nystrom_with_all_points_as_landmarks_is_exact(seed):
    matrix = kernel_like(150, seed(4))
    found = landmark_eigenpairs(matrix, matrix, 30)
    whole = gram_eigenpairs(matrix, 30)
    torch.testing.assert_close(found.values, whole.values, rtol=1e-8, atol=0)
    torch.testing.assert_close(found.vectors, whole.vectors, rtol=0, atol=1e-6)


def test_nystrom_gives_the_exact_pairs_of_its_low_rank_matrix_and_never_more_than_the_kernel(seed):
    generator = seed(5)
    matrix = kernel_like(200, generator)
    rows = torch.randperm(200, generator=generator)[:60]
    columns, core = matrix[:, rows], matrix[rows][:, rows]
    found = landmark_eigenpairs(columns, core, 20)
    approximation = columns @ torch.linalg.pinv(core, hermitian=True) @ columns.T
    values, vectors = exact(approximation, 20)
    torch.testing.assert_close(found.values, values, rtol=1e-8, atol=0)
    assert (found.vectors * vectors).sum(1).abs().min() > 1 - 1e-8
    assert (found.values <= exact(matrix, 20)[0] + 1e-9).all()
    assert found.residual_norms.max() < 1e-8 * found.values[0]


def test_more_landmarks_come_closer(seed):
    generator = seed(6)
    matrix = kernel_like(300, generator)
    truth = exact(matrix, 10)[0]
    order = torch.randperm(300, generator=generator)
    errors = []
    for m in (30, 100, 250):
        rows = order[:m]
        errors.append(
            float((landmark_eigenpairs(matrix[:, rows], matrix[rows][:, rows], 10).values - truth).abs().sum())
        )
    assert errors[0] > errors[1] > errors[2]


def test_sizes_that_do_not_fit_are_refused(seed):
    matrix = kernel_like(20, seed(7))
    with pytest.raises(InputError, match="between 1 and 20"):
        gram_eigenpairs(matrix, 21)
    with pytest.raises(InputError, match="square"):
        gram_eigenpairs(matrix[:, :3], 2)
    with pytest.raises(InputError, match="landmarks"):
        landmark_eigenpairs(matrix[:, :5], matrix[:4, :4], 2)
    low = torch.ones(20, 20, dtype=torch.float64)
    with pytest.raises(InputError, match="rank 1"):
        landmark_eigenpairs(low, low, 2)


def test_large_matrices_that_are_not_symmetric_are_refused_and_the_default_dtype_does_not_matter(seed):
    matrix = torch.randn(1100, 1100, generator=seed(2))
    with pytest.raises(InputError, match="not symmetric"):
        gram_eigenpairs(matrix, 5)
    gram = matrix[:, :30] @ matrix[:, :30].T
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = gram_eigenpairs(gram, 5)
    finally:
        torch.set_default_dtype(before)
    assert found.vectors.dtype == torch.float32
    torch.testing.assert_close(found.values, gram_eigenpairs(gram, 5).values)

"""Facts about Kronecker products (appendix A.1, A.4) as the objects compute them."""

import pytest
import torch

import tangentlab as tl
from tangentlab.testing.dense_truth import Dense, assert_close
from tangentlab.testing.small_models import KRONECKER, case_of
from tests.theorems.setting import kronecker_basis, kronecker_eigenvalues

each = pytest.mark.parametrize("name", KRONECKER)


def kfac_and_factors(name: str) -> tuple[tl.PMat, list[tuple[torch.Tensor, torch.Tensor]]]:
    """KFAC and the pairs (left, right) of every layer and group."""
    case = case_of(name)
    F = tl.FIM(case.model, case.batches, tl.PMatKFAC)
    return F, [(one, two) for block in F.blocks.values() for one, two in zip(block.left, block.right)]


@each
def test_t7_powers_multiply_like_the_factors(name):
    """(A x B)(C x D) = AC x BD, so powers of a Kronecker product add their exponents."""
    F, _ = kfac_and_factors(name)
    dense = F.to_dense()
    assert_close((F**3).to_dense(), dense @ dense @ dense)
    assert_close((F**0.5).to_dense() @ (F**1.5).to_dense(), dense @ dense, factor=100)


@each
def test_t7_inverse_is_the_product_of_the_inverses(name):
    F, _ = kfac_and_factors(name)
    inverse, dense = F.inverse().to_dense(), F.to_dense()
    assert type(F.inverse()) is tl.PMatKFAC
    assert_close(dense @ inverse @ dense, dense, factor=100)
    assert_close(inverse, Dense(dense).power(-1), factor=1e4)


@each
def test_t7_transposed_product_is_the_product_itself(name):
    F, factors = kfac_and_factors(name)
    assert_close(F.to_dense(), F.to_dense().t())
    assert all(torch.allclose(m, m.t()) for pair in factors for m in pair)


@each
def test_t7_rank_is_the_product_of_the_ranks(name):
    F, factors = kfac_and_factors(name)
    ranks = [
        torch.linalg.matrix_rank(one, hermitian=True) * torch.linalg.matrix_rank(two, hermitian=True)
        for one, two in factors
    ]
    assert torch.linalg.matrix_rank(F.to_dense(), hermitian=True) == sum(ranks)


@each
def test_t7_singular_values_are_products_of_singular_values(name):
    F, factors = kfac_and_factors(name)
    products = [torch.outer(torch.linalg.svdvals(one), torch.linalg.svdvals(two)).flatten() for one, two in factors]
    assert_close(F.eigvalsh(), torch.cat(products).sort()[0])


@each
def test_t7_trace_norm_and_determinant_follow_from_the_factors(name):
    F, factors = kfac_and_factors(name)
    assert_close(F.trace(), sum(one.trace() * two.trace() for one, two in factors))
    assert_close(F.norm() ** 2, sum(one.norm() ** 2 * two.norm() ** 2 for one, two in factors))
    damped = (
        torch.cat([torch.outer(torch.linalg.eigvalsh(o), torch.linalg.eigvalsh(t)).flatten() for o, t in factors]) + 0.1
    )
    assert_close(F.logdet(0.1), damped.log().sum())


@pytest.mark.parametrize("name", ["mlp", "sequence", "wide", "bias first"])
def test_t7_product_with_a_matrix_is_left_times_it_times_right(name):
    """The master identity in the flat order: (B x A) v = B V A."""
    F, _ = kfac_and_factors(name)
    v = tl.PVector.random_unit(case_of(name).model, generator=torch.Generator().manual_seed(0))
    image = F @ v
    for names, block in F.blocks.items():
        weight, bias = (v[n] for n in names)
        result = block.left[0] @ torch.cat([weight, bias[:, None]], 1) @ block.right[0]
        assert_close(image[names[0]], result[:, :-1])
        assert_close(image[names[1]], result[:, -1])


@each
@pytest.mark.parametrize("damping", [1e-3, 1.0])
def test_a4_factored_damping_is_an_elementwise_damping_of_the_kronecker_eigenvalues(name, damping):
    """(A + sqrt eps) x (B + sqrt eps) = A x B + Q diag(eps') Q^T with eps' = eps + sqrt eps (S_A x 1 + 1 x S_B)."""
    F, _ = kfac_and_factors(name)
    case = case_of(name)
    Q, values, sums = kronecker_basis(case), *kronecker_eigenvalues(case)
    damped = values + damping + damping**0.5 * sums
    v = tl.PVector.random_unit(case.model, generator=torch.Generator().manual_seed(0))
    assert_close(F.solve(v, damping, factored=True, pi=1.0).flat, Q @ ((Q.t() @ v.flat) / damped))
    assert_close(F.solve(v, damping).flat, Q @ ((Q.t() @ v.flat) / (values + damping)))

"""FMatDense: the algebra of kernels on function space, against flat matrices."""

import pickle

import numpy as np
import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError, NumericsError
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close


@pytest.fixture
def features(seed) -> torch.Tensor:
    """Features (outputs, examples, dim) of rank 5 < 3 * 4."""
    return torch.randn(3, 4, 5, dtype=torch.float64)


@pytest.fixture
def K(features) -> tl.FMatDense:
    """Their Gram matrix."""
    return tl.FMatDense(torch.einsum("cnd,emd->cnem", features, features))


@pytest.fixture
def D(features) -> Dense:
    """The same, flat, output-major."""
    flat = features.reshape(12, 5)
    return Dense(flat @ flat.t())


@pytest.fixture
def v(seed) -> tl.FVector:
    """A batch of two vectors."""
    return tl.FVector(torch.randn(2, 3, 4, dtype=torch.float64))


def test_matrix_is_flattened_output_major(K, D):
    assert_close(K.matrix(), D.matrix)
    assert K.matrix()[1 * 4 + 2, 2 * 4 + 3] == K.data[1, 2, 2, 3]
    assert_close(tl.FMatDense.from_matrix(K.matrix(), outputs=3).data, K.data)


def test_products_and_quadratic_forms(K, D, v):
    assert_close((K @ v).flat, v.flat @ D.matrix)
    assert_close(K.mv(tl.FVector(v.data[0])).flat, D.matrix @ v.flat[0])
    assert_close(K.vTMv(v), ((v.flat @ D.matrix) * v.flat).sum(-1))


def test_damped_solves_by_position_and_by_either_name(K, D, v):
    for solution in (K.solve(v, DAMPING), K.solve(v, damping=DAMPING), K.solve(v, regul=DAMPING)):
        assert_close(solution.flat, v.flat @ D.damped_inverse())


def test_solve_without_damping_is_the_pseudo_inverse(K, D, v):
    assert_close(K.solve(v).flat, v.flat @ D.power(-1), factor=100)


def test_conjugate_gradients_solve_with_a_report(K, D, v):
    solution, report = K.solve_cg(v, DAMPING)
    assert_close(solution.flat, v.flat @ D.damped_inverse(), factor=1e3)
    assert report.converged


def test_trace_diagonal_norm_and_spectrum(K, D):
    assert_close(K.trace(), D.matrix.trace())
    assert_close(K.diag().flat, D.matrix.diagonal())
    assert_close(K.norm(), D.matrix.norm())
    assert_close(K.eigvalsh(), D.values)
    values, eigenvectors = K.eigh()
    for value, vector in zip(values, eigenvectors):
        assert_close((K @ vector).flat + 1, value * vector.flat + 1)
        assert vector.norm() == pytest.approx(1)


def test_log_determinant_is_minus_infinity_for_a_singular_kernel(K, D):
    assert_close(K.logdet(DAMPING), (D.values + DAMPING).log().sum())
    assert_close(K.logdet(regul=1.0), (D.values + 1).log().sum())
    assert K.logdet() == -torch.inf
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        (-K).logdet(DAMPING)


def test_sums_and_scalar_multiples(K):
    other = tl.FMatDense(torch.randn_like(K.data))
    for result, expected in (
        (K + other, K.data + other.data),
        (K - other, K.data - other.data),
        (2 * K, 2 * K.data),
        (K * 2, 2 * K.data),
        (K / 4, K.data / 4),
        (-K, -K.data),
        (torch.tensor(3.0) * K, 3 * K.data),
        (np.float32(2) * K, 2 * K.data),
    ):
        assert isinstance(result, tl.FMatDense) and torch.equal(result.data, expected)


def test_trace_over_outputs_sums_the_diagonal_blocks(K, features):
    assert_close(K.trace_over_outputs(), sum(f @ f.t() for f in features))


def test_per_output_centring_subtracts_each_outputs_mean_feature(K, features):
    centred = features - features.mean(1, keepdim=True)
    assert_close(K.center().data, torch.einsum("cnd,emd->cnem", centred, centred))
    assert_close(K.center("per_output").data, K.center().data)


def test_global_centring_subtracts_one_mean_feature(K, features):
    centred = features - features.mean((0, 1))
    assert_close(K.center("global").data, torch.einsum("cnd,emd->cnem", centred, centred))


def test_per_output_centring_implies_global_centring(K):
    assert_close(K.center("per_output").center("global").data, K.center("per_output").data)


def test_cross_kernels_are_centred_by_the_means_of_their_own_sides(features):
    left, right = features, features[:, :3] ** 2
    K = tl.FMatDense(torch.einsum("cnd,emd->cnem", left, right))
    for how, axes in (("per_output", (1,)), ("global", (0, 1))):
        one, two = (side - side.mean(axes, keepdim=True) for side in (left, right))
        assert_close(K.center(how).data, torch.einsum("cnd,emd->cnem", one, two))


def test_a_cross_kernel_has_products_and_a_norm_but_no_spectrum(features):
    K = tl.FMatDense(torch.einsum("cnd,emd->cnem", features, features[:, :2]))
    u = tl.FVector(torch.randn(3, 2, dtype=torch.float64))
    assert K.is_cross
    assert_close((K @ u).flat, K.matrix() @ u.flat)
    assert_close(K.norm(), K.matrix().norm())
    for operation in (K.trace, K.diag, K.eigvalsh, K.logdet, lambda: K.solve(u, 1.0)):
        with pytest.raises(InputError):
            operation()


def test_a_square_but_asymmetric_kernel_has_no_spectrum(K):
    with pytest.raises(InputError, match="symmetric"):
        tl.FMatDense(torch.randn_like(K.data)).eigvalsh()


def test_label_kernel_has_the_labels_as_features():
    y = torch.tensor([0, 2, 1, 2])
    onehot = torch.eye(3)[y]
    K = tl.label_kernel(y, 3)
    assert torch.equal(K.data, torch.einsum("nc,me->cnem", onehot, onehot))
    assert torch.equal(K.trace_over_outputs(), (y[:, None] == y[None, :]).float())
    assert tl.label_kernel(y, 3, dtype=torch.float64).data.dtype == torch.float64
    real = torch.tensor([[0.5, -1.0], [2.0, 3.0], [0.0, 1.0]])
    assert torch.equal(tl.label_kernel(real, 2).trace_over_outputs(), real @ real.t())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), r"0..2, found 0..3"),
        (torch.tensor([-1, 1]), "found -1..1"),
        (torch.tensor([0.5, 1.5]), "Real targets"),
        (torch.ones(4, 2), "3 classes"),
    ],
)
def test_labels_that_fit_no_class_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        tl.label_kernel(labels, 3)


def test_shapes_that_do_not_fit_are_refused(K):
    with pytest.raises(InputError, match="outputs, examples"):
        tl.FMatDense(torch.ones(3, 3))
    with pytest.raises(InputError, match="5 outputs"):
        tl.FMatDense.from_matrix(torch.ones(12, 12), outputs=5)
    for operation in (K.mv, K.vTMv, lambda u: K.solve(u, 1.0)):
        with pytest.raises(InputError):
            operation(tl.FVector.ones(4, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="FVectors"):
        K @ tl.PVector.ones(torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="different shapes"):
        K + tl.FMatDense(torch.ones(1, 1, 1, 1))
    with pytest.raises(InputError, match="one number"):
        K * torch.ones(4)
    with pytest.raises(InputError, match="center"):
        K.center("columns")
    for wrong in (lambda: K + 1, lambda: K * "2", lambda: K / "2"):
        with pytest.raises(TypeError):
            wrong()


def test_conversion_pickling_memory_and_repr(K):
    K.eigvalsh()
    back = pickle.loads(pickle.dumps(K))
    assert torch.equal(back.data, K.data) and torch.equal(back.eigvalsh(), K.eigvalsh())
    assert K.to(torch.float32).data.dtype == torch.float32
    assert K.numel() == 144 and K.nbytes() == 8 * 144 and (K.outputs, K.examples) == (3, 4)
    assert repr(K) == "FMatDense(outputs = 3, examples = 4 x 4, torch.float64)"


def test_numbers_are_a_tensor_and_the_object_of_to_dense_is_deprecated(K):
    assert K.tensor() is K.data
    with pytest.warns(DeprecationWarning, match="tensor"):
        assert K.to_dense() is K


def test_functions_of_the_spectrum_are_those_of_the_matrix(K):
    matrix = K.matrix()
    values, vectors = torch.linalg.eigh(matrix)
    cut = float((values[-3] * values[-4]).sqrt())
    u = tl.FVector.random_unit(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = vectors[:, -3:]
    for inverse in (K.pinv(cut), K.pinv(rtol=cut / float(values[-1]))):
        assert torch.allclose(inverse.matrix(), (kept / values[-3:]) @ kept.t()) and isinstance(inverse, tl.FMatDense)
    assert torch.allclose(K.solve(u, atol=cut).flat, (kept / values[-3:]) @ kept.t() @ u.flat)
    assert torch.allclose(K.solve(u, 0.5, atol=cut).flat, (kept / (values[-3:] + 0.5)) @ kept.t() @ u.flat)
    assert torch.allclose(K.pow(2).matrix(), matrix @ matrix) and torch.allclose((K**0.5).pow(2).matrix(), matrix)
    assert torch.allclose(K.norm(2), values.abs().max()) and torch.allclose(K.norm(-2), values.abs().min())
    with pytest.raises(InputError, match="'fro', 2"):
        K.norm(1)
    with pytest.raises(InputError, match="atol"):
        K.pinv(-1.0)


def test_norms_of_a_cross_kernel_are_those_of_its_singular_values():
    K = tl.FMatDense(torch.randn(2, 3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    singular = torch.linalg.svdvals(K.matrix())
    assert torch.allclose(K.norm(2), singular.max()) and torch.allclose(K.norm(-2), singular.min())
    assert torch.allclose(K.norm(), K.data.square().sum().sqrt())
    with pytest.raises(InputError, match="square"):
        K.pinv(0.1)

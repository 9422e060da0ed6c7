import threading
from pathlib import Path

import pytest
import torch

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import psd_thin_eigh, safe_eigh, safe_eigh_many
from tangentlab.linalg import symmetric as eigh_module
from tangentlab.parallel.threads import others_running, processors_are_free, side_by_side
from tests.linalg.spectra import DTYPES, SPECTRA, seeded, symmetric


def tolerance(dtype: torch.dtype, dim: int) -> float:
    return 30 * dim**0.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_decomposition_rebuilds_the_matrix_with_orthonormal_vectors_and_ascending_values(name, dtype):
    truth = SPECTRA[name](60)
    matrix = symmetric(truth, dtype)
    values, vectors = safe_eigh(matrix)
    assert values.dtype == vectors.dtype == dtype
    assert torch.equal(values, values.sort().values)
    scale = max(float(truth.max()), 1e-300)
    torch.testing.assert_close(values.double(), truth.sort().values, rtol=0, atol=tolerance(dtype, 60) * scale)
    identity = torch.eye(60, dtype=dtype)
    torch.testing.assert_close(vectors.T @ vectors, identity, rtol=0, atol=tolerance(dtype, 60))
    torch.testing.assert_close((vectors * values) @ vectors.T, matrix, rtol=0, atol=tolerance(dtype, 60) * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_by_one_and_empty_matrices_are_their_own_decomposition(dtype):
    values, vectors = safe_eigh(torch.tensor([[-3.0]], dtype=dtype))
    assert values.item() == -3.0 and abs(vectors.item()) == 1.0
    values, vectors = safe_eigh(torch.zeros(0, 0, dtype=dtype))
    assert values.shape == (0,) and vectors.shape == (0, 0)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e37])
def test_extreme_scales_of_float32_lose_no_accuracy(scale):
    truth = torch.linspace(1, 2, 20, dtype=torch.float64)
    values, _ = safe_eigh(symmetric(truth * scale, torch.float32))
    # 1e-40 is a denormal float32, which holds only about four digits.
    torch.testing.assert_close(values.double() / scale, truth, rtol=0, atol=1e-5 if scale > 1e-38 else 1e-3)


def test_bfloat16_input_is_decomposed_in_float32_and_returned_in_bfloat16():
    matrix = torch.diag(torch.tensor([1.0, 4.0, 2.0])).bfloat16()
    values, vectors = safe_eigh(matrix)
    assert values.dtype == vectors.dtype == torch.bfloat16
    assert values.tolist() == [1.0, 2.0, 4.0]


def test_precision_float64_resolves_small_eigenvalues_of_a_float32_matrix():
    # Determinant 2^-21 - 2^-22 = 2^-22 and trace about 1, all entries exact in float32.
    matrix = torch.tensor([[1.0, 2.0**-11], [2.0**-11, 2.0**-21]])
    values, _ = safe_eigh(matrix, precision=torch.float64)
    assert values.dtype == torch.float32
    assert values[0].item() == pytest.approx(torch.linalg.eigvalsh(matrix.double())[0].item(), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_entries_are_refused_at_once_and_named(bad):
    matrix = torch.eye(3)
    matrix[1, 2] = matrix[2, 1] = bad
    with pytest.raises(NumericsError, match="conv2.A: non-finite"):
        safe_eigh_many([torch.eye(2), matrix], names=["conv1.A", "conv2.A"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_almost_symmetric_has_the_spectrum_of_its_symmetric_part(dtype):
    truth, skew = torch.linspace(1, 2, 30, dtype=torch.float64), torch.randn(30, 30, generator=seeded(9))
    matrix = symmetric(truth) + 1e-5 * (skew - skew.T).double()
    values, _ = safe_eigh(matrix.to(dtype))
    torch.testing.assert_close(values.double(), truth, rtol=0, atol=tolerance(dtype, 30))


@pytest.mark.parametrize(
    "matrix",
    [torch.zeros(2, 3), torch.zeros(4), torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.eye(2, dtype=torch.long)],
)
def test_what_is_not_a_symmetric_real_matrix_is_refused(matrix):
    with pytest.raises(InputError):
        safe_eigh(matrix)


class FlakyEigh:
    """torch.linalg.eigh that fails, or answers rubbish, in the first calls."""

    def __init__(self, failures: int, rubbish: bool) -> None:
        self.failures, self.rubbish, self.true, self.dtypes = failures, rubbish, torch.linalg.eigh, []

    def __call__(self, matrix):
        self.dtypes.append(matrix.dtype)
        if len(self.dtypes) > self.failures:
            return self.true(matrix)
        if self.rubbish:
            values, vectors = self.true(matrix)
            return values, vectors * (1 + 1e-3)
        raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")


@pytest.mark.parametrize("rubbish", [False, True])
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_failed_or_inaccurate_attempts_are_repaired_by_float64_then_jitter_then_another_driver(
    monkeypatch, failures, rubbish
):
    flaky = FlakyEigh(failures, rubbish)
    monkeypatch.setattr(torch.linalg, "eigh", flaky)
    truth = torch.linspace(0, 3, 12, dtype=torch.float64)
    values, vectors = safe_eigh(symmetric(truth, torch.float32))
    expected = [torch.float32, torch.float64, torch.float64][: min(failures + 1, 3)]
    assert flaky.dtypes == expected
    torch.testing.assert_close(values.double(), truth, rtol=0, atol=1e-6)
    torch.testing.assert_close((vectors * values) @ vectors.T, symmetric(truth, torch.float32), rtol=0, atol=3e-6)


def test_when_every_algorithm_fails_the_error_gives_advice(monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", FlakyEigh(10, rubbish=False))

    def fail(*_: object) -> None:
        raise torch.linalg.LinAlgError("no")

    monkeypatch.setattr(eigh_module, "_other_driver", fail)
    with pytest.raises(NumericsError, match="damping"):
        safe_eigh(torch.diag(torch.arange(1.0, 4.0)))


def test_many_agree_with_one_by_one_and_keep_their_order():
    matrices = [symmetric(SPECTRA["power_law"](dim), torch.float32, seed=dim) for dim in (3, 90, 1, 40, 130, 70)]
    for matrix, (values, vectors) in zip(matrices, safe_eigh_many(matrices), strict=True):
        torch.testing.assert_close((vectors * values) @ vectors.T, matrix, rtol=0, atol=1e-5)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def thread_count_of_a_new_thread() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize("free", [True, False])
def test_thread_counts_of_this_and_of_later_threads_are_restored(two_threads, monkeypatch, free):
    monkeypatch.setattr("tangentlab.parallel.threads.processors_are_free", lambda threads: free)
    for matrices in ([torch.eye(200)], [torch.eye(80)] * 5, [torch.eye(2)]):
        safe_eigh_many(matrices)
        assert torch.get_num_threads() == 2
        assert thread_count_of_a_new_thread() == 2
    with pytest.raises(NumericsError):
        safe_eigh_many([torch.eye(90), torch.full((90, 90), torch.nan), torch.eye(90)])
    assert torch.get_num_threads() == 2
    assert thread_count_of_a_new_thread() == 2


@pytest.mark.parametrize("free", [True, False])
def test_only_a_dominating_item_gets_all_threads_and_only_on_free_processors(two_threads, monkeypatch, free):
    monkeypatch.setattr("tangentlab.parallel.threads.processors_are_free", lambda threads: free)

    def threads_given(costs):
        return side_by_side(lambda _: torch.get_num_threads(), range(len(costs)), costs)

    assert threads_given([1e9]) == [2 if free else 1]
    assert threads_given([1e6, 1e9, 1e6]) == [1, 2 if free else 1, 1]
    assert threads_given([1e9] * 4) == [1, 1, 1, 1]
    assert threads_given([1e3, 1e3]) == [1, 1]


def test_with_one_thread_the_work_stays_in_the_calling_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = threading.get_ident()
        assert side_by_side(lambda _: threading.get_ident(), range(3), [1e9] * 3) == [here] * 3
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_processors_are_never_free():
    assert not processors_are_free(10_000)


@pytest.mark.parametrize(("runnable", "others"), [(1, 0), (0, 0), (7, 6)])
def test_threads_of_other_processes_are_those_that_run_and_are_not_ours(runnable, others, monkeypatch):
    load = f"0.50 0.40 0.30 {runnable}/321 99\n"
    monkeypatch.setattr(
        Path, "read_text", lambda path: load if path.name == "loadavg" else f"1 (a) b) {path.parent.name} 0"
    )
    monkeypatch.setattr(Path, "iterdir", lambda path: [path / state for state in ("S", "R", "S")])
    assert others_running() == others


@pytest.mark.parametrize("text", ["", "0.5 0.4 0.3 many/321"])
def test_where_the_system_does_not_tell_no_other_thread_is_counted(text, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert others_running() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim"), [(5, 40), (40, 5), (12, 12), (1, 7), (7, 1), (1, 1)])
def test_thin_eigenpairs_rebuild_the_second_moment_from_either_gram(rows, dim, dtype):
    data = torch.randn(rows, dim, dtype=torch.float64, generator=seeded(1)).to(dtype)
    values, vectors = psd_thin_eigh(data)
    rank = min(rows, dim)
    assert values.shape == (rank,) and vectors.shape == (dim, rank) and values.dtype == dtype
    assert torch.equal(values, values.sort().values)
    moment = data.T @ data
    atol = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        (vectors * values) @ vectors.T, moment, rtol=0, atol=atol * float(moment.abs().max() + 1)
    )
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(rank, dtype=dtype), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30, 100), (100, 30)])
def test_thin_basis_has_the_numerical_rank_of_the_rows(shape, dtype):
    left = torch.randn(shape[0], 4, dtype=dtype, generator=seeded(2))
    right = torch.randn(4, shape[1], dtype=dtype, generator=seeded(3))
    values, vectors = psd_thin_eigh(left @ right)
    assert values.shape == (4,) and vectors.shape == (shape[1], 4)


def test_thin_basis_is_orthonormal_even_for_directions_near_the_rank_cut():
    scales = torch.logspace(0, -7.3, 12, dtype=torch.float64)
    rows = scales[:, None] * torch.randn(12, 200, dtype=torch.float64, generator=seeded(4))
    values, vectors = psd_thin_eigh(rows)
    assert float(values[0] / values[-1]) < 1e-13
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(len(values), dtype=torch.float64), rtol=0, atol=1e-12)


def test_zero_rows_have_an_empty_basis_and_no_rows_too():
    values, vectors = psd_thin_eigh(torch.zeros(3, 5))
    assert values.shape == (0,) and vectors.shape == (5, 0)
    values, vectors = psd_thin_eigh(torch.zeros(0, 5))
    assert values.shape == (0,) and vectors.shape == (5, 0)

"""The part of the contract about functions of the spectrum: cut-offs, pseudo-inverses, spectral norms, all eigenvectors."""

import pytest
import torch
from torch import Tensor

from tangentlab.engine.memory import set_memory_budget
from tangentlab.errors import InputError, MemoryBudgetError
from tangentlab.objects.maps import PushForwardDense
from tangentlab.objects.pmat import PMat
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close, dimension, vectors
from tangentlab.testing.pmat_subject import Subject, stored_only
from tangentlab.testing.small_models import Case


def cuts(D: Dense) -> list[float]:
    """Numbers well apart from all eigenvalues: below all that count, in the middle of gaps, above all."""
    sizes = D.values.abs().sort().values
    sizes = sizes[sizes > 1e-3 * sizes.max()]
    gaps = [float((a * b).sqrt()) for a, b in zip(sizes, sizes[1:], strict=False) if b > 1.2 * a]
    return [float(sizes[0]) / 1.1, *gaps[:1], *gaps[-1:], 2 * float(sizes[-1])]


def above(D: Dense, cut: float, damping: float = 0.0) -> Tensor:
    """sum of q q^T / (s + damping) over the modes with |s| > cut."""
    kept = D.values.abs() > cut
    basis = D.basis[:, kept]
    return (basis / (D.values[kept] + damping)) @ basis.t()


class SpectralContract(Subject):
    """pinv, solve with a cut-off, norms 2 and -2, eigh."""

    @stored_only
    def test_modes_below_a_cut_off_are_left_out_of_the_pseudo_inverse(self, F: PMat, D: Dense, case: Case) -> None:
        for cut in cuts(D):
            for inverse in (F.pinv(cut), F.pinv(atol=cut), F.pinv(rtol=cut / float(D.values.abs().max()))):
                assert_close(inverse.tensor(), above(D, cut), case.dtype, factor=100)
                assert isinstance(inverse, PMat) and inverse.layout == F.layout
        if case.dtype == torch.float64:
            for inverse in (F.pinv(), F.pinv(0.0)):
                assert_close(inverse.tensor(), D.power(-1), case.dtype, factor=1e4)

    @stored_only
    def test_modes_below_a_cut_off_are_left_out_of_solves(self, F: PMat, D: Dense, case: Case) -> None:
        v, largest = vectors(case, 2, 2), float(D.values.abs().max())
        for cut in cuts(D):
            for damping in (None, DAMPING):
                expected = v.flat.double() @ above(D, cut, damping or 0.0)
                assert_close(F.solve(v, damping, atol=cut).flat, expected, case.dtype, factor=100)
                assert_close(F.solve(v.flat, damping, rtol=cut / largest), expected, case.dtype, factor=100)
                J = F.solve(PushForwardDense(F.layout, v.flat), damping, atol=cut / 2, rtol=cut / largest)
                assert_close(J.data, expected, case.dtype, factor=100)
        assert_close(F.solve(v, DAMPING, atol=0.0).flat, F.solve(v, DAMPING).flat, case.dtype, self.slack())

    @stored_only
    def test_a_cut_off_that_is_not_a_number_from_zero_up_is_refused(self, F: PMat, case: Case) -> None:
        for bad in (-1.0, float("nan")):
            for name in ("atol", "rtol"):
                with pytest.raises(InputError, match=name):
                    F.pinv(**{name: bad})
                with pytest.raises(InputError, match=name):
                    F.solve(vectors(case), **{name: bad})

    @stored_only
    def test_norms_are_those_of_the_eigenvalues(self, F: PMat, D: Dense, case: Case) -> None:
        sizes = D.values.abs()
        assert_close(F.norm(ord=2), sizes.max(), case.dtype)
        assert_close(F.norm("fro"), sizes.square().sum().sqrt(), case.dtype)
        assert_close(F.norm(-2) + sizes.max(), sizes.min() + sizes.max(), case.dtype)
        with pytest.raises(InputError, match="'fro', 2"):
            F.norm("nuc")

    @stored_only
    def test_all_eigenvectors_are_orthonormal_and_make_the_matrix(self, F: PMat, D: Dense, case: Case) -> None:
        values, basis = F.eigh()
        flat = basis.flat.double()
        assert_close(values, D.values, case.dtype)
        assert basis.layout == F.layout and basis.dtype == case.dtype and torch.equal(values, values.sort().values)
        assert_close(flat @ flat.t(), torch.eye(dimension(case), dtype=torch.float64), case.dtype, factor=10)
        assert_close((flat.t() * values.double()) @ flat, D.matrix, case.dtype)
        assert_close((F @ basis).flat, values.double()[:, None] * flat, case.dtype)

    @stored_only
    def test_eigenvectors_beyond_the_memory_budget_are_refused(self, F: PMat, case: Case) -> None:
        set_memory_budget(100)
        try:
            with pytest.raises(MemoryBudgetError, match="PMatKFAC"):
                F.eigh()
        finally:
            set_memory_budget(None)

"""The part of the contract about other matrices made from one, and about storage."""

import pickle
from operator import add, mul, sub, truediv
from pathlib import Path

import pytest
import torch

from tangentlab.engine.memory import set_memory_budget
from tangentlab.errors import InputError, MemoryBudgetError, StructureError
from tangentlab.objects.pmat import PMat, PMatBlockDiag, PMatDense, PMatDiag
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close, dimension, vectors
from tangentlab.testing.pmat_spectral import SpectralContract
from tangentlab.testing.pmat_subject import stored_only
from tangentlab.testing.small_models import Case


class AlgebraContract(SpectralContract):
    """Inverses, powers, multiples, sums, conversion, pickling, memory."""

    # ------------------------------------------------------------- other matrices

    @stored_only
    def test_damped_inverse_as_a_matrix(self, F: PMat, D: Dense, case: Case) -> None:
        for inverse in (F.inverse(DAMPING), F.inverse(regul=DAMPING)):
            assert_close(inverse.tensor(), D.damped_inverse(), case.dtype)
            assert isinstance(inverse, self.inverses)

    @stored_only
    def test_powers_keep_null_modes_null(self, F: PMat, D: Dense, case: Case) -> None:
        for exponent, factor in ((2, 1), (1, 1), (0.5, 100), (0, 1e4), (-0.5, 1e4), (-1, 1e4)):
            power: PMat = F.pow(exponent)
            assert isinstance(power, self.powers)
            if exponent > 0 or case.dtype == torch.float64:
                assert_close(power.tensor(), D.power(exponent), case.dtype, factor)
        if case.dtype == torch.float64:
            assert_close(F.inverse().tensor(), D.power(-1), case.dtype, factor=1e4)
            assert_close((F**-1).tensor(), D.power(-1), case.dtype, factor=1e4)

    @stored_only
    def test_scalar_multiples_from_both_sides_keep_the_class(self, F: PMat, D: Dense, case: Case) -> None:
        two = torch.tensor(2.0, dtype=case.dtype)
        for multiple, factor in ((2 * F, 2), (F * 2.0, 2), (F / 4, 0.25), (-F, -1), (two * F, 2), (F * two, 2)):
            assert_close(multiple.tensor(), factor * D.matrix, case.dtype)
            assert type(multiple) is type(F) and multiple.layout == F.layout
        three, v = 3 * F, vectors(case)
        assert_close(three.trace(), 3 * D.matrix.trace(), case.dtype)
        assert_close(three.diag().flat, 3 * D.matrix.diagonal(), case.dtype)
        assert_close(three.vTMv(v), 3 * v.flat.double() @ D.matrix @ v.flat.double(), case.dtype)
        expected = Dense(3 * D.matrix).damped_inverse() @ v.flat.double()
        assert_close(three.solve(v, DAMPING).flat, expected, case.dtype, self.slack())
        assert_close(F.tensor(), D.matrix, case.dtype)

    @stored_only
    def test_only_numbers_scale_a_matrix_and_only_matrices_add_to_it(self, F: PMat, case: Case) -> None:
        for factor in (torch.ones(dimension(case)), torch.ones(2)):
            with pytest.raises(InputError, match="number"):
                F * factor
        for operation, wrong in ((mul, "two"), (add, 1), (sub, vectors(case)), (truediv, "two")):
            with pytest.raises(TypeError):
                operation(F, wrong)

    @stored_only
    def test_sums_and_differences_in_the_tightest_class(self, F: PMat, D: Dense, case: Case) -> None:
        total = F + F
        assert_close(total.tensor(), 2 * D.matrix, case.dtype)
        assert isinstance(total, self.sums)
        assert_close((F - F / 2).tensor(), D.matrix / 2, case.dtype)
        assert float((F - F).tensor().abs().max()) <= 10 * torch.finfo(case.dtype).eps * float(D.matrix.abs().max())

    @stored_only
    def test_sums_with_every_other_kind(self, F: PMat, D: Dense, case: Case) -> None:
        noise = vectors(case, dimension(case)).flat
        for kind in (PMatDense, PMatDiag, PMatBlockDiag):
            matrix = kind.from_dense(F.layout, noise @ noise.t())
            expected = D.matrix + matrix.tensor().double()
            for total in (F + matrix, matrix + F):
                assert_close(total.tensor(), expected, case.dtype)
                assert_close(total.trace(), expected.trace(), case.dtype)
                assert_close(total.diag().flat, expected.diagonal(), case.dtype)
                assert_close((total @ vectors(case)).flat, expected @ vectors(case).flat.double(), case.dtype)

    # ------------------------------------------------------------- housekeeping

    @stored_only
    def test_another_dtype_keeps_class_and_values(self, F: PMat, D: Dense, case: Case) -> None:
        other = torch.float32 if case.dtype == torch.float64 else torch.float64
        if not self.pickles:
            with pytest.raises(StructureError):
                F.to(other)
            return
        moved = F.to(other)
        assert type(moved) is type(F) and moved.tensor().dtype == other and moved.examples == F.examples
        assert_close(moved.tensor(), D.matrix, torch.float32)

    @stored_only
    def test_pickling_keeps_everything(self, F: PMat, D: Dense, case: Case) -> None:
        if not self.pickles:
            with pytest.raises(StructureError):
                pickle.dumps(F)
            return
        F.eigvalsh()
        back = pickle.loads(pickle.dumps(F))
        assert type(back) is type(F) and back.layout == F.layout and repr(back) == repr(F)
        assert torch.equal(back.tensor(), F.tensor()) and torch.equal(back.diag().flat, F.diag().flat)
        assert_close(back.solve(vectors(case), DAMPING).flat, F.solve(vectors(case), DAMPING).flat, case.dtype)

    @stored_only
    def test_a_file_keeps_everything(self, F: PMat, case: Case, tmp_path: Path) -> None:
        path = tmp_path / "matrix.safetensors"
        if not self.pickles:
            with pytest.raises(StructureError, match="saved"):
                F.save(path)
            assert not list(tmp_path.iterdir())
            return
        F.eigvalsh()
        F.save(path)
        back = PMat.load(path)
        assert type(back) is type(F) and back.layout == F.layout and repr(back) == repr(F)
        assert all(torch.equal(a, b) for a, b in zip(F.tensors(), back.tensors(), strict=True))
        assert torch.equal(back.tensor(), F.tensor()) and back.likelihood == F.likelihood
        assert_close(back.solve(vectors(case), DAMPING).flat, F.solve(vectors(case), DAMPING).flat, case.dtype)

    @stored_only
    def test_repr_tells_class_size_examples_and_likelihood(self, F: PMat, case: Case) -> None:
        text = repr(F)
        assert text.startswith(type(F).__name__) and f"d = {dimension(case)}" in text
        assert f"{F.examples} examples" in text and F.likelihood in text

    @stored_only
    def test_memory_is_what_is_stored(self, F: PMat, case: Case) -> None:
        assert F.numel() == self.stored(case) and F.nbytes() == case.dtype.itemsize * F.numel()

    @stored_only
    def test_a_dense_form_beyond_the_memory_budget_is_refused(self, F: PMat, case: Case) -> None:
        set_memory_budget(100)
        try:
            with pytest.raises(MemoryBudgetError, match="PMatKFAC"):
                F.tensor()
        finally:
            set_memory_budget(None)

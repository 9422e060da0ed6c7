"""PMatMixed estimated anew: EKFAC blocks keep their bases, everything else is that of the model and the data as they are."""

import pickle

import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.objects.pmat.kronecker import EigenBlock
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import ALL, Case

KINDS = {
    "EKFAC and dense": tl.PMatMixed.default(kronecker=tl.PMatEKFAC),
    "EKFAC and diagonal": tl.PMatMixed.default(kronecker=tl.PMatEKFAC, block_limit=0),
    "by name": tl.PMatMixed.of({"0": tl.PMatEKFAC, "first": tl.PMatQuasiDiag, "*": tl.PMatBlockDiag}),
    "KFAC": tl.PMatMixed.default(),
}


def moved(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ALL)
def test_everything_but_the_bases_is_estimated_anew(name, kind, seed):
    case = Case(name, split="uneven batches")
    F = tl.FIM(case.model, case.batches, kind)
    eigen = {n: b for n, b in F.blocks.items() if isinstance(b, EigenBlock)}
    before = {names: [side.vectors.clone() for side in block.bases] for names, block in eigen.items() if _dense(block)}
    F.update_diag()
    again = tl.FIM(case.model, case.batches, kind)
    assert_close(F.tensor(), again.tensor())
    moved(case.model)
    F.update_diag(case.batches)
    fresh, exact = tl.FIM(case.model, case.batches, kind), truth.fisher(case.model, case.inputs)
    for names, block in fresh.blocks.items():
        index = torch.cat([torch.arange(F.layout.slices[n].start, F.layout.slices[n].stop) for n in names])
        if names not in eigen:
            assert_close(F.blocks[names].dense(), block.dense())
            continue
        whole = F.blocks[names].spectrum.back(torch.eye(len(index), dtype=exact.dtype))
        assert_close(whole @ whole.t(), torch.eye(len(index), dtype=exact.dtype))
        assert_close(F.blocks[names].scale.flatten(), ((whole @ exact[index][:, index]) * whole).sum(1))
    for names, sides in before.items():
        for old, now in zip(sides, F.blocks[names].bases):
            assert torch.equal(now.vectors[..., : old.shape[-1]], old)
    if all(isinstance(block, EigenBlock) for block in F.blocks.values()):
        assert_close(F.trace(), exact.trace())


def _dense(block: EigenBlock) -> bool:
    return all(hasattr(side, "vectors") for side in block.bases)


def test_other_data_are_counted_and_refreshed_bases_are_those_of_a_new_matrix(seed):
    case, kind = Case("norms"), KINDS["EKFAC and dense"]
    F = tl.FIM(case.model, case.batches, kind)
    more = torch.randn(12, 3, dtype=torch.float64)
    F.update_diag([(more[:5],), (more[5:],)])
    assert F.examples == 12
    assert_close(F.trace(), truth.fisher(case.model, more).trace())
    moved(case.model)
    F.refresh_basis(more)
    assert_close(F.tensor(), tl.FIM(case.model, more, kind).tensor())


def test_a_matrix_without_its_model_says_so(tmp_path):
    case = Case("norms")
    F = tl.FIM(case.model, case.batches, KINDS["EKFAC and dense"])
    F.save(tmp_path / "F")
    for lost in (pickle.loads(pickle.dumps(F)), tl.PMatMixed.load(tmp_path / "F"), F.inverse(0.1)):
        assert torch.isfinite(lost.trace())
        with pytest.raises(InputError, match="does not know its model"):
            lost.update_diag()

"""Files of objects: everything comes back, damage and strangers are refused in words, no code is run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import tangentlab as tl
from tangentlab.errors import DataFileError, DiskError, InputError, StructureError
from tangentlab.objects.pmat.diag import DiagBlock
from tangentlab.objects.storage import FORMAT, _classes
from tangentlab.testing.small_models import case_of

CASE = case_of("mlp", split="uneven batches")


def fisher(kind=tl.PMatKFAC) -> tl.PMat:
    return tl.FIM(CASE.model, CASE.batches, kind)


def vectors() -> tl.PVector:
    return tl.PVector.random_unit(CASE.model, batch=2, generator=torch.Generator().manual_seed(0))


OBJECTS = {
    "PVector": vectors,
    "PVector of parts": lambda: tl.PVector(vectors().layout, vectors().to_dict()),
    "PVector in half precision": lambda: vectors().to(torch.bfloat16),
    "FVector": lambda: tl.FVector.from_outputs(CASE.model(CASE.inputs)),
    "FMatDense": lambda: tl.NTK(CASE.model, CASE.batches),
    "cross kernel": lambda: tl.NTK(CASE.model, CASE.inputs, CASE.inputs[:2]),
    "PushForwardDense": lambda: tl.Jacobian(CASE.model, CASE.batches),
    "PullBackDense": lambda: tl.Jacobian(CASE.model, CASE.batches).T,
    "PushForwardSum": lambda: tl.PushForwardSum([(torch.tensor(2.0), "global", tl.Jacobian(CASE.model, CASE.batches))]),
    "PullBackSum": lambda: tl.PushForwardSum([(0.5, None, tl.Jacobian(CASE.model, CASE.batches))]).T,
    "PMatProduct": lambda: fisher(tl.PMatKFAC) @ fisher(tl.PMatDiag),
    "PMatSum": lambda: torch.tensor(0.5, dtype=torch.float64) * fisher(tl.PMatKFAC) + fisher(tl.PMatLowRank),
    "arrow": lambda: fisher(tl.PMatQuasiDiag.with_options(form="arrow")),
    "rank one": lambda: fisher(tl.PMatQuasiDiag).inverse(0.1),
    "units": lambda: fisher(tl.PMatQuasiDiag).pow(0.5),
    "expanded": lambda: tl.FMatDense(torch.ones(1, 1, 1, 1).expand(2, 3, 2, 3)),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_every_object_comes_back_as_it_was(make, tmp_path):
    thing, path = make(), tmp_path / "object.safetensors"
    thing.save(str(path))
    back = type(thing).load(path)
    assert type(back) is type(thing) and repr(back) == repr(thing)
    assert torch.equal(back.tensor(), thing.tensor()) and back.tensor().dtype == thing.tensor().dtype
    assert not back.tensor().requires_grad
    assert getattr(back, "layout", None) == getattr(thing, "layout", None)


def test_a_file_is_an_ordinary_safetensors_file_with_a_small_header(tmp_path):
    F, path = fisher(), tmp_path / "f"
    F.save(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["tangentlab"])
        stored = [file.get_tensor(name) for name in sorted(file.keys())]
    assert (
        header["format"] == FORMAT and header["version"] == tl.__version__ and header["object"]["object"] == "PMatKFAC"
    )
    assert all(torch.equal(a, b) for a, b in zip(stored, F.tensors(), strict=True))
    assert path.stat().st_size < F.nbytes() + 4096


def test_a_tensor_that_occurs_twice_is_written_once(tmp_path):
    F = tl.FIM(CASE.model, CASE.batches, tl.PMatDense)
    both = tl.PMatSum([(1.0, F), (2.0, F)])
    both.save(tmp_path / "sum")
    assert (tmp_path / "sum").stat().st_size < 1.5 * F.nbytes()
    assert torch.equal(tl.PMatSum.load(tmp_path / "sum").tensor(), both.tensor())


def test_the_class_that_is_asked_for_must_be_in_the_file(tmp_path):
    fisher().save(tmp_path / "f")
    assert isinstance(tl.PMat.load(tmp_path / "f"), tl.PMatKFAC)
    for kind in (tl.PMatEKFAC, tl.PVector, tl.FMat):
        with pytest.raises(InputError, match=r"holds a PMatKFAC: use PMatKFAC.load"):
            kind.load(tmp_path / "f")


@pytest.mark.parametrize(
    "make",
    [
        lambda: fisher(tl.PMatImplicit),
        lambda: fisher(tl.PMatImplicit) + fisher(tl.PMatDiag),
        lambda: tl.Hessian(CASE.model, CASE.batches),
        lambda: tl.Jacobian(CASE.model, CASE.batches, tl.PushForwardImplicit),
        lambda: 2 * tl.Jacobian(CASE.model, CASE.batches, tl.PullBackImplicit),
        lambda: tl.NTK(CASE.model, CASE.batches, representation=tl.FMatImplicit),
    ],
)
def test_what_holds_the_model_is_refused_and_leaves_no_file(make, tmp_path):
    with pytest.raises(StructureError, match="saved"):
        make().save(tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_damage_anywhere_is_noticed(tmp_path):
    path = tmp_path / "f"
    fisher(tl.PMatEKFAC).save(path)
    whole = path.read_bytes()
    for place in [*range(0, 12), *range(12, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x05]) + whole[place + 1 :])
        with pytest.raises(DataFileError):
            tl.PMat.load(path)
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataFileError):
            tl.PMat.load(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(DataFileError):
        tl.PMat.load(path)


def test_other_files_other_formats_and_missing_files_are_told_apart(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    with pytest.raises(DataFileError, match="not one that tangentlab wrote"):
        tl.PMat.load(tmp_path / "weights")
    (tmp_path / "text").write_text("not a tensor in sight, but long enough for a header")
    with pytest.raises(DataFileError, match="damaged, or no file"):
        tl.PMat.load(tmp_path / "text")
    with pytest.raises(DiskError, match="cannot be read"):
        tl.PMat.load(tmp_path / "nothing")
    with pytest.raises(DiskError, match="cannot be written"):
        fisher().save(tmp_path / "no folder" / "f")


def test_a_later_format_names_the_version_that_wrote_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tangentlab.objects.storage.FORMAT", FORMAT + 1)
    fisher().save(tmp_path / "f")
    monkeypatch.undo()
    with pytest.raises(DataFileError, match=f"format {FORMAT + 1}.*tangentlab {tl.__version__}"):
        tl.PMat.load(tmp_path / "f")


class OwnBlock(DiagBlock):
    """A user's block."""


def test_representations_of_users_are_saved_and_unknown_ones_named(tmp_path):
    layout = tl.LayerCollection.from_model(nn.Linear(2, 1))
    blocks = {("weight",): OwnBlock(torch.tensor([1.0, 2.0])), ("bias",): DiagBlock(torch.tensor([3.0]))}
    tl.PMatDiag(layout, blocks, examples=3, likelihood="mine").save(tmp_path / "f")
    back = tl.PMatDiag.load(tmp_path / "f")
    assert type(back.blocks[("weight",)]) is OwnBlock and torch.equal(back.diag().flat, torch.tensor([1.0, 2.0, 3.0]))
    assert back.likelihood == "mine" and back.examples == 3
    OwnBlock.__name__ = "RenamedBlock"
    try:
        with pytest.raises(DataFileError, match="OwnBlock, which is not known here: import the module"):
            tl.PMatDiag.load(tmp_path / "f")
    finally:
        OwnBlock.__name__ = "OwnBlock"


def test_a_file_can_name_no_class_outside_of_the_objects():
    """Nothing is imported or called on the word of a file."""
    known = _classes()
    assert "PMatKFAC" in known and "PVector" in known
    assert not {"Popen", "Path", "Tensor", "LayerCollection", "Rows", "Network"} & set(known)


FILE = Path(__file__).parent / f"format_{FORMAT}.safetensors"
EXACT = (tl.PMatDense, tl.PMatBlockDiag, tl.PMatLowRank, tl.PMatKronSum)
KINDS = (*EXACT, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag, tl.PMatQuasiDiag)


def everything() -> tl.PMatSum:
    """One matrix of every kind, and the negative of their sum: together zero."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(4, 2)
    terms = [tl.FIM(model.double(), x.double(), kind) for kind in KINDS]
    total = sum(term.tensor() for term in terms)
    return tl.PMatSum([(1.0, term) for term in terms] + [(-1.0, tl.PMatDense.from_dense(terms[0].layout, total))])


def test_files_of_this_format_are_still_read():
    """Fails where what a class keeps was renamed: then raise FORMAT and write the file anew with `everything().save`."""
    back = tl.PMatSum.load(FILE)
    assert [type(term) for _, term in back.terms] == [*KINDS, tl.PMatDense]
    assert float(back.tensor().abs().max()) < 1e-12 < float(back.terms[0][1].norm())

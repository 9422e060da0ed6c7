"""ImageNet weights from a file: loaded as they are, or refused with the way to make the file."""

import gzip
from pathlib import Path

import pytest
import torch

from tangentlab.errors import DataFileError
from tangentlab.models import ResNet18, imagenet_resnet18


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TANGENTLAB_DATA", str(tmp_path))
    torch.manual_seed(3)
    return ResNet18(1000, stem="imagenet").state_dict()


def test_weights_are_found_in_the_data_folder_and_loaded_in_evaluation_mode(tmp_path: Path, weights):
    (tmp_path / "weights").mkdir()
    torch.save(weights, tmp_path / "weights" / "resnet18-f37072fd.pth")
    model = imagenet_resnet18()
    assert not model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("content", ["nothing", "text", "renamed", "reshaped", "list"])
def test_files_that_are_not_these_weights_are_refused(tmp_path: Path, weights, content: str):
    file = tmp_path / "mine.pth"
    if content == "text":
        file.write_text("no weights")
    elif content == "renamed":
        torch.save({f"module.{name}": value for name, value in weights.items()}, file)
    elif content == "reshaped":
        torch.save(weights | {"fc.bias": torch.zeros(10)}, file)
    elif content == "list":
        torch.save([1, 2], file)
    with pytest.raises(DataFileError, match=r"torch\.save\(torchvision\.models\.resnet18"):
        imagenet_resnet18(file)


def test_absent_weights_are_refused_with_where_they_were_looked_for(tmp_path: Path, weights):
    with pytest.raises(DataFileError, match=r"resnet18-f37072fd\.pth.*\n.*weights") as caught:
        imagenet_resnet18()
    assert "torchvision.models.resnet18" in str(caught.value) and "fetched" not in str(caught.value)


def test_compressed_weights_are_read_too(tmp_path: Path, weights):
    torch.save(weights, tmp_path / "mine.pth")
    (tmp_path / "resnet18.pth.gz").write_bytes(gzip.compress((tmp_path / "mine.pth").read_bytes(), 1))
    assert torch.equal(imagenet_resnet18().fc.weight, weights["fc.weight"])

"""ResNet18 with the weights of ImageNet, from a file of the user."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import torch

from tangentlab.data.formats import read_bytes
from tangentlab.data.places import Search
from tangentlab.errors import DataFileError
from tangentlab.models.resnet import ResNet, ResNet18

WEIGHT_FILES = ("resnet18-f37072fd.pth", "resnet18-5c106cde.pth", "resnet18.pth")
"""The names under which torchvision stores its state dictionaries, and a plain one."""
HOW = "torch.save(torchvision.models.resnet18(weights='IMAGENET1K_V1').state_dict(), 'resnet18.pth')"


def imagenet_resnet18(path: str | os.PathLike[str] | None = None) -> ResNet:
    """ResNet18 with batch norm and 1000 outputs, in evaluation mode, with torchvision's weights.

    `path` is the file of the state dictionary; by default it is looked for in `$TANGENTLAB_DATA` and the user's cache,
    there in the folder itself or in `weights`. The file must hold exactly the names and shapes of torchvision's resnet18.
    """
    file = Path(path).expanduser() if path is not None else _found()
    model = ResNet18(1000, stem="imagenet")
    try:
        state = torch.load(io.BytesIO(read_bytes(file)), map_location="cpu", weights_only=True)
        model.load_state_dict(state)
    except (DataFileError, EOFError, pickle.UnpicklingError) as error:
        raise DataFileError(f"{file}: cannot be read as a state dictionary ({error}); make it by {HOW}") from error
    except (RuntimeError, TypeError, AttributeError) as error:
        raise DataFileError(f"{file}: is not the state dictionary of resnet18 ({error}); make it by {HOW}") from error
    return model.eval()


def _found() -> Path:
    search = Search("resnet18 of ImageNet", ("weights", "checkpoints"))
    files = search.find(WEIGHT_FILES)
    if files is None:
        missing = search.missing(WEIGHT_FILES, "not possible for these weights", fetched=False)
        raise DataFileError(f"{missing}\nWhere torchvision is installed: {HOW}")
    return files[0]

"""Models of timm. It imports torchvision for its data pipelines; without it an empty stand-in lets the models be imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tests.zoo_models.base import specimen

EXAMPLES, CLASSES = 3, 3


class _Nothing(type):
    """A class with any attribute."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Empty(types.ModuleType):
    """A module with any class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _StandIn:
    """Finds torchvision and all of its submodules, empty."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        mine = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def created(name: str, **options: Any) -> nn.Module:
    """A model of timm."""
    with _torchvision():
        import timm
    return timm.create_model(name, num_classes=CLASSES, **options)


@contextmanager
def _torchvision() -> Iterator[None]:
    """The real one, or the stand-in, which nobody else sees."""
    if "timm" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        yield
        return
    stand_in = _StandIn()
    sys.meta_path.append(stand_in)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(stand_in)  # type: ignore[arg-type]
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4}
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (32, {"channels": (8, 8, 8, 8)}),
    "resnet50": (32, {"channels": (8, 8, 8, 8)}),
    "test_resnet": (32, {}),
    "vit_tiny_patch16_224": (16, VIT),
    "test_vit": (160, {}),
    "deit_tiny_distilled_patch16_224": (16, VIT),
    "beit_base_patch16_224": (16, VIT),
    "eva02_tiny_patch14_224": (16, VIT),
    "cait_xxs24_224": (16, VIT | {"depth_token_only": 1}),
    "xcit_nano_12_p8_224": (16, VIT | {"patch_size": 8}),
    "swin_tiny_patch4_window7_224": (32, SWIN),
    "swinv2_tiny_window8_256": (32, SWIN),
    "test_convnext": (32, {}),
    "test_efficientnet": (32, {}),
    "test_mambaout": (32, {}),
    "test_nfnet": (32, {}),
    "test_byobnet": (32, {}),
    "mobilenetv3_small_050": (32, {}),
    "mobilevit_xxs": (64, {}),
}


def _add(name: str, size: int, options: dict[str, Any]) -> None:
    @specimen("timm", name)
    def make() -> tuple[nn.Module, Any]:
        return created(name, **options), torch.randn(EXAMPLES, 3, size, size)


for _name, (_size, _options) in MODELS.items():
    _add(_name, _size, _options)


@specimen("timm", "MlpMixer")
def mixer() -> tuple[nn.Module, Any]:
    created("test_resnet")
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=CLASSES, img_size=16, patch_size=4, num_blocks=2, embed_dim=16)
    return model, torch.randn(EXAMPLES, 3, 16, 16)

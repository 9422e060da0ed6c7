"""Objects as files: their tensors as safetensors, everything else as a small JSON header. No pickle, no code is run.

A file is a safetensors file, which other tools read too. Its metadata has one entry, "tangentlab", with

    format     the number of this layout of files
    version    the version of tangentlab that wrote it
    object     what the object is made of: names of classes, plain values, parameters by name, and names of tensors
    checksum   of all this and of every tensor
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from tangentlab.engine.layout import LayerCollection, ParameterSpec
from tangentlab.errors import DataFileError, InputError, StructureError
from tangentlab.files import disk_errors, write_atomically

FORMAT = 1
_KEY = "tangentlab"


class Storable:
    """What can be written to a file and read again."""

    def save(self, path: str | Path) -> None:
        """Write everything to a safetensors file, whole or not at all; `load` reads it. Cost: one copy of the tensors."""
        writer = _Writer(self)
        header = {"format": FORMAT, "version": import_module("tangentlab").__version__, "object": writer.encoded(self)}
        header["checksum"] = checksum(header, writer.tensors)
        write_atomically(Path(path), to_bytes(writer.tensors, {_KEY: json.dumps(header)}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` wrote, on the CPU. `PMat.load` reads every kind of matrix, `PMatKFAC.load` that kind only."""
        found = _read(Path(path))
        if not isinstance(found, cls):
            raise InputError(f"{path} holds a {type(found).__name__}: use {type(found).__name__}.load(path).")
        return found


class _Writer:
    """An object as JSON, with its tensors set aside under names."""

    def __init__(self, whole: Any) -> None:
        self.whole, self.tensors = type(whole).__name__, dict[str, Tensor]()
        self.classes = _classes()
        self.names: dict[int, str] = {}
        self.kept: list[Tensor] = []

    def encoded(self, value: Any) -> Any:
        """Plain values as they are, everything else as an object with one key that says what it is."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return {"tensor": self._named(value)}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.encoded(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encoded(key), self.encoded(one)] for key, one in value.items()]}
        if isinstance(value, LayerCollection):
            return {"layout": [[spec.name, list(spec.shape), spec.rank] for spec in value]}
        kind = value if isinstance(value, type) else type(value)
        if self.classes.get(kind.__name__) is not kind:
            raise StructureError(
                f"{self.whole} cannot be saved: it holds a {kind.__name__}, and files hold numbers only. Save a matrix, kernel "
                "or Jacobian that stores its numbers, such as PMatKFAC, FMatDense or PushForwardDense."
            )
        if isinstance(value, type):
            return {"class": kind.__name__}
        return {"object": kind.__name__, "state": {n: self.encoded(one) for n, one in _state(value).items()}}

    def _named(self, tensor: Tensor) -> str:
        if id(tensor) not in self.names:
            name = self.names[id(tensor)] = str(len(self.names))
            self.kept.append(tensor)  # an id means its tensor for as long as that lives
            self.tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return self.names[id(tensor)]


def _state(value: Any) -> dict[str, Any]:
    """What pickle would keep, without what is computed again when needed."""
    state = value.__getstate__() or {}
    return {name: one for name, one in state.items() if not name.startswith("_cached")}


def _classes() -> dict[str, type]:
    """Classes of this package by name, and those of users that are representations or blocks of them."""
    objects = import_module("tangentlab.objects")
    own = [import_module(module.name) for module in pkgutil.walk_packages(objects.__path__, f"{objects.__name__}.")]
    found = {
        name: kind
        for module in own
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__.startswith(objects.__name__)
    }
    bases = [kind for name, kind in found.items() if name in ("Storable", "Block", "Side", "Basis")]
    return {kind.__name__: kind for base in bases for kind in _below(base)} | found


def _below(kind: Any) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """32 letters that stand for plain values and tensors by name, on the CPU and contiguous."""
    digest = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> Any:
    """The object of a file whose header and tensors have the checksum that was written with them."""
    tensors = {}
    try:
        with disk_errors(path, "read"), safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            if header is None:
                raise DataFileError(f"{path} is a safetensors file, but not one that tangentlab wrote.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, ValueError) as error:
        raise DataFileError(f"{path} is damaged, or no file that tangentlab wrote ({error}).") from error
    expected = header.pop("checksum", None) if isinstance(header, dict) else None
    if expected is None or expected != checksum(header, tensors):
        raise DataFileError(f"{path} is damaged: its content does not have the checksum that was written with it.")
    if header["format"] != FORMAT:
        raise DataFileError(
            f"{path} has format {header['format']}, and this version of tangentlab reads format {FORMAT}: read it with "
            f"tangentlab {header['version']}, which wrote it, or make it anew."
        )
    return _decoded(header["object"], tensors, _classes(), path)


def _decoded(value: Any, tensors: dict[str, Tensor], classes: dict[str, type], path: Path) -> Any:
    def inner(one: Any) -> Any:
        return _decoded(one, tensors, classes, path)

    if not isinstance(value, dict):
        return value
    (what, content), *_ = value.items()
    if what == "tensor":
        return tensors[content]
    if what in ("list", "tuple"):
        return (list if what == "list" else tuple)(inner(one) for one in content)
    if what == "dict":
        return {inner(key): inner(one) for key, one in content}
    if what == "layout":
        return LayerCollection(ParameterSpec(name, tuple(shape), rank) for name, shape, rank in content)
    if content not in classes:
        raise DataFileError(
            f"{path} holds a {content}, which is not known here: import the module that defines it first."
        )
    if what == "class":
        return classes[content]
    made: Any = object.__new__(classes[content])
    vars(made).update({name: inner(one) for name, one in value["state"].items()})
    return made

"""Chains of torch's own layers: what was found and proved about one holds as long as nothing that could change it has changed.

A forward of the user's may read anything, so what a call has proved about it ends with the call. An `nn.Sequential` of torch's
own layers runs no code but torch's: everything that decides how its gradients follow from the captured calls can be looked at.
That is the modules with all their attributes, their classes, the functions that their code names, and the modes of torch. While
they are the same objects, layout, groups and proofs are kept; the numbers in the parameters play no part in a proof. A function
that is not torch's, a hook, a mode, autocast: then nothing is kept, and every call looks and proves anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from operator import is_
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from tangentlab.engine.groups import parameter_groups
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import TangentlabError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LAYERS = {
    nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
}  # fmt: skip
_UNUSED = "_reversed_padding_repeated_twice"
"""What a convolution does not look at where it pads with zeros."""
_PLAIN = {bool, int, float, str, type(None), dict, OrderedDict, set}
_CALLING = ("forward", "__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__iter__", "_conv_forward")
_CALLABLE = (FunctionType, BuiltinFunctionType, type, staticmethod)
_SHAPES = 64
"""Shapes of batches per model whose proofs are kept."""
_TORCH = str(Path(torch.__file__).parent)

Place = tuple[Mapping[str, Any], str]


class ChainStanding:
    """What is known of a chain while it stands.

    Attributes:
        layout: all its trainable parameters.
        groups: those of the layout.
        settled: what was proved for good, by the graph and the shapes of the calls.
    """

    def __init__(self, model: nn.Sequential) -> None:
        self.layout = LayerCollection.from_model(model)
        self.groups = parameter_groups(model, self.layout)
        self.settled: dict[tuple[Any, ...], Any] = {}
        self._chain = _Chain(model)
        self._code = _Code(type(module) for module in model.modules())

    def is_same_chain(self, model: nn.Module) -> bool:
        """Whether these are the same layers with the same parameters. Cost: some microseconds per layer."""
        return self._chain.stands(model)

    def holds(self, model: nn.Module) -> bool:
        """Whether nothing that could change a route has changed. Cost: some ten microseconds more."""
        return _nothing_in_between() and self._chain.stands(model) and self._code.stands()

    def keep(self, key: tuple[Any, ...], proved: Any) -> None:
        """Remember what was proved; the oldest of many shapes is forgotten."""
        if len(self.settled) >= _SHAPES:
            self.settled.pop(next(iter(self.settled)))
        self.settled[key] = proved

    @property
    def can_be_kept(self) -> bool:
        """Whether all code is torch's."""
        return self._code.is_torchs()


class _Chain:
    """The modules with their attributes and parameters. The first module is not held, so that its end is the end of this."""

    def __init__(self, model: nn.Sequential) -> None:
        self._inner = list(model.modules())[1:]
        self._seen = [_contents(module) for module in (model, *self._inner)]
        owned = [vars(module) for module in (model, *self._inner)]
        self._hooks = [own[name] for own in owned for name in HOOKS]
        self._parameters = [p for own in owned for p in own["_parameters"].values() if p is not None]
        self._facts = list(map(_facts, self._parameters))

    def stands(self, model: nn.Module) -> bool:
        if any(self._hooks):
            return False
        for module, (kind, names, values) in zip((model, *self._inner), self._seen, strict=True):
            now = _contents(module)
            if now[0] is not kind or now[1] != names or not all(map(is_, now[2], values)):
                return False
        return list(map(_facts, self._parameters)) == self._facts


def _contents(module: nn.Module) -> tuple[type, list[str], list[Any]]:
    """The class of a module, the names of its attributes, parameters, buffers and modules, and what they are."""
    own = vars(module)
    names, values = list(own), list(own.values())
    for table in (own["_parameters"], own["_buffers"], own["_modules"]):
        names += table
        values += table.values()
    return type(module), names, values


def _facts(p: nn.Parameter) -> tuple[Any, ...]:
    return type(p), p.shape, p.dtype, p.device, p.layout, p.requires_grad


class _Code:
    """What calls of some classes run: the classes, the functions their code names, and operations that Python has changed."""

    def __init__(self, kinds: Iterable[type[nn.Module]]) -> None:
        self._classes = list(dict.fromkeys(parent for kind in kinds for parent in kind.__mro__[:-1]))
        self._places = list(_places(self._classes))
        self._registered = frozenset(torch.library._impls)
        self._seen = self._look()

    def stands(self) -> bool:
        now = self._look()
        same = len(now) == len(self._seen) and all(map(is_, now, self._seen))
        return same and torch.library._impls == self._registered

    def is_torchs(self) -> bool:
        functions = [value for value in self._seen if isinstance(value, FunctionType) and value is not import_module]
        return all(function.__code__.co_filename.startswith(_TORCH) for function in functions) and not any(
            callable(value) and not isinstance(value, _CALLABLE) for value in self._seen
        )

    def _look(self) -> list[Any]:
        found: list[Any] = [space.get(name) for space, name in self._places]
        found += [value.__code__ for value in found if type(value) is FunctionType]
        for kind in self._classes:
            found += vars(kind).values()
        return found


_known: WeakKeyDictionary[nn.Module, ChainStanding] = WeakKeyDictionary()


def known_chain(model: nn.Module) -> ChainStanding | None:
    """What is known of a chain that has the same layers as before: layout and groups hold, proofs may not.

    Of a chain that is not known, what can be found; None for other models.
    """
    kept = _known.get(model) if type(model) is nn.Sequential else None
    return kept if kept is not None and kept.is_same_chain(model) else standing(model)


def standing(model: nn.Module) -> ChainStanding | None:
    """What is known of a model that is a chain of torch's own layers with nothing in between, else None."""
    if type(model) is not nn.Sequential:
        return None
    kept = _known.get(model)
    if kept is not None and kept.holds(model):
        return kept
    _known.pop(model, None)
    if not _nothing_in_between() or not all(map(_is_plain, model.modules())):
        return None
    try:
        found = ChainStanding(model)
    except TangentlabError:  # said where it is asked for
        return None
    if not found.can_be_kept:
        return None
    _known[model] = found
    return found


def _is_plain(module: nn.Module) -> bool:
    """One of torch's layers without hooks, all of whose attributes are data: no method of its own, no computed weight."""
    own = vars(module)
    if type(module) not in _LAYERS or any(own[name] for name in HOOKS) or own["_buffers"]:
        return False
    if not all(type(p) is nn.Parameter for p in own["_parameters"].values() if p is not None):
        return False
    if own.get("padding_mode", "zeros") != "zeros":
        return False  # by a list, in which anything may change
    return all(type(value) in _PLAIN or isinstance(value, tuple) or name == _UNUSED for name, value in own.items())


def _nothing_in_between() -> bool:
    """No mode, transform, autocast, tracing or global hook that sees or changes what layers compute."""
    return not (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or any(getattr(module_hooks, f"_global{name}") for name in HOOKS)
    )


def _places(classes: list[type]) -> Iterator[Place]:
    """Where calls of the classes, and functions of `torch.nn` that they come to, look their functions up."""
    seen: set[CodeType] = set()

    def reached(space: Mapping[str, Any], name: str) -> Iterator[Place]:
        yield space, name
        value = space[name]
        if type(value) is not FunctionType or value.__code__ in seen or not value.__module__.startswith("torch.nn"):
            return
        seen.add(value.__code__)
        for cell in value.__closure__ or ():  # the functions between which another one decides
            yield from reached({"": cell.cell_contents}, "")
        names = set(_names(value.__code__))
        spaces = [value.__globals__]
        for inner in spaces:  # grows by the modules that are found on the way, as in torch._C._nn.leaky_relu
            for known in names & inner.keys():
                yield from reached(inner, known)
                if isinstance(inner[known], ModuleType) and not any(vars(inner[known]) is one for one in spaces):
                    spaces.append(vars(inner[known]))

    for kind in classes:
        for name in _CALLING:
            if name in vars(kind):
                yield from reached(vars(kind), name)


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function's code uses, its inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

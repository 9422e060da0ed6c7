"""Following a network through its affine layers and stopping at every piecewise-linear one.

The forward of any module runs on a tensor whose first axis holds points. Operations that are affine in it are carried out
as they are; a bend (ReLU and its kin) or a maximum is handed to a `Traveller`, which knows what the points mean: corners of
cells that have to be cut there, or points of one region that have to stay on its affine map. Everything else is refused by
name. The parameters are used in float64 and the module is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tangentlab.errors import ModelError, NumericsError, TangentlabError
from tangentlab.spectral.bends import BENDS, Bend, pooling_windows

Function = Callable[..., Any]
DTYPE = torch.float64


class Traveller(Protocol):
    """What happens to the points where the network bends."""

    def catch_up(self, rows: Tensor) -> Tensor:
        """A tensor of an earlier moment with a row for every point of now."""

    def bend(self, rows: Tensor, bend: Bend) -> Tensor:
        """A piecewise-linear function of every unit."""

    def largest(self, rows: Tensor) -> Tensor:
        """The maximum over the last axis."""


AFFINE = frozenset(
    """linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d flatten reshape view unflatten permute transpose movedim
    contiguous clone detach squeeze unsqueeze expand __getitem__ narrow select mean sum neg __neg__ positive pad cat concat
    concatenate stack chunk split unbind roll flip add add_ __add__ __radd__ __iadd__ sub sub_ subtract __sub__ __rsub__
    __isub__ rsub pixel_shuffle pixel_unshuffle channel_shuffle cumsum""".split()
)
"""Functions that are affine in all their arguments together."""
PRODUCTS = frozenset(
    "mul mul_ multiply __mul__ __rmul__ __imul__ matmul __matmul__ __rmatmul__ mm bmm addmm einsum".split()
)
"""Functions that are affine in one argument when the others are constants."""
QUOTIENTS = frozenset("div div_ divide true_divide __truediv__ __itruediv__".split())
FACTS = frozenset("size dim numel __len__ is_floating_point stride element_size ndimension is_contiguous".split())
CASTS = frozenset("to double float type type_as".split())
POOLS = {f"{kind}max_pool{d}d": d for kind in ("", "adaptive_") for d in (1, 2, 3)}
REGULAR = {"batch_norm": "batch norm", "dropout": "dropout", "dropout2d": "dropout", "alpha_dropout": "dropout"}

_traveller: ContextVar[Traveller] = ContextVar("traveller")


class Carried(Tensor):
    """Rows that belong to points. Every function of it passes through here."""

    @classmethod
    def __torch_function__(cls, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out what is affine, hand over what bends, refuse the rest."""
        with torch._C.DisableTorchFunctionSubclass():
            return _step(func, args, kwargs or {})


def _step(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.__name__
    traveller = _traveller.get()
    if name in FACTS or (name == "__get__" and getattr(func, "__self__", None) in _PLAIN_PROPERTIES):
        return func(traveller.catch_up(args[0].as_subclass(Tensor)), *args[1:], **kwargs)
    if name in CASTS:
        return args[0]
    carried = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Carried)]
    now: dict[int, Tensor] = {id(leaf): traveller.catch_up(leaf.as_subclass(Tensor)) for leaf in carried}
    args, kwargs = tree_map(lambda leaf: now[id(leaf)] if id(leaf) in now else _as_double(leaf), (args, kwargs))
    if name in BENDS:
        result = traveller.bend(args[0], BENDS[name](*args, **kwargs))
    elif name in POOLS:
        result = traveller.largest(pooling_windows(name, POOLS[name], *args, **kwargs))
    elif name in ("maximum", "minimum") and len(args) == 2:
        sign = 1.0 if name == "maximum" else -1.0
        result = sign * traveller.largest(sign * torch.stack(torch.broadcast_tensors(*args), -1))
    else:
        _require_affine(name, args, kwargs, len(carried), id(args[0]) in {id(rows) for rows in now.values()})
        result = func(*args, **kwargs)
    rows = len(next(iter(now.values())))
    return tree_map(lambda leaf: _carried(leaf, name, rows) if isinstance(leaf, Tensor) else leaf, result)


_PLAIN_PROPERTIES = tuple(
    getattr(Tensor, name) for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "layout")
)


def _as_double(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.to("cpu", DTYPE) if leaf.is_floating_point() else leaf.cpu()
    return leaf


def _carried(result: Tensor, name: str, rows: int) -> Tensor:
    """The result of a step, which has to keep the points on its first axis; `rows` is their number before a bend."""
    if result.ndim == 0 or (result.shape[0] < rows):
        raise ModelError(
            f"The operation {name} does not keep the examples on the first axis (it gives shape {tuple(result.shape)} for "
            f"{rows} points), so that it has no region of its own for each of them."
        )
    return result.as_subclass(Carried)


def _require_affine(name: str, args: Any, kwargs: dict[str, Any], carried: int, first_is_carried: bool) -> None:
    """Raise a `ModelError` with the name of an operation that is not affine in the points."""
    if name in AFFINE or (name == "interpolate" and kwargs.get("mode", "nearest") != "bicubic"):
        return
    if name in PRODUCTS and carried == 1 or name in QUOTIENTS and carried == 1 and first_is_carried:
        return
    if name in REGULAR:
        training = kwargs.get("training", args[5] if name == "batch_norm" and len(args) > 5 else False)
        if not training:
            return
        raise ModelError(f"The model has {REGULAR[name]} in train mode, which mixes or drops units: call model.eval().")
    if name == "__get__":
        raise ModelError("A property of the points, such as .T or .data, is read in forward: use transpose or detach.")
    raise ModelError(
        f"The operation {name.strip('_')} is not piecewise linear in the input (or not known to be), so the network has "
        "no affine regions. ReLU, LeakyReLU, PReLU, Hardtanh, ReLU6, abs, clamp and max pooling are."
    )


def follow(model: nn.Module, points: Tensor, traveller: Traveller) -> Tensor:
    """Outputs of the model for the traveller's points at the end, `(points at the end, outputs)`, in float64.

    Args:
        model: any module of affine and piecewise-linear operations, in eval mode.
        points: inputs, `(points, ...)`.
        traveller: cuts or keeps the points where the network bends.
    """
    token = _traveller.set(traveller)
    try:
        with torch.no_grad():
            outputs = torch.func.functional_call(
                model, _in_double(model), (points.to("cpu", DTYPE).as_subclass(Carried),), strict=False
            )
    except TangentlabError:
        raise
    except RuntimeError as error:
        raise ModelError(f"The network failed on inputs of shape {tuple(points.shape[1:])}: {error}") from error
    finally:
        _traveller.reset(token)
    if not isinstance(outputs, Carried):
        raise ModelError(f"The model returns {type(outputs).__name__} that does not depend on its input step by step.")
    rows = traveller.catch_up(outputs.as_subclass(Tensor))
    if not bool(torch.isfinite(rows).all()):
        raise NumericsError("The network has outputs that are not finite on this domain.")
    return rows.flatten(1)


def _in_double(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers on the processor, floating ones in float64, which holds every float32 and bfloat16 exactly."""
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {name: _as_double(tensor.detach()) for name, tensor in state.items()}


def plain_outputs(model: nn.Module, points: Tensor) -> Tensor:
    """The model itself in float64 at given points, `(points, outputs)`: the truth that followers are checked against."""
    with torch.no_grad():
        return torch.func.functional_call(model, _in_double(model), (points.to("cpu", DTYPE),)).flatten(1)

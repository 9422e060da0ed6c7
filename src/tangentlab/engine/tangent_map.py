"""v -> J v as part of a graph: the value of a function and its differential, differentiable in the direction v.

`forward_mode.Linearization` gives numbers; here a loss may be taken of J v and propagated back to v. One forward pass with
dual numbers computes f and J v together, and its graph leads to v alone, so that the backward pass costs as much as that of
f: a training step of a linearized network takes about 5/3 of an ordinary one.

The ladder is that of `forward_mode`: default kernels, plain kernels, norms written out, reverse passes, and reverse passes
through the function's own tensors, for functions in which others cannot be put in their place (a list of parameters, a module
that is converted, a checkpoint that runs later). A rung is trusted after it has been proved on the first batch: for random u
and v, the gradient of <u, J v> in v is J^T u by plain reverse mode, and its inner product with v is <u, J v> itself; forward
mode within forward mode must agree with reverse mode within reverse mode. The proof covers derivatives in the parameters.
Where J v is differentiated in something else, start at `WRITTEN_OUT`: the differentials of torch's layer and instance norms
take their statistics as constants when they are themselves differentiated, in forward and in reverse mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp
from torch.overrides import TorchFunctionMode

from tangentlab.engine.certificate import OWN_NOISE, random_weights
from tangentlab.engine.forward_mode import DRAWS_IN_HALF_PRECISION, plain_kernels, root_mean_square
from tangentlab.engine.graph import NO_DEPENDENCE, coarsest_type, reaches
from tangentlab.errors import ModelError, TangentlabError

Tensors = dict[str, Tensor]
TensorFunction = Callable[[Tensors], Tensor]
"""A function of named tensors, such as the outputs of a network on one batch as a function of its parameters."""
Own = Callable[[], tuple[Tensors, Tensor]]
"""The same function as it is written: its own tensors by name, as leaves, and its value with a graph to them."""

WRITTEN_OUT, REVERSE = 2, 3
"""Rungs of the ladder: forward mode with norms as elementary operations, and reverse passes only."""


class TangentMap:
    """f(w) and its derivatives along v, up to `order`, by the first rung of the ladder that proves right.

    It remembers the rung, holds no tensor, and can be pickled. `lowest` is the rung to start from.
    """

    def __init__(self, order: int = 1, lowest: int = 0) -> None:
        self.order, self.lowest, self.rung, self.proved = order, lowest, lowest, False

    def __call__(self, call: TensorFunction, values: Tensors, directions: Tensors, own: Own) -> list[Tensor]:
        """[f, J v, v^T H v, ...] of a function at `values`, with a graph to `directions`."""

        def replaced() -> tuple[Tensors, Tensor]:
            leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
            return leaves, call(leaves)

        forward = partial(_forward_mode, call, values)
        rungs: list[Any] = [(forward, context) for context in (nullcontext, plain_kernels, _plain_norms)]
        rungs += [(partial(_reverse_mode, start), _plain_norms) for start in (replaced, own)]
        problems = []
        while self.rung < len(rungs):
            method, context = rungs[self.rung]
            try:
                with context():
                    if self.proved or self._is_right(method, own, values):
                        found = method(directions, self.order)
                        return found if torch.is_grad_enabled() else [term.detach() for term in found]
                problems.append("forward mode disagrees with reverse mode")
            except TangentlabError:
                raise
            except (RuntimeError, NotImplementedError, TypeError) as error:
                with torch.enable_grad():
                    own()  # what is wrong with the function itself is the caller's to see
                problems.append((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))
            self.rung, self.proved = self.rung + 1, False
        self.rung = self.lowest
        times, way_out = ("", "") if self.order == 1 else (" twice", ", or use order=1")
        reasons = " | ".join(dict.fromkeys(problems))
        raise ModelError(
            f"No way to differentiate this model{times} along a direction: {reasons}. Replace that operation{way_out}."
        )

    def _is_right(self, method: Any, own: Own, values: Tensors) -> bool:
        """The proof on random u and v, on several of them in half precision, where one may agree by luck.

        It holds for other batches too if every parameter took part in it, by more than rounding.
        """
        with torch.enable_grad():
            leaves, outputs = own()
            if not reaches(outputs, leaves.values()):
                raise ModelError(NO_DEPENDENCE)
            draws = range(DRAWS_IN_HALF_PRECISION if coarsest_type(outputs).itemsize == 2 else 1)
            looks = [self._gap(method, own, values, leaves, outputs, draw) for draw in draws]
        right = root_mean_square([gap for gap, _ in looks]) <= 1
        self.proved = right and all(reached for _, reached in looks)
        return right

    def _gap(
        self, method: Any, own: Own, values: Tensors, leaves: Tensors, outputs: Tensor, draw: int
    ) -> tuple[float, bool]:
        """|<u, J v> - <J^T u, v>| as a part of what is allowed, infinite where J^T u or v^T H v are wrong; and whether J^T u
        reaches every parameter.

        What is allowed on top of the precision of J^T u is a bound of rounding; in half precision, where bounds are as large
        as what may be missed, it is the rounding that plain autograd has.
        """
        coarsest = coarsest_type(outputs)
        half, eps = coarsest.itemsize == 2, torch.finfo(coarsest).eps
        generator = torch.Generator(outputs.device).manual_seed(draw)
        u = _random_like(outputs, generator)
        pulled = _gradients(outputs, leaves, u)
        v = {name: _random_like(value, generator).requires_grad_() for name, value in values.items()}
        image = method(v, self.order)
        found = _gradients(image[1], v, u)
        with _plain_norms():
            truth = _reverse_mode(own, v, 2)[2] if self.order == 2 else None
        v = {name: value.detach() for name, value in v.items()}
        rounding = _own_rounding(outputs, leaves, u, pulled) if half else eps**0.75 * float(u.norm())
        tolerance = eps**0.5 * _norm(pulled) + rounding
        right = _norm({name: found[name] - pulled[name] for name in values}) <= tolerance
        if truth is not None:
            right = right and torch.allclose(image[2], truth, rtol=tolerance, atol=tolerance * _norm(v) ** 2)
        product = sum(float((v[name] * found[name]).sum()) for name in values)
        gap = abs(float((u * image[1].detach()).sum()) - product)
        allowed = tolerance if half else tolerance * _norm(v)
        reached = _norm(pulled) > rounding and all(part.any() or not part.numel() for part in pulled.values())
        return gap / max(allowed, sys.float_info.min) if right else torch.inf, reached


class _NormsWrittenOut(TorchFunctionMode):
    """Layer and instance norms as elementary operations."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        function = {F.layer_norm: _layer_norm, F.instance_norm: _instance_norm}.get(function, function)
        return function(*arguments, **(options or {}))


def _layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return _normalized(x, tuple(range(-len(shape), 0)), weight, bias, eps)


def _instance_norm(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:  # the stored statistics are constants indeed
        return F.instance_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    weight, bias = (p if p is None else p.reshape(-1, *[1] * (x.ndim - 2)) for p in (weight, bias))
    return _normalized(x, tuple(range(2, x.ndim)), weight, bias, eps)


def _normalized(x: Tensor, axes: tuple[int, ...], weight: Any, bias: Any, eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    normalized = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    scaled = normalized if weight is None else normalized * weight
    return scaled if bias is None else scaled + bias


@contextmanager
def _plain_norms() -> Iterator[None]:
    with plain_kernels(), _NormsWrittenOut():
        yield


def _norm(tensors: Tensors) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())


def _own_rounding(outputs: Tensor, leaves: Tensors, u: Tensor, pulled: Tensors) -> float:
    """By how much J^T u in two parts misses the whole, as often as it counts as rounding."""
    part = u * random_weights(u.shape, u)
    one, other = _gradients(outputs, leaves, part), _gradients(outputs, leaves, u - part)
    return OWN_NOISE * _norm({name: one[name] + other[name] - pulled[name] for name in pulled})


def _random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)


def _gradients(outputs: Tensor, leaves: Tensors, cotangent: Tensor) -> Tensors:
    """J^T u by name; zero where the outputs do not depend on a tensor."""
    if not outputs.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    options["create_graph"] = cotangent.requires_grad and torch.is_grad_enabled()
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangent.contiguous(), **options)  # see `backward`
    return dict(zip(leaves, grads, strict=True))


def _forward_mode(call: TensorFunction, values: Tensors, directions: Tensors, order: int) -> list[Tensor]:
    """Dual numbers in dual numbers: the derivative of (f, ..., f^(k-1)) along v ends with f^(k)."""

    def derivatives(at: Tensors, order: int) -> list[Tensor]:
        if order == 0:
            return [call(at)]
        pair: Any = jvp(lambda w: derivatives(w, order - 1), (at,), (directions,))
        return [*pair[0], pair[1][-1]]

    return derivatives({name: value.detach() for name, value in values.items()}, order)


def _reverse_mode(start: Own, directions: Tensors, order: int) -> list[Tensor]:
    """u -> J^T u is linear; its transpose applied to v is J v, and likewise for the derivative of J v."""
    with torch.enable_grad():
        leaves, value = start()
        found = [value]
        for _ in range(order):
            dummy = torch.zeros_like(found[-1], requires_grad=True)
            slopes = _gradients(found[-1], leaves, dummy)
            used = [name for name in leaves if slopes[name].requires_grad]
            if not used:
                found.append(torch.zeros_like(found[-1]).detach())
                continue
            linear, along = [slopes[name] for name in used], [directions[name] for name in used]
            options: dict[str, Any] = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
            found += torch.autograd.grad(linear, dummy, along, **options)
    return found

"""Jacobian-vector products: the one place where forward-mode differentiation is called.

Some kernels (fused attention, the oneDNN LSTM, the transformer fast path) have no forward mode, and fused attention has no
double backward either; all do with plain kernels. So a product climbs a ladder and remembers the rung that carried it:
forward mode with the default kernels, forward mode with plain kernels, two reverse passes with plain kernels, and one
gradient per output of every example, which is slow and always right.

Forward mode does not see everything that reverse mode sees: `torch.no_grad()` inside a forward does not stop tangents, and
parameters that a model keeps in a list of its own get none. Second derivatives of some operations are wrong, which two
reverse passes would show. A rung is trusted after <u, J v> = <J^T u, v> holds for random u and v on this network, for good if
every parameter had a gradient there; a plain chain of torch's own layers is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.capture import gradients, without_hooks
from tangentlab.engine.certificate import OWN_NOISE, random_weights
from tangentlab.engine.fallback import Caller
from tangentlab.engine.graph import NO_DEPENDENCE, reaches, read_graph
from tangentlab.engine.network import Network, grad_mode
from tangentlab.engine.plain_chain import is_plain_chain
from tangentlab.engine.snapshot import TURN, untouched
from tangentlab.errors import ModelError, TangentlabError
from tangentlab.temporary import changed


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Transformer layers call their own modules and functions, not one fused kernel."""
    switch = torch.backends.mha.set_fastpath_enabled
    with TURN:
        before = torch.backends.mha.get_fastpath_enabled()
        yield from changed(lambda: switch(False), lambda: switch(before))


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Kernels that support every kind of differentiation: math attention, no oneDNN, no transformer fast path."""
    cuda = torch.backends.cuda
    fused = {
        cuda.enable_flash_sdp: cuda.flash_sdp_enabled,
        cuda.enable_mem_efficient_sdp: cuda.mem_efficient_sdp_enabled,
        cuda.enable_cudnn_sdp: cuda.cudnn_sdp_enabled,
    }

    def switch(one_dnn: bool, math: bool, others: list[bool]) -> None:
        torch.backends.mkldnn.enabled = one_dnn  # type: ignore[assignment]
        cuda.enable_math_sdp(math)
        for enable, on in zip(fused, others, strict=True):
            enable(on)

    with TURN, no_fast_path():
        before = bool(torch.backends.mkldnn.enabled), cuda.math_sdp_enabled(), [enabled() for enabled in fused.values()]
        yield from changed(lambda: switch(False, True, [False] * len(fused)), lambda: switch(*before))


def has_padding(model: nn.Module) -> bool:
    """Whether an embedding drops the gradient of its padding row: forward mode does not, and only some batches show it."""
    return any(getattr(module, "padding_idx", None) is not None for module in model.modules())


class Linearization:
    """f and its differential at the current parameters on one batch: `jvp`, `vjp`, with one forward kept for the vjp.

    `trusted` are the rungs that have been proved; batches of one pass may share them.
    """

    def __init__(self, network: Network, batch: Any, rung: int = 0, trusted: set[int] | None = None) -> None:
        self.network, self.batch = network, batch
        self.trusted: set[int] = set() if trusted is None else trusted
        self.rung = max(rung, 2) if has_padding(network.model) else rung
        self._proved: set[int] = set()
        self._outputs: Tensor | None = None
        self._reverse: tuple[Tensor, list[Tensor], list[str]] | None = None

    @property
    def outputs(self) -> Tensor:
        """(N, ...), with a graph."""
        if self._outputs is None:
            with grad_mode(), untouched(self.network.model):
                outputs = self.network(self.batch)
            if not outputs.requires_grad:
                raise ModelError(NO_DEPENDENCE)
            read_graph(outputs)  # which refuses what hides parameters
            self._outputs = outputs
        return self._outputs

    def vjp(self, cotangent: Tensor) -> Tensor:
        """J^T u: (N, ...) -> (d)."""
        parameters = self.network.parameters()
        outputs = self.outputs
        with untouched(self.network.model):  # activation checkpointing runs the forward again
            grads = gradients(outputs, list(parameters.values()), cotangent.to(outputs.dtype))
        pairs = zip(parameters.items(), grads, strict=True)
        return self.network.layout.flatten({n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}).detach()

    def jvp(self, flat: Tensor) -> Tensor:
        """J v: (d) -> (N, ...)."""
        rungs: list[tuple[Callable[[Tensor], Tensor], Any]] = [
            (self._forward_mode, nullcontext),
            (self._forward_mode, plain_kernels),
            (self._two_reverse_passes, plain_kernels),
        ]
        if self.rung not in self.trusted:
            _ = self.outputs  # errors of the model's own forward are the user's to see
        while self.rung < len(rungs):
            method, context = rungs[self.rung]
            try:
                with grad_mode(), untouched(self.network.model), context():
                    if self.rung in self.trusted | self._proved or self._proof(method):
                        return method(flat).detach()
            except TangentlabError:
                raise
            except (RuntimeError, NotImplementedError, TypeError):  # an operation without this kind of derivative
                pass
            self.rung += 1
        return self._one_gradient_per_output(flat)

    def _proof(self, method: Callable[[Tensor], Tensor]) -> bool:
        """Whether a rung is right on this batch. It is so on others too if every parameter took part in the proof."""
        if is_plain_chain(self.network, self.batch):
            self.trusted.add(self.rung)
            return True
        half = self.outputs.dtype.itemsize == 2
        if half and method == self._forward_mode and self._reads_parameters_elsewhere():
            return False
        gaps = [self._gap(method, draw) for draw in range(DRAWS_IN_HALF_PRECISION if half else 1)]
        error, gradient = (root_mean_square([getattr(gap, what) for gap in gaps]) for what in ("error", "gradient"))
        eps = torch.finfo(self.outputs.dtype).eps
        rounding = (
            0.0 if half else eps**0.75 * root_mean_square([gap.size for gap in gaps])
        )  # of a Jacobian that is no more
        allowed = eps**0.5 * gradient + rounding
        if error > allowed:
            allowed += OWN_NOISE * root_mean_square([gap.noise() for gap in gaps])
        if not error <= allowed:
            return False
        reached = set.intersection(*(gap.reached for gap in gaps))
        if gradient > rounding and reached == {*self.network.layout.names}:
            self.trusted.add(self.rung)
        self._proved.add(self.rung)
        return True

    def _reads_parameters_elsewhere(self) -> bool:
        """Whether the forward takes a parameter from a place of its own, where no tangent can be put beside it."""
        own = self.network.parameters()
        values: dict[str, Tensor] = {name: p.detach().clone().requires_grad_() for name, p in own.items()}
        with untouched(self.network.model):
            outputs = Caller(self.network).call(values, self.batch)
        return reaches(outputs, own.values())

    def _gap(self, method: Callable[[Tensor], Tensor], draw: int) -> _Gap:
        """By how much <u, J v> = <J^T u, v> is missed for random u and v. Both sides are about as large as J^T u is long."""
        outputs = self.outputs
        generator = torch.Generator(outputs.device).manual_seed(draw)
        layout, parameter = self.network.layout, next(iter(self.network.parameters().values()))
        v = torch.randn(layout.numel, generator=generator, dtype=parameter.dtype, device=parameter.device)
        u = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)

        def image(tangent: Tensor) -> Tensor:
            with untouched(self.network.model):  # the product that follows starts from the same attributes
                return method(tangent).detach()

        def missed(linear: Callable[[Tensor], Tensor], vector: Tensor, whole: Tensor) -> float:
            part = vector * random_weights(vector.shape, vector)
            return float((linear(part) + linear(vector - part) - whole).norm())

        pushed, pulled = image(v), self.vjp(u)
        error = float((u.double() * pushed.double()).sum() - (pulled.double() * v.double()).sum())
        reached = {name for name, part in layout.unflatten(pulled).items() if part.any() or not part.numel()}
        noise = lambda: missed(image, v, pushed) + missed(self.vjp, u, pulled)  # noqa: E731
        return _Gap(error, float(pulled.double().norm()), float(u.norm() * v.norm()), reached, noise)

    def _tangents(self, flat: Tensor) -> dict[str, Tensor]:
        """The pieces of a flat vector, each in its parameter's type."""
        pieces = self.network.layout.unflatten(flat)
        return {name: pieces[name].to(parameter.dtype) for name, parameter in self.network.parameters().items()}

    def _forward_mode(self, flat: Tensor) -> Tensor:
        parameters = {name: p.detach() for name, p in self.network.parameters().items()}
        caller = Caller(self.network)
        tangents = self._tangents(flat)
        with torch.no_grad():
            return torch.func.jvp(lambda values: caller.call(values, self.batch), (parameters,), (tangents,))[1]

    def _two_reverse_passes(self, flat: Tensor) -> Tensor:
        """u -> J^T u is linear; its transpose applied to v is J v. The graph of the first pass is kept."""
        if self._reverse is None:
            outputs = self.network(self.batch)
            dummy = torch.zeros_like(outputs, requires_grad=True)
            parameters = self.network.parameters()
            with without_hooks(parameters.values()):
                grads = torch.autograd.grad(
                    outputs, list(parameters.values()), dummy, create_graph=True, allow_unused=True
                )
            used = [(name, grad) for name, grad in zip(parameters, grads, strict=True) if grad is not None]
            self._reverse = dummy, [grad for _, grad in used], [name for name, _ in used]
        dummy, linear, names = self._reverse
        tangents = self._tangents(flat)
        (result,) = torch.autograd.grad(
            linear,
            dummy,
            [tangents[name] for name in names],
            retain_graph=True,
            materialize_grads=True,
            allow_unused=True,
        )
        return result

    def _one_gradient_per_output(self, flat: Tensor) -> Tensor:
        """<d y, v> for every output y of every example. Cost: as many gradients as there are outputs."""
        outputs = self.outputs
        result = torch.zeros(outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        for number in range(outputs.numel()):
            unit = torch.zeros_like(result)
            unit[number] = 1
            pulled = self.vjp(unit.reshape(outputs.shape))
            result[number] = pulled @ flat.to(pulled.dtype)
        return result.reshape(outputs.shape)


@dataclass(frozen=True)
class _Gap:
    """The difference of both sides of <u, J v> = <J^T u, v>, the length of J^T u, those of u and v multiplied, the parameters
    with a gradient in it, and by how much each side misses itself when it is taken in two parts, which is rounding."""

    error: float
    gradient: float
    size: float
    reached: set[str]
    noise: Callable[[], float]


def root_mean_square(numbers: list[float]) -> float:
    """sqrt(mean of squares)."""
    return math.sqrt(sum(number**2 for number in numbers) / len(numbers))


DRAWS_IN_HALF_PRECISION = 8
"""Random pairs whose gaps are put together where rounding is nearly as large as what a rung may miss."""

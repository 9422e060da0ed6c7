"""Second derivatives of a loss in the parameters: products, dense blocks, and Hessians in pre-activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import Batches
from tangentlab.engine.capture import Route, batched_grad, without_hooks
from tangentlab.engine.certificate import TOLERANCE, random_weights, verifies
from tangentlab.engine.fallback import Caller
from tangentlab.engine.forward_mode import plain_kernels
from tangentlab.engine.frozen import Keepsakes
from tangentlab.engine.groups import Group
from tangentlab.engine.losses import LossFunction, per_example
from tangentlab.engine.memory import require_memory
from tangentlab.engine.network import Network, grad_mode, require_finite
from tangentlab.engine.progress_bar import track
from tangentlab.engine.rows import Engine
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import ModelError, StructureError, TangentlabError
from tangentlab.layers.registry import WHOLE

_UNITS = 32
"""Unit vectors multiplied at a time when a block is written out."""


@dataclass(frozen=True)
class Preactivations:
    """One linear layer on one batch: homogeneous inputs (N, columns) and Hessians in its output (N, rows, rows)."""

    inputs: Tensor
    hessians: Tensor


class LossHessian:
    """H = 1/n sum_n d^2 loss_n / dw^2 of a network on data; symmetric, in general indefinite.

    A product differentiates the gradient once more in reverse mode; where an operation has no second derivative under the
    default kernels, plain kernels are tried, then forward mode over reverse mode, then an error names the operation. A way
    is trusted after <u, H v> = <v, H u> for random vectors: second derivatives of some operations of torch are wrong (those
    of `torch._weight_norm` among them), and then they are not symmetric.
    """

    def __init__(self, network: Network, data: Any, loss: LossFunction) -> None:
        self.network, self.loss = network, loss
        self.batches = Batches(data).replayable()
        self._rung = 0
        self._symmetric: set[int] = set()
        self._kept = Keepsakes(network.model)
        self.examples = 0
        for batch in self.batches:
            with grad_mode(), untouched(network.model):
                outputs = network(batch)
            network.dependence.note(outputs, network.parameters().values())
            require_finite(per_example(loss, outputs.detach(), batch), "The losses")
            self.examples += outputs.shape[0]
        network.dependence.require()

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, model and data stay as they are by promise, and gradients keep their graphs as far as memory allows."""
        return self._kept.scope()

    @property
    def layout(self) -> Any:
        """The parameters."""
        return self.network.layout

    @property
    def facts(self) -> dict[str, Any]:
        """What a matrix says about its origin."""
        return {"examples": self.examples, "likelihood": "Hessian of the loss"}

    def _tracked(self, what: str) -> Iterator[Any]:
        yield from track(self.batches, what, len(self.batches) or None, self.network.progress)

    # ------------------------------------------------------------------ products

    def product(self, flat: Tensor) -> Tensor:
        """H x for rows x (B, d). Cost: about four forward passes per row and batch."""
        total = torch.zeros_like(flat)
        for number, batch in enumerate(self._tracked("Hessian products")):
            total += self._climb(batch, number, partial(self._multiply, flat=flat, batch=batch))
        return total / self.examples

    def _climb(self, batch: Any, number: int, use: Callable[[Tensor | None], Tensor]) -> Tensor:
        """Call `use` with the flat gradient of the summed loss and its graph, on the first rung that carries it."""
        rungs: list[tuple[bool, Any]] = [(True, nullcontext), (True, plain_kernels), (False, plain_kernels)]
        problems = []
        while self._rung < len(rungs):
            reverse, context = rungs[self._rung]
            try:
                hooks = without_hooks(self.network.parameters().values())
                with grad_mode(), untouched(self.network.model), hooks, context():
                    gradient = self._kept_gradient(batch, number) if reverse else None
                    asymmetric = self._asymmetric(gradient, batch)
                    if not asymmetric:
                        return use(gradient).detach()
                problems.append(
                    f"the second derivatives that torch has for {asymmetric} are not symmetric, so they are wrong"
                )
            except TangentlabError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                problems.append((str(error).splitlines() or [type(error).__name__])[0])
            self._rung += 1
        self._rung = 0
        raise ModelError(
            f"No way to take second derivatives of this model: {' | '.join(problems)}. Replace that operation, or take "
            "GGN(...) or FIM(...), which need first derivatives only."
        )

    def _asymmetric(self, gradient: Tensor | None, batch: Any) -> str:
        """The name of a parameter whose block of H is not symmetric on this rung, or ''; looked at once per rung."""
        if self._rung in self._symmetric or not verifies(self.network):
            return ""
        example = next(iter(self.network.parameters().values())).detach()
        pair = random_weights((2, self.layout.numel), example)
        if not self._is_symmetric(pair, gradient, batch):
            for name, part in self.layout.slices.items():
                block = torch.zeros_like(pair)
                block[:, part] = pair[:, part]
                if not self._is_symmetric(block, gradient, batch):
                    return repr(name)
            return "its parameters"
        self._symmetric.add(self._rung)
        return ""

    def _is_symmetric(self, pair: Tensor, gradient: Tensor | None, batch: Any) -> bool:
        """Whether <u, H v> = <v, H u>, up to rounding."""
        images = self._multiply(gradient, pair, batch).detach().double()
        products = (pair.double() * images.flip(0)).sum(1)
        allowed = TOLERANCE.get(pair.dtype, 0.2) * float(images.norm(dim=1).sum())
        return not abs(float(products[0] - products[1])) > allowed

    def _kept_gradient(self, batch: Any, number: int) -> Tensor:
        """The gradient of a batch, one for all products inside `frozen()`; each rung has its own graph.

        The graph of a single batch is there in any case while a product is taken; more of them are kept where they fit.
        """
        name = f"gradient of batch {number} on rung {self._rung}"
        return self._kept.made_with_graph(name, partial(self._gradient, batch), alone=len(self.batches) == 1)

    def _gradient(self, batch: Any) -> Tensor:
        """Gradient of the summed loss, (d), with a graph."""
        parameters = self.network.parameters()
        total = per_example(self.loss, self.network(batch), batch).sum()
        grads = torch.autograd.grad(total, list(parameters.values()), create_graph=True, materialize_grads=True)
        return self.layout.flatten(dict(zip(parameters, grads, strict=True)))

    def _multiply(self, gradient: Tensor | None, flat: Tensor, batch: Any) -> Tensor:
        if gradient is None:
            return torch.stack([self._forward_over_reverse(vector, batch) for vector in flat])
        if not gradient.requires_grad:
            return torch.zeros_like(flat)
        parameters = self.network.parameters()
        rows = []
        for vector in flat.contiguous():  # a backward pass whose cotangent has strides takes up to twice as long
            grads = torch.autograd.grad(
                gradient, list(parameters.values()), vector, retain_graph=True, materialize_grads=True
            )
            rows.append(self.layout.flatten(dict(zip(parameters, grads, strict=True))))
        return torch.stack(rows)

    def _forward_over_reverse(self, vector: Tensor, batch: Any) -> Tensor:
        caller = Caller(self.network)
        parameters = {name: p.detach() for name, p in self.network.parameters().items()}

        def total(values: dict[str, Tensor]) -> Tensor:
            return per_example(self.loss, caller.call(values, batch), batch).sum()

        tangents = self.layout.unflatten(vector)
        product = torch.func.jvp(torch.func.grad(total), (parameters,), (tangents,))[1]
        return self.layout.flatten(product)

    # ------------------------------------------------------------------ dense blocks

    def blocks(self, names: Sequence[tuple[str, ...]]) -> list[Tensor]:
        """Dense diagonal blocks over the named parameters, (d_b, d_b) each: one product per column."""
        sizes = [sum(torch.Size(self.layout.shapes[name]).numel() for name in some) for some in names]
        example = next(iter(self.network.parameters().values())).detach()
        require_memory(
            sum(size**2 for size in sizes) * example.element_size(),
            f"Dense Hessian blocks (the largest over {max(sizes):,} parameters)",
            "representation=PMatImplicit stores nothing; layers= selects fewer parameters.",
        )
        totals = [example.new_zeros((size, size)) for size in sizes]
        for number, batch in enumerate(self._tracked("Hessian blocks")):
            for total, some in zip(totals, names, strict=True):
                total += self._climb(batch, number, partial(self._block, names=some, batch=batch))
        return [(total + total.t()) / (2 * self.examples) for total in totals]

    def _block(self, gradient: Tensor | None, names: tuple[str, ...], batch: Any) -> Tensor:
        """Rows of a block: units times the part of the gradient, differentiated in the same parameters."""
        slices, parameters = self.layout.slices, self.network.parameters()
        index = torch.cat([torch.arange(slices[name].start, slices[name].stop) for name in names])
        if gradient is None:
            example = next(iter(parameters.values())).detach()
            return torch.cat([self._forward_columns(some, index, example, batch) for some in index.split(_UNITS)])
        if not gradient.requires_grad or not len(index):
            return gradient.new_zeros((len(index), len(index)))
        part = gradient[index.to(gradient.device)]
        own = [parameters[name] for name in names]
        rows = []
        for units in torch.eye(len(index), dtype=part.dtype, device=part.device).split(_UNITS):
            grads = batched_grad(part, own, units)
            shapes = [(len(units), p.numel()) for p in own]
            rows.append(
                torch.cat(
                    [part.new_zeros(s) if g is None else g.reshape(s) for g, s in zip(grads, shapes, strict=True)], 1
                )
            )
        return torch.cat(rows)

    def _forward_columns(self, some: Tensor, index: Tensor, example: Tensor, batch: Any) -> Tensor:
        """Some rows of a block by forward mode over reverse mode, which gives all parameters at once."""
        units = example.new_zeros((len(some), self.layout.numel))
        units[range(len(some)), some] = 1
        return self._multiply(None, units, batch)[:, index]

    # ------------------------------------------------------------------ pre-activations

    def preactivations(self) -> Iterator[dict[Group, Preactivations]]:
        """Inputs and Hessians in the outputs of every layer s = W a, batch by batch.

        With nothing else depending on W, d^2 loss / dW^2 = (d^2 loss / ds^2) (x) a a^T for every example: the layer's block
        of H is the mean of these Kronecker products, exactly. Cost: one backward per output unit.
        """
        engine = Engine(self.network)
        for batch in self._tracked("pre-activation Hessians"):
            sweep = engine.sweep(batch)
            with grad_mode(), untouched(self.network.model):
                total = per_example(self.loss, sweep.outputs, batch).sum()
                yield {route.group: self._preactivation(route, total) for route in sweep.routes}

    def _preactivation(self, route: Route, total: Tensor) -> Preactivations:
        refusal = StructureError(
            f"The Hessian of {', '.join(route.group.names)} is not a sum of one Kronecker product per example: this needs "
            "linear layers that are used once per example. Take PMatBlockDiag, or layers= without it."
        )
        if len(route.uses) != 1:
            raise refusal
        (use,) = route.uses
        edge, shape = use.call.edge, use.call.output_shape

        def by_example(grads: Tensor) -> Tensor:
            whole = grads.reshape(shape)
            return (whole[None] if use.axis == WHOLE else whole.movedim(use.axis, 0)).flatten(1)

        (gradient,) = torch.autograd.grad(total, [edge], create_graph=True)
        factor = use.outer(gradient.detach().reshape(1, *shape), gradient.dtype)
        units = by_example(gradient)
        if not factor.is_single_product or not torch.equal(factor.left[0, :, 0, 0], units):
            raise refusal
        hessians = units.new_zeros((*units.shape, units.shape[1]))
        if gradient.requires_grad:
            for unit in range(units.shape[1]):
                (row,) = torch.autograd.grad(units[:, unit].sum(), [edge], retain_graph=True, materialize_grads=True)
                hessians[:, unit] = by_example(row)
        inputs = factor.homogeneous()[0, :, 0, 0]
        return Preactivations(inputs.detach(), (hessians + hessians.transpose(1, 2)).detach() / 2)

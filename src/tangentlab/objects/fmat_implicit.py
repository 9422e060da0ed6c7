"""FMatImplicit: a tangent kernel that is never stored; every product is a backward and a forward derivative."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.frozen import all_frozen, frozen_inside
from tangentlab.engine.memory import memory_budget
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import Unweighted
from tangentlab.errors import InputError
from tangentlab.linalg import in_batches
from tangentlab.objects.fmat import FMat, center_kernel
from tangentlab.objects.fvector import FVector, centred
from tangentlab.objects.maps import PullBackImplicit, PushForwardImplicit
from tangentlab.objects.matrix_free import HoldsModel


class FMatImplicit(HoldsModel, FMat):
    """K u = J (J^T u): one vector-Jacobian and one Jacobian-vector product per batch; J' on the right for a cross kernel.

    Memory: the activations of one batch and one parameter vector. Diagonal and trace are exact sums over streamed
    gradients; `solve` runs conjugate gradients, `top_eigenpairs` Lanczos. With trace=True the kernel is summed over outputs,
    at one product per output. It holds the model, so it cannot be pickled; it describes the model as it is now, and keeps
    nothing from one call to the next except inside `with K.frozen():`.
    """

    def __init__(
        self,
        network: Network,
        data: Any,
        data2: Any = None,
        *,
        trace: bool = False,
        center: str | None = None,
    ) -> None:
        self._rows = Rows(network, data, Unweighted(), ordered=True)
        self._other = None if data2 is None else Rows(network, data2, Unweighted(), ordered=True)
        self._trace, self._center = trace, center
        self._left, self._all_outputs = self._rows.sizes()
        self._right = self._left if self._other is None else self._other.sizes()[0]
        self._push, self._pull = PushForwardImplicit(self._rows), PullBackImplicit(self._other or self._rows)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(outputs, examples, outputs', examples')."""
        outputs = 1 if self._trace else self._all_outputs
        return outputs, self._left, outputs, self._right

    @property
    def is_cross(self) -> bool:
        """Whether the examples on the right are others."""
        return self._other is not None

    def _example(self) -> Tensor:
        return next(iter(self._rows.network.parameters().values())).detach()

    def gram_bytes(self) -> int:
        """Memory of the same kernel as a matrix."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2] * self.sizes[3] * self._example().element_size()

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, products may keep what they compute for the next: you promise that model and data stay as they are."""
        return all_frozen([self._rows, self._other or self._rows])

    @frozen_inside
    def _product(self, flat: Tensor) -> Tensor:
        """Centred on both sides if asked for; as many vectors at a time as their images in parameter space fit."""
        size = self._rows.network.layout.numel * flat.element_size()
        batched = in_batches(self._plain_product, max(1, int(memory_budget() // (8 * size))))
        return _centred(batched(_centred(flat, self.sizes[2:], self._center)), self.sizes[:2], self._center)

    def _plain_product(self, flat: Tensor) -> Tensor:
        u = flat.unflatten(-1, self.sizes[2:])
        if not self._trace:
            return self._factor * self._push.mv(self._pull.mv(FVector(u))).flat
        total = flat.new_zeros((len(flat), self._left))
        for output in range(self._all_outputs):
            spread = torch.zeros((len(flat), self._all_outputs, self._right), dtype=flat.dtype, device=flat.device)
            spread[:, output] = u[:, 0]
            total += self._push.mv(self._pull.mv(FVector(spread))).data[:, output]
        return self._factor * total

    @frozen_inside
    def diag(self) -> FVector:
        """|J_cn|^2 from streamed gradients; the means of a centred kernel by one product per output."""
        if self.is_cross:
            raise InputError(f"A diagonal needs a square kernel, this one is {self.sizes}.")
        squares = torch.cat(list(self._squared_norms()), 1)
        squares = self._factor * (squares.sum(0, keepdim=True) if self._trace else squares)
        if self._center is None:
            return FVector(squares)
        outputs, examples = self.sizes[:2]
        if self._center == "global":
            means = self._plain_product(squares.new_ones((1, squares.numel()))).reshape(squares.shape) / squares.numel()
            return FVector(squares - 2 * means + means.mean())
        ones = torch.eye(outputs, dtype=squares.dtype, device=squares.device).repeat_interleave(examples, 1)
        images = self._plain_product(ones).reshape(outputs, outputs, examples) / examples
        means = images[torch.arange(outputs), torch.arange(outputs)]
        return FVector(squares - 2 * means + means.mean(1, keepdim=True))

    def _squared_norms(self) -> Iterator[Tensor]:
        """(outputs, N) of every batch."""
        parts: list[Tensor] = []
        for chunk in self._rows:
            if chunk.first and parts:
                yield torch.cat(parts)
                parts = []
            parts.append(torch.stack([factor.squared_norms() for factor in chunk.factors.values()]).sum(0))
        yield torch.cat(parts)

    def tensor(self) -> Tensor:
        """(outputs, examples, outputs', examples') by the engine's closed forms, without a product."""
        from tangentlab.engine.tangent_kernel import tangent_kernel

        other = None if self._other is None else self._other.batches
        kernels = tangent_kernel(
            self._rows.network, self._rows.batches, other, Unweighted(), self._trace, lambda group: ""
        )
        data = kernels[""] if not self._trace else kernels[""][None, :, None, :]
        data = self._factor * data
        return data if self._center is None else center_kernel(data, self._center)

    def __repr__(self) -> str:
        outputs, examples, _, columns = self.sizes
        return f"FMatImplicit(outputs = {outputs}, examples = {examples} x {columns}, {self._example().dtype})"


def _centred(flat: Tensor, shape: tuple[int, int], center: str | None) -> Tensor:
    """Subtract the mean over examples of each output, or over everything."""
    if center is None:
        return flat
    return centred(flat.unflatten(-1, shape), center).flatten(-2)

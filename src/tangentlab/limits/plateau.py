"""Circuits as networks: every gate a unit with flat activations, every wire a weighted edge, all weights one parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.engine.memory import memory_budget, require_memory
from tangentlab.errors import InputError, ModelError
from tangentlab.limits.circuits import Circuit, Signal
from tangentlab.limits.wiring import Wiring


class PlateauNetwork(nn.Module):
    """A weighted graph without cycles: n + 1 roots, plateau units, linear outputs.

    Its one parameter `weight` holds one number for every edge. Units are flat at the operating points of a circuit, so that
    their edges have no gradient at all, and small changes of their weights change no value.

    Args:
        wiring: from `compile_circuit`, or from a `Circuit` of one's own units.
        dtype: of the weights.
    """

    def __init__(self, wiring: Wiring, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.wiring = wiring
        self.weight = nn.Parameter(torch.from_numpy(wiring.weights).to(dtype, copy=True))

    def extra_repr(self) -> str:
        """Its size."""
        size = self.size
        return ", ".join(f"{size[key]} {key}" for key in size)

    @property
    def size(self) -> dict[str, int]:
        """Inputs, units (the outputs left out), edges and levels."""
        wiring = self.wiring
        units = len(wiring.offsets) - wiring.outputs
        return {"inputs": wiring.n, "gates": units, "edges": len(self.weight), "levels": len(wiring.levels)}

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs at `(m, n)`: `(m,)` of a network with one output, else `(m, outputs)`. Cost: `2 m edges`."""
        wiring = self.wiring
        if inputs.ndim != 2 or inputs.shape[1] != wiring.n:
            raise InputError(f"Inputs of this network are (m, {wiring.n}), got shape {tuple(inputs.shape)}.")
        if self.weight.device.type != "cpu":
            raise ModelError("Plateau networks run on the CPU: call .cpu().")
        keeps = torch.is_grad_enabled() and (self.weight.requires_grad or inputs.requires_grad)
        per_input = wiring.nodes * self.weight.element_size() * (2 if keeps else 1)
        require_memory(
            per_input * len(inputs), f"{len(inputs)} inputs of {self.size['gates']} gates", "Use a smaller batch."
        )
        outputs = _Pass.apply(inputs.to(self.weight.dtype), self.weight, wiring, keeps)[0]
        return outputs[:, 0] if wiring.outputs == 1 else outputs

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """`forward` without gradients, in pieces that fit in memory and in the cache."""
        each = self.wiring.nodes * self.weight.element_size()
        size = max(1, min(256, memory_budget() // (4 * each)))
        return torch.cat([self(piece) for piece in inputs.split(size)])


def compile_circuit(
    circuit: Circuit, outputs: Signal | Sequence[Signal], dtype: torch.dtype = torch.float64
) -> PlateauNetwork:
    """The network of a circuit: its outputs at inputs of -1 and 1 are -1 (false) and 1 (true).

    Size: as many units and edges as the circuit has, and one linear node for each output.
    """
    chosen = [outputs] if isinstance(outputs, Signal) else list(outputs)
    if not chosen or any(signal.circuit is not circuit for signal in chosen):
        raise InputError("A network has at least one output, and outputs are signals of the circuit.")
    return PlateauNetwork(circuit.wiring([([signal], [1.0]) for signal in chosen]), dtype)


class _Pass(torch.autograd.Function):
    """Both passes over a wiring, in numpy: one call instead of a graph of thousands of small tensors."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, wiring: Wiring, keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
        values, slopes = wiring.forward(inputs.detach().numpy(), weight.detach().numpy(), keeps)
        outputs = torch.from_numpy(np.ascontiguousarray(values[wiring.nodes - wiring.outputs :].T))
        if slopes is None:
            return outputs, weight.new_empty(0), weight.new_empty(0)
        return outputs, torch.from_numpy(values), torch.from_numpy(slopes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, ctx.wiring, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = _Gradient.apply(gradients[0], *ctx.saved_tensors, ctx.wiring)
        return *found, None, None


class _Gradient(torch.autograd.Function):
    """The pass back, as a function of its own, so that many output-gradients can be sent through one forward."""

    @staticmethod
    def forward(
        gradient: Tensor, weight: Tensor, values: Tensor, slopes: Tensor, wiring: Wiring
    ) -> tuple[Tensor, Tensor]:
        arrays = (tensor.detach().numpy() for tensor in (gradient, values, slopes, weight))
        inputs, weights = wiring.backward(*arrays)
        return torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ModelError("Plateau networks have first derivatives only: they are piecewise linear in each unit.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        parts = []
        for k in range(info.batch_size):
            own = [a if d is None else a.select(d, k) for a, d in zip(arguments, in_dims, strict=True)]
            parts.append(_Gradient.apply(*own))
        return (torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])), (0, 0)

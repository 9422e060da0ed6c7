"""The slow, obvious truth: one backward pass per output and example, written out."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.feeding import call_model


def dense_jacobian(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None = None) -> Tensor:
    """(outputs, examples, d) over the trainable parameters in the order of `named_parameters()`."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        outputs = (forward or call_model)(model, batch)
        outputs = outputs.reshape(outputs.shape[0], -1)
        rows = [
            [
                torch.autograd.grad(outputs[n, k], parameters, retain_graph=True, allow_unused=True)
                for n in range(len(outputs))
            ]
            for k in range(outputs.shape[1])
        ]
    return torch.stack([torch.stack([_flat(grads, parameters) for grads in line]) for line in rows])


def _flat(grads: Any, parameters: list[nn.Parameter]) -> Tensor:
    dense = [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(grads, parameters)]
    return torch.cat([g.flatten() for g in dense])


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Largest deviation over the largest entry of the truth."""
    assert found.shape == truth.shape
    return float((found - truth).abs().max() / truth.abs().max().clamp_min(1e-300))

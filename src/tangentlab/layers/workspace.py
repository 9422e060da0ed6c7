"""Memory for intermediate results that is used again from layer to layer."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Memory for intermediate results, used again from layer to layer: fresh pages cost as much as the work done in them.

    limit: bytes that the rows of a layer may take at once.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialized tensor; the last one taken under the same name is overwritten."""
        numel = torch.Size(shape).numel()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < numel or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[name] = like.new_empty(numel)
        return buffer[:numel].view(shape)

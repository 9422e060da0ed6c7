"""Whether a forward draws random numbers: the states of the generators before and after it."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Where the random generators of torch, of Python and of numpy stand. Cost: some ten microseconds."""

    torch_states: list[Tensor]
    python_state: tuple[Any, ...]
    numpy_state: Any

    @classmethod
    def now(cls) -> RandomState:
        """The states as they are; those of CUDA and of numpy once somebody has used them."""
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = sys.modules.get("numpy.random")
        return cls([torch.get_rng_state(), *on_cuda], random.getstate(), numpy.get_state() if numpy else None)

    def drawn(self) -> str:
        """Whose generator has been used since, or ''."""
        now = RandomState.now()
        if not all(map(torch.equal, self.torch_states, now.torch_states)):
            return "torch"
        if self.python_state != now.python_state:
            return "Python"
        if self.numpy_state is None:
            return ""
        keys = self.numpy_state[1], now.numpy_state[1]
        return "" if self.numpy_state[2:] == now.numpy_state[2:] and (keys[0] == keys[1]).all() else "numpy"

    def restore(self) -> None:
        """Set the generators back."""
        torch.set_rng_state(self.torch_states[0])
        if len(self.torch_states) > 1:
            torch.cuda.set_rng_state_all(self.torch_states[1:])
        random.setstate(self.python_state)
        if self.numpy_state is not None:
            sys.modules["numpy.random"].set_state(self.numpy_state)

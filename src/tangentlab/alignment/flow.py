"""The path of the parameters through training, as C(f) needs it: its length and displacements between snapshots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError


class Flow:
    """`C(f) = sum_t |dw_t| sqrt(tr K_s)`, with s the last snapshot before step t that could measure the trace.

    Two variants (B4 of the paper's code):

    * `complexity`: every step counts with its own length;
    * `complexity_between_logs`: only the displacement between snapshots counts, never more than the first.

    The path is that of the parameters in `layers` (as in `NTK`; None: all) that are trainable when a step is taken; a
    parameter that becomes trainable later joins then. Nothing is read back from the device before a snapshot. Memory: three
    copies of these parameters. Cost of a step: a few passes over them.
    """

    def __init__(self, layers: Any = None) -> None:
        self._layers = layers
        self._trainable: tuple[str, ...] = ()
        self._chosen: set[str] = set()
        self.complexity = self.complexity_between_logs = self.path_length = 0.0
        self.feature_norm = 0.0
        self._before: dict[str, Tensor] = {}
        self._logged: dict[str, Tensor] = {}
        self._start: dict[str, Tensor] = {}
        self._pending: Tensor | None = None

    def begin(self, model: nn.Module) -> None:
        """Take the parameters down before the first step: the way is counted from here."""
        self.complexity = self.complexity_between_logs = self.path_length = self.feature_norm = 0.0
        self._pending = None
        for table in (self._before, self._logged, self._start):
            table.clear()
        self._join(self._parameters(model))

    def step(self, model: nn.Module) -> None:
        """Add the length of the step that was just taken."""
        now = self._parameters(model)
        self._join(now)
        names = list(now)
        if not names:
            return
        values, before = [now[name] for name in names], [self._before[name] for name in names]
        length = _norm(torch._foreach_sub(values, before))
        torch._foreach_copy_(before, values)
        self._pending = length if self._pending is None else self._pending + length

    def log(self, model: nn.Module) -> dict[str, float]:
        """Settle the way since the last snapshot, with the trace that was known there."""
        self._join(self._parameters(model))
        found = self.so_far()
        self.path_length, _, self.complexity, self.complexity_between_logs = found.values()
        self._pending = None
        for name, value in self._before.items():
            self._logged[name].copy_(value)
        return found

    def so_far(self) -> dict[str, float]:
        """All numbers at the last step; nothing is settled."""
        length = 0.0 if self._pending is None else float(self._pending)
        return {
            "path_length": self.path_length + length,
            "distance_from_start": self._distance(self._start),
            "complexity": self.complexity + length * self.feature_norm,
            "complexity_between_logs": self.complexity_between_logs + self._distance(self._logged) * self.feature_norm,
        }

    def state_dict(self) -> dict[str, Any]:
        """All of it, as copies that training on does not change."""
        numbers = (self.complexity, self.complexity_between_logs, self.path_length, self.feature_norm)
        pending = 0.0 if self._pending is None else float(self._pending)
        return {"numbers": [*numbers, pending], "logged": _copies(self._logged), "start": _copies(self._start)}

    def load_state_dict(self, state: dict[str, Any], model: nn.Module) -> None:
        """Go on with a model whose parameters are those of the checkpoint."""
        *numbers, pending = state["numbers"]
        self.complexity, self.complexity_between_logs, self.path_length, self.feature_norm = numbers
        here = dict(model.named_parameters())
        self._before = {name: here[name].detach().clone() for name in state["logged"]}
        self._logged = {name: value.to(here[name]).clone() for name, value in state["logged"].items()}
        self._start = {name: value.to(here[name]).clone() for name, value in state["start"].items()}
        self._pending = torch.tensor(pending, dtype=torch.float64)

    def _parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """Those whose path is looked at, by name."""
        trainable = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
        if self._layers is None:
            return trainable
        if tuple(trainable) != self._trainable:
            self._trainable = tuple(trainable)
            self._chosen |= _selected(model, self._layers)
        return {name: value for name, value in trainable.items() if name in self._chosen}

    def _join(self, now: dict[str, Tensor]) -> None:
        for name, value in now.items():
            known = self._before.get(name)
            if known is None or known.device != value.device or known.dtype != value.dtype:
                for table in (self._before, self._logged, self._start):
                    table[name] = value.clone() if known is None else table[name].to(value)

    def _distance(self, origin: dict[str, Tensor]) -> float:
        names = list(origin)
        differences = [self._before[name] - origin[name] for name in names]
        return float(_norm(differences)) if differences else 0.0


def _selected(model: nn.Module, layers: Any) -> set[str]:
    """Names of the trainable parameters that are meant; none where a selection fails, since its layer is frozen now."""
    try:
        return set(LayerCollection.from_model(model, layers).names)
    except InputError:
        return set()


def _copies(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in table.items()}


def _norm(parts: Any) -> Tensor:
    """Euclidean norm of all entries, in float64 on the device of the first."""
    norms = torch._foreach_norm(list(parts))
    return torch.stack([norm.double().to(norms[0].device) for norm in norms]).norm()

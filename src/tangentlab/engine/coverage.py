"""What the engine does with a model: which parameters have a closed form, and which take the exact route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import nn

from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import Engine


@dataclass(frozen=True)
class CoverageRow:
    """One group of parameters: names, size, module type, route and reason."""

    names: tuple[str, ...]
    numel: int
    kind: str
    route: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """The table of `coverage(model, x)`; printing it shows every parameter."""

    rows: tuple[CoverageRow, ...]

    @property
    def structured_fraction(self) -> float:
        """Share of the parameters that have a closed form."""
        total = sum(row.numel for row in self.rows)
        return sum(row.numel for row in self.rows if row.route == "structured") / total

    def __str__(self) -> str:
        lines = [(", ".join(r.names), f"{r.numel:,}", r.kind, r.route, r.reason) for r in self.rows]
        table = [("parameters", "number", "module", "route", "reason"), *lines]
        widths = [max(len(line[i]) for line in table) for i in range(4)]
        text = ["  ".join(c.ljust(w) for c, w in zip(line, [*widths, 0], strict=True)).rstrip() for line in table]
        return "\n".join([*text, f"{100 * self.structured_fraction:.1f} % of the parameters have a closed form."])


@spelled_out
def coverage(
    model: nn.Module,
    x: Any,
    **options: Unpack[Options],
) -> Coverage:
    """Which route every parameter takes on a batch x, with the reason wherever it is the exact fallback."""
    network = Network.of(model, **options)
    sweep = Engine(network).sweep(x)
    modules = dict(model.named_modules())
    rows = []
    for route in sweep.routes:
        numel = sum(torch.Size(network.layout.shapes[name]).numel() for name in route.group.names)
        kind = type(modules[route.group.names[0].rpartition(".")[0]]).__name__
        unused = route.structured and not route.uses
        name = "unused" if unused else "structured" if route.structured else "fallback"
        rows.append(CoverageRow(route.group.names, numel, kind, name, route.reason))
    return Coverage(tuple(rows))

"""What the engine does with a model: which parameters have a closed form, which take the exact route, and a proof."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tangentlab.engine.batches import plain_batch
from tangentlab.engine.capture import gradients
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.network import Forward, Network, OutputFunction, grad_mode, require_finite, require_module
from tangentlab.engine.snapshot import untouched
from tangentlab.engine.sweep import Engine
from tangentlab.errors import ModelError, NumericsError


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


def coverage(
    model: nn.Module,
    x: Any,
    *,
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    verify: bool = True,
) -> Coverage:
    """Which route every parameter takes on a batch x, with the reason wherever it is the exact fallback."""
    network = Network.of(model, layers, forward, function, verify)
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


@dataclass(frozen=True)
class CheckReport:
    """Largest relative error of the engine's Jacobian rows against plain autograd, overall and per group."""

    error: float
    errors: dict[tuple[str, ...], float]
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every group agrees."""
        return self.error <= self.tolerance


def check(
    model: nn.Module,
    x: Any,
    *,
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    tolerance: float = 1e-10,
    max_outputs: int = 4,
) -> CheckReport:
    """Compare the engine with plain autograd in float64, on a copy of the model, for a few outputs of every example.

    Raises NumericsError with the parameters at fault if they disagree by more than `tolerance` relative to the largest
    gradient of the group (or to a thousandth of the largest of all, and to 1e-5, where gradients cancel to nothing).
    """
    require_module(model)
    with grad_mode():
        double = _copy(model).double()
    x = tree_map(_double, plain_batch(x))
    layout = layers if isinstance(layers, LayerCollection) else LayerCollection.from_model(model, layers)
    network = Network.of(double, layout, forward, function)
    _require_double(network, x)
    sweep = Engine(network).sweep(x)
    network.dependence.require()
    size = sweep.output_size
    chosen = sorted({round(i * (size - 1) / max(max_outputs - 1, 1)) for i in range(min(max_outputs, size))})
    eye = torch.eye(size, dtype=torch.float64, device=sweep.outputs.device)[chosen]
    cotangents = eye[:, None].expand(-1, sweep.examples, -1).reshape(len(chosen), *sweep.outputs.shape)
    factors = {group: factor for group, factor in sweep.factors(cotangents).items() if factor.numel}
    worst = dict.fromkeys(factors, (0.0, 0.0))
    with grad_mode(), untouched(double):
        outputs = network(x)
    for n in range(sweep.examples):
        with grad_mode():
            truth = _plain_gradients(outputs[n], network.parameters(), cotangents[:, n])
        for group, factor in factors.items():
            rows = factor.take_examples(n, n + 1).rows()[:, 0]
            true = torch.cat([truth[name] for name in group.names], 1)
            require_finite(true, f"The gradients of {', '.join(group.names)}")
            found = float((rows - true).abs().nan_to_num(nan=torch.inf).max()), float(true.abs().max())
            worst[group] = max(worst[group][0], found[0]), max(worst[group][1], found[1])
    floor = max(1e-3 * max(scale for _, scale in worst.values()), 1e-5)
    errors = {group.names: wrong / max(scale, floor) for group, (wrong, scale) in worst.items()}
    report = CheckReport(max(errors.values()), errors, tolerance)
    if not report.passed:
        wrong = ", ".join(f"{'/'.join(names)} ({error:.1e})" for names, error in errors.items() if error > tolerance)
        raise NumericsError(f"The engine disagrees with plain autograd on: {wrong}. Please report this model.")
    return report


def _require_double(network: Network, x: Any) -> None:
    """A forward in float64, where models that fix the type of their activations fail."""
    try:
        network.values(x)
    except RuntimeError as error:
        if "type" not in str(error):
            raise
        raise ModelError(
            f"`check` compares in float64, and this model does not run in float64 ({str(error).splitlines()[0]}): it fixes "
            "the type of some activations, as by .float() or .to(dtype). Let them follow the parameters, "
            "as in x.to(self.weight.dtype), or compare a copy of the model that does."
        ) from error


def _plain_gradients(outputs: Tensor, parameters: dict[str, nn.Parameter], cotangents: Tensor) -> dict[str, Tensor]:
    """Gradients (K, numel) of one example by K ordinary backward passes, nothing batched and nothing clever."""
    rows = [gradients(outputs, list(parameters.values()), cotangent) for cotangent in cotangents]
    columns = zip(parameters.items(), zip(*rows, strict=True), strict=True)
    return {
        name: torch.stack([(torch.zeros_like(p) if g is None else g).flatten() for g in column])
        for (name, p), column in columns
    }


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy, also of modules that hold computed tensors (weight_norm keeps its weight as an attribute)."""
    computed = [
        t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor) and not t.is_leaf
    ]
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed})


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

"""A proof of what the engine does with a model: its rows against plain autograd in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Part, tensor_of, with_parts
from tangentlab.engine.capture import gradients
from tangentlab.engine.certificate import (
    OWN_NOISE,
    examples_depend_on_each_other,
    largest_of_all,
    own_noise,
    plain_gradient,
    random_weights,
)
from tangentlab.engine.graph import reaches, read_graph
from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.network import Network, Options, grad_mode, require_finite, require_module, spelled_out
from tangentlab.engine.progress_bar import track
from tangentlab.engine.router import MIXED
from tangentlab.engine.rows import Engine, Sweep, chunk_size
from tangentlab.engine.snapshot import untouched
from tangentlab.engine.weightings import unit_cotangents
from tangentlab.errors import ModelError, NumericsError, TangentlabError
from tangentlab.layers import OuterSum

_EXAMPLES = 16
"""Examples whose rows are compared one by one."""
_SPLITS = 4
"""Ways of splitting a gradient in two parts, whose sum shows the rounding of plain autograd."""


@dataclass(frozen=True)
class CheckReport:
    """Largest relative error of the engine's Jacobian rows against plain autograd, overall and per group.

    Attributes:
        sample: how many outputs were compared row by row.
        outputs: how many there are; the others are in the random combinations.
    """

    error: float
    errors: dict[tuple[str, ...], float]
    tolerance: float
    sample: int
    outputs: int

    @property
    def passed(self) -> bool:
        """Whether every group agrees."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        verdict = "agrees" if self.passed else "disagrees"
        seen = f"{self.sample:,} of {self.outputs:,} outputs row by row, all in random combinations"
        return f"The engine {verdict} with plain autograd: largest relative error {self.error:.1e} ({seen})."


@spelled_out
def check(
    model: nn.Module,
    x: Any,
    *,
    tolerance: float = 1e-10,
    max_outputs: int = 4,
    **options: Unpack[Options],
) -> CheckReport:
    """Compare the engine with plain autograd in float64, on a copy of the model.

    A few outputs of up to 16 examples, spread over the batch, are compared row by row; all outputs of all examples by random
    combinations of their rows, which make one plain gradient and show every wrong row. What rounding does to plain autograd
    itself, as in networks that compute partly in single precision, is not a disagreement. Cost: up to 16 `max_outputs` + 25
    plain gradients of the batch.

    Raises NumericsError with the parameters at fault if they disagree by more than `tolerance` relative to the largest
    gradient of the group (or to a thousandth of the largest of all, and to 1e-5, where gradients cancel to nothing).
    """
    require_module(model)
    with grad_mode(), torch.no_grad():
        double = _copy(model).double()
    given, x = x, with_parts(x, _double)
    options["layers"] = LayerCollection.of(model, options.get("layers"))
    network = Network.of(double, **options)
    _require_double(network, x, model, given)
    if reaches(_outputs(network, x), model.parameters()):
        raise ModelError(_ORIGINAL)
    sweep = Engine(network).sweep(x)
    network.dependence.require()
    sample = _spread(sweep.output_size, max_outputs)
    worst = _Comparison(sweep, sample).differences()
    floor = max(1e-3 * max(scale for _, scale in worst.values()), 1e-5)
    errors = {group.names: wrong / max(scale, floor) for group, (wrong, scale) in worst.items()}
    report = CheckReport(max(errors.values()), errors, tolerance, len(sample), sweep.output_size)
    if not report.passed:
        if examples_depend_on_each_other(network, x, sweep.outputs, tolerance):
            raise ModelError(MIXED)
        wrong = ", ".join(f"{'/'.join(names)} ({error:.1e})" for names, error in errors.items() if error > tolerance)
        raise NumericsError(f"The engine disagrees with plain autograd on: {wrong}. Please report this model.")
    return report


_ORIGINAL = (
    "`check` compares on a copy of the model, and this copy computes with parameters of the original: a forward that was set "
    "on an instance, or a function that holds a layer, is not copied. Make it a method of the module's class."
)


def _outputs(network: Network, x: Any) -> Tensor:
    with grad_mode(), untouched(network.model):
        outputs = network(x)
    read_graph(outputs)
    return outputs


def _spread(size: int, most: int) -> list[int]:
    """Up to `most` numbers below `size`, the first and the last among them."""
    count = min(most, size)
    return sorted({round(i * (size - 1) / max(count - 1, 1)) for i in range(count)})


Factors = dict[Group, OuterSum]


class _Comparison:
    """Rows of the engine beside gradients of a forward of its own.

    The cotangents (K, N, ...) are some outputs, and a random mixture of all of them; every row has a random weight in the
    combination of all.
    """

    def __init__(self, sweep: Sweep, outputs: list[int]) -> None:
        self.sweep, self.parameters = sweep, sweep.engine.network.parameters()
        self.outputs = _outputs(sweep.engine.network, sweep.batch)
        mixture = random_weights((1, *self.outputs.shape), self.outputs)
        self.cotangents = torch.cat([unit_cotangents(self.outputs, outputs), mixture])
        self.weights = random_weights((len(self.cotangents), sweep.examples), self.outputs)
        self.combined: dict[Group, Tensor] = {}
        self.worst: dict[Group, tuple[float, float]] = {}

    def differences(self) -> dict[Group, tuple[float, float]]:
        """(largest difference, largest gradient of a row) of every group."""
        examples = _spread(self.sweep.examples, _EXAMPLES)
        step = chunk_size(self.sweep, len(self.cotangents))
        total = len(examples) * -(-len(self.cotangents) // step)
        for n, some, factors in track(self._pieces(examples, step), "check", total, self.sweep.engine.network.progress):
            with grad_mode():
                truth = _plain_gradients(self.outputs[n], self.parameters, self.cotangents[some, n])
            for group, factor in factors.items():
                true = torch.cat([truth[name] for name in group.names], 1)
                self._compare(group, factor.take_examples(n, n + 1).rows()[:, 0], true, 1.0)
        together = torch.einsum("kn,kn...->n...", self.weights, self.cotangents)
        with grad_mode():
            sums = plain_gradient(self.outputs, self.parameters, together)
            parts = [self._noise(together, sums, draw) for draw in range(_SPLITS)]
        rows = self.weights.numel() ** 0.5
        for group, found in self.combined.items():
            self._compare(group, found, torch.cat([sums[name].flatten() for name in group.names]), rows)
            rounding = (
                OWN_NOISE / rows * max(float(noise[n].max()) for noise in parts for n in group.names if len(noise[n]))
            )
            wrong, scale = self.worst[group]
            self.worst[group] = max(wrong - rounding, 0.0), scale
        return self.worst

    def _noise(self, cotangent: Tensor, sums: dict[str, Tensor], draw: int) -> dict[str, Tensor]:
        noise = own_noise(self.outputs, self.parameters, cotangent, sums, largest_of_all(sums), draw)
        return {name: part.flatten() for name, part in noise.items()}

    def _pieces(self, examples: list[int], step: int) -> Iterator[tuple[int, slice, Factors]]:
        """(example, cotangents, factors), as many cotangents at a time as fit in memory."""
        for start in range(0, len(self.cotangents), step):
            some = slice(start, start + step)
            factors = {g: factor for g, factor in self.sweep.factors(self.cotangents[some]).items() if factor.numel}
            for group, factor in factors.items():
                pulled = factor.pull(self.weights[some].to(factor.dtype))
                self.combined[group] = self.combined[group] + pulled if group in self.combined else pulled
            yield from ((n, some, factors) for n in examples)

    def _compare(self, group: Group, found: Tensor, true: Tensor, rows: float) -> None:
        """Note the difference per row. rows: how much larger than one row a sum of rows with random signs is."""
        require_finite(true, f"The gradients of {', '.join(group.names)}")
        wrong, scale = self.worst.get(group, (0.0, 0.0))
        difference = float((found - true).abs().nan_to_num(nan=torch.inf).max()) / rows
        self.worst[group] = max(wrong, difference), max(scale, float(true.abs().max()) / rows)


def _require_double(network: Network, x: Any, model: nn.Module, given: Any) -> None:
    """A forward in float64, where models fail that fix the type of activations or use kernels of single precision."""
    try:
        network.values(x)
    except TangentlabError:
        raise
    except Exception as error:
        replace(network, model=model).values(given)  # what fails in any type is the caller's to see
        raise ModelError(
            f"`check` compares in float64, and this model does not run in float64 ({str(error).splitlines()[0]}): it fixes "
            "the type of some activations, as by .float() or .to(dtype), or uses a kernel of single precision. Let them "
            "follow the parameters, as in x.to(self.weight.dtype), or compare a copy of the model that does."
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
    """A deep copy, also of modules that hold computed tensors (weight_norm keeps its weight as an attribute).

    Parameters behind torch.jit are copied with their history where gradients are on, and frozen where they are off.
    """
    computed = [
        t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor) and not t.is_leaf
    ]
    double = copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed})
    for own, other in zip(model.parameters(), double.parameters(), strict=True):
        other.requires_grad_(own.requires_grad)
    return double


def _double(part: Part) -> Part:
    return part.double() if tensor_of(part).is_floating_point() else part

"""A network, its data and how it is called: all that an operation needs, with the truth about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.trial import data as data_forms
from tests.trial.blocks.base import MIXES, NOISE, ODD, ROUNDS
from tests.trial.blocks.strange import MODES
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.data import Data
from tests.trial.networks import Blueprint, build
from tests.trial.truth import Truth, measure


@contextmanager
def _default_double() -> Iterator[None]:
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


PLACES: dict[str, Callable[[], AbstractContextManager]] = {
    "nowhere": nullcontext,
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "default double": _default_double,
    **MODES,
}
"""What surrounds the user's calls."""

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda out: out, "square": torch.square}


@dataclass
class Scene:
    """One network on its data. `same` is the truth in the network's own type, `truth` in float64 where it can be had."""

    blueprint: Blueprint
    data: Data
    place: str
    function: str
    selection: str
    record: dict[str, Any] = field(repr=False)
    truth: Truth = field(init=False, repr=False)
    same: Truth = field(init=False, repr=False)

    @property
    def model(self) -> nn.Module:
        """The network that the library sees."""
        return self.blueprint.model

    def fresh(self) -> nn.Module:
        """The same network once more, without hooks on parameters: they change what an optimizer sees, not the function."""
        model = build(Choices(deepcopy(self.record), None)).model
        for parameter in model.parameters():
            parameter._backward_hooks = None
        return model

    def around(self) -> AbstractContextManager:
        """What surrounds the calls; a truth is taken with gradients, so nothing where it would forbid them."""
        return PLACES[self.place]()

    def call(self, model: nn.Module, x: Tensor) -> Tensor:
        """What is differentiated."""
        out = model(x)
        out = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
        return FUNCTIONS[self.function](out)

    def options(self) -> dict[str, Any]:
        """layers=, forward= and function= of the library's calls."""
        options: dict[str, Any] = {}
        if self.selection != "all":
            options["layers"] = self._layers()
        picks = self.model.returns == "tuple"
        change = FUNCTIONS[self.function]
        if picks or self.function != "none":
            options["function"] = lambda out, batch: change(out[0] if picks else _tensor(out))
        return options

    def _layers(self) -> Any:
        first = self.selected()[0]
        return {
            "first": first,
            "matrices": lambda name, p: p.ndim == 2,
            "list": [*self.selected()],
            "globs": "*weight*",
            "container": f"block[s].{first.split('.')[1]}",
        }[self.selection]

    def selected(self) -> tuple[str, ...]:
        """Names of the selected parameters."""
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        names = {
            "all": list(parameters),
            "first": list(parameters)[:1],
            "matrices": [n for n, p in parameters.items() if p.ndim == 2],
            "list": list(parameters)[::2],
            "globs": [n for n in parameters if "weight" in n],
            "container": [n for n in parameters if n.split(".")[1] == next(iter(parameters)).split(".")[1]],
        }[self.selection]
        if sum(parameters[name].numel() for name in names) == 0:
            raise NoSuchCase("nothing is selected")
        return tuple(names)

    @property
    def rounds(self) -> bool:
        """Whether the network computes partly in a coarser type than its own."""
        return self.coarsest != self.blueprint.dtype

    @property
    def coarsest(self) -> torch.dtype:
        """The type with the fewest digits in the forward."""
        own = self.blueprint.dtype
        if "autocast" in self.blueprint.kinds:
            return own if own.itemsize == 2 else torch.bfloat16
        return torch.float32 if ROUNDS in self.blueprint.traits and own == torch.float64 else own

    @property
    def overflows(self) -> bool:
        """Whether squares of gradients may leave the range of the network's type."""
        outputs = max(1.0, float(self.truth.outputs.abs().max()))  # scores of a regression grow with them
        return bool((outputs * self.truth.rows).square().sum() > torch.finfo(self.blueprint.dtype).max / 10)

    @property
    def ill_conditioned(self) -> bool:
        """Whether rounding of the weights to half precision changes the gradients by more than what counts as rounding."""
        if self.blueprint.dtype.itemsize != 2:
            return False
        changes = [float((near.rows - self.same.rows).abs().max()) for near in self.disturbed()]
        return max(changes, default=0.0) > 0.01 * float(self.same.rows.abs().max())

    @property
    def may_refuse(self) -> bool:
        """Whether the network as such may be refused."""
        return bool(self.blueprint.traits & {MIXES, NOISE, ODD}) or not self.same.rows.any() or self.contradictory

    @property
    def contradictory(self) -> bool:
        """Whether torch's own gradients of an example depend on the size of its batch, though its outputs do not.

        Those of an instance norm do where its output is transposed.
        """
        if not self._has_instance_norm:
            return False
        singles = [(x[n : n + 1], y[n : n + 1]) for x, y in self.data.batches for n in range(len(x))]
        alone = self._measured(self.fresh, batches=singles).rows
        size = float(self.same.rows.abs().max())
        return float((alone - self.same.rows).abs().max()) > torch.finfo(self.coarsest).eps ** 0.5 * size

    @property
    def truth_is_wrong(self) -> bool:
        """Whether torch's own gradients miss finite differences: those of an instance norm do for strided cotangents."""
        if not self._has_instance_norm or self.blueprint.dtype != torch.float64:
            return False
        torch.manual_seed(0)
        direction = {name: torch.randn(shape, dtype=torch.float64) for name, shape in self.truth.shapes.items()}

        def moved(step: float) -> Tensor:
            def fresh() -> nn.Module:
                model = self.fresh()
                for name, parameter in model.named_parameters():
                    if name in self.truth.names:
                        parameter.data.add_(direction[name], alpha=step)
                return model

            return self._measured(fresh).outputs.flatten(1)

        slopes = (moved(1e-6) - moved(-1e-6)) / 2e-6
        along = torch.cat([direction[name].flatten() for name in self.truth.names])
        missed = slopes - (self.truth.rows @ along).t()
        return float(missed.abs().max()) > 1e-3 * float(slopes.abs().max()) + 1e-6

    @property
    def _has_instance_norm(self) -> bool:
        return any(isinstance(m, nn.modules.instancenorm._InstanceNorm) for m in self.model.modules())

    def find_truth(self) -> None:
        """Measure `truth` and `same`."""
        self.same = self.truth = self._measured(self.fresh)
        if self.blueprint.dtype != torch.float64:
            try:
                self.truth = self._measured(self.fresh, torch.float64)
            except RuntimeError:  # a block that fixes its type
                self.truth = self.same

    def disturbed(self, count: int = 4) -> Iterator[Truth]:
        """The truth in the network's own type for weights that differ by the rounding of that type: what no method can beat."""
        for seed in range(count):
            generator = torch.Generator().manual_seed(seed)

            def neighbour(generator: torch.Generator = generator) -> nn.Module:
                model = self.fresh()
                for parameter in model.parameters():
                    signs = torch.randint(0, 2, parameter.shape, generator=generator).mul_(2).sub_(1)
                    eps = torch.finfo(self.coarsest if self.rounds else parameter.dtype).eps
                    parameter.data.mul_(1 + eps * signs.to(parameter.dtype))
                return model

            with suppress(NoSuchCase):  # no longer finite
                yield self._measured(neighbour)

    def _measured(
        self,
        fresh: Callable[[], nn.Module],
        dtype: torch.dtype | None = None,
        batches: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Truth:
        around = nullcontext if self.place in ("no_grad", "inference mode") else self.around
        return measure(fresh, self.call, batches or self.data.batches, around, dtype).only(self.selected())


def _tensor(out: Any) -> Tensor:
    return out["logits"] if isinstance(out, dict) else out


def make(choices: Choices) -> Scene:
    """The scene of the decisions."""
    network = choices.within("network")
    blueprint = build(network)
    if blueprint.dtype.itemsize == 2 and any("Orthogonal" in type(m).__name__ for m in blueprint.model.modules()):
        raise NoSuchCase("torch's own gradients of orthogonal weights are NaN in half precision")
    data = data_forms.make(choices.within("data"), blueprint)
    o = choices.within("call")
    weights = [30, 1.5, 0.2, 0.5, *[0.4] * len(MODES)]
    place = o.pick("place", list(PLACES), weights)
    function = o.pick("function", list(FUNCTIONS), [12, 1]) if blueprint.likelihood == "regression" else "none"
    selection = o.pick("selection", ["all", "first", "matrices", "list", "globs", "container"], [20, *[1] * 5])
    return Scene(blueprint, data, place, function, selection, deepcopy(network.record))

"""How linear a training has been so far: activation patterns, tangent kernel and representation against the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tangentlab.engine.batches import Batches
from tangentlab.engine.feeding import run_forward
from tangentlab.engine.forward_mode import no_fast_path
from tangentlab.engine.network import Forward, evaluated, main_tensor
from tangentlab.engine.snapshot import evaluation_mode, untouched
from tangentlab.errors import InputError
from tangentlab.kernels.similarity import ka
from tangentlab.metrics import NTK
from tangentlab.temporary import temporarily

_RELU = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)


@dataclass(frozen=True)
class Linearity:
    """Three numbers that are 1 at the start and stay 1 in linear training.

    Attributes:
        sign_similarity: share of all ReLU units and examples whose status, 0 or positive, is that of the start; NaN
            without ReLUs.
        ntk_alignment: KA of the tangent kernel and that of the start, uncentred.
        representation_alignment: KA of the Gram matrix of the representation and that of the start, uncentred.
    """

    sign_similarity: float
    ntk_alignment: float
    representation_alignment: float


def linearity(now: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Linearity:
    """From what is seen now and was seen at the start: "signs" of ReLU units, tangent "kernel", "gram" of the representation.

    NaN where either lacks one of them.
    """

    def compared(name: str, by: Callable[[Tensor, Tensor], float]) -> float:
        return by(now[name], start[name]) if name in now and name in start else float("nan")

    signs = compared("signs", lambda one, other: float((one == other).double().mean()))
    return Linearity(signs, compared("kernel", ka), compared("gram", ka))


class LinearityProbe:
    """Compares a network with its start on a fixed batch (George et al. 2022, section 2).

    `LinearityProbe(model, x)` takes the start down; `probe(model)` compares the same network, or a copy of it with other
    parameters, with it. The network is looked at in eval mode and left as it was.

    Args:
        model: the network at its start.
        data: the probe, a batch or batches of these.
        representation: "last_linear" takes the input of the linear layer that is called last, "outputs" the outputs, and the
            name of a module the input of that module.
        ntk: False leaves the tangent kernel out (its alignment is then NaN).
        outputs: "all" for the kernel of all outputs, (n c)^2 numbers; "trace" for their sum, n^2.
        forward: as in `NTK`.

    Cost: one forward pass and one tangent kernel per comparison.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        representation: str = "last_linear",
        ntk: bool = True,
        outputs: str = "all",
        forward: Forward | None = None,
    ) -> None:
        self._batches = Batches(data, ordered=True).stored()
        self._modules = representation_modules(model, representation)
        self._ntk, self._outputs, self._forward = ntk, outputs, forward
        self._start = self._look(model)

    def __call__(self, model: nn.Module) -> Linearity:
        """The three numbers for the network as it is now."""
        now = self._look(model)
        units, before = (len(one.get("signs", ())) for one in (now, self._start))
        if units != before:
            raise InputError(f"{units} ReLU units against {before} at the start: another network?")
        return linearity(now, self._start)

    def _look(self, model: nn.Module) -> dict[str, Tensor]:
        seen = [observed(model, batch, self._modules, self._forward) for batch in self._batches]
        signs = [sign for one in seen for sign in one.signs]
        rows = torch.cat([one.representation.flatten(1) for one in seen]).double()
        found = {"gram": rows @ rows.t()}
        if signs:
            found["signs"] = torch.cat([part.flatten() for part in signs])
        with evaluation_mode(model):
            options: dict[str, Any] = {"outputs": self._outputs, "forward": self._forward, "progress": False}
            return found | ({"kernel": NTK(model, self._batches, **options).data} if self._ntk else {})


@dataclass(frozen=True)
class Observed:
    """What one forward pass shows: outputs, positive units `(n, ...)` of every ReLU, and a representation `(n, ...)`."""

    outputs: Any
    signs: list[Tensor]
    representation: Tensor


def observed(model: nn.Module, batch: Any, modules: Sequence[str], forward: Forward | None = None) -> Observed:
    """Run the model in eval mode and look at it.

    `modules` names those of which the last one called has the representation as its input (see `representation_modules`);
    none for the outputs.
    """
    missing = set(modules) - {name for name, _ in model.named_modules()}
    if missing:
        raise InputError(
            f"The network has no module {', '.join(sorted(missing))}: look at the network of the start, such as `.model` of an "
            "AlphaModel or `.network()` of a linearized one."
        )
    seen: list[Tensor] = []
    relus = ReluSigns()

    def look() -> Any:
        seen.clear()
        relus.found.clear()
        return run_forward(model, batch, forward)

    with evaluation_mode(model), untouched(model), no_fast_path(), _watched(model, modules, seen), relus:
        outputs = evaluated(look)
    if modules and not seen:
        raise InputError(
            f"The model never calls {', '.join(modules)}: pass representation='outputs' or another module."
        )
    return Observed(outputs, relus.found, seen[-1] if modules else main_tensor(outputs))


class ReluSigns(TorchDispatchMode):
    """Which units of every ReLU, module or function, are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if function in _RELU:
            self.found.append(result.detach() > 0)
        return result


@contextmanager
def _watched(model: nn.Module, names: Sequence[str], seen: list[Tensor]) -> Iterator[None]:
    """The input of the named module that was called last, in the list."""

    def look(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen[:] = [inputs[0].detach()]

    handles = []

    def attach() -> None:
        for name in names:
            handles.append(model.get_submodule(name).register_forward_pre_hook(look))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    with temporarily(attach, remove):
        yield


def representation_modules(model: nn.Module, representation: str) -> list[str]:
    """Names of the modules that may have the representation as their input (see `LinearityProbe`); none for the outputs."""
    names = [name for name, _ in model.named_modules()]
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if representation == "outputs":
        return []
    if representation != "last_linear":
        if representation not in names:
            raise InputError(f"The argument representation= names no module of the model: {representation!r}.")
        return [representation]
    if not linear:
        raise InputError("The model has no nn.Linear: pass representation='outputs' or the name of a module.")
    return linear

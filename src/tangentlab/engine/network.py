"""The network as a function of its parameters: one forward, with every guard that keeps results meaningful."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tangentlab.engine.batches import parts_of
from tangentlab.engine.feeding import Forward, beside, run_forward
from tangentlab.engine.graph import Dependence
from tangentlab.engine.layout import LayerCollection, refuse_sharded
from tangentlab.engine.snapshot import TURN, Parameters, RandomState, worth_copying
from tangentlab.engine.snapshot import untouched as untouched
from tangentlab.engine.standing import known_chain
from tangentlab.errors import InputError, ModelError, NumericsError

OutputFunction = Callable[[Any, Any], Tensor]
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """Keyword arguments of everything that looks at a model.

    Attributes:
        layers: which parameters, see `LayerCollection.from_model`; all trainable ones by default.
        forward: `forward(model, batch)`, how to call the model, when the default does not fit.
        function: `function(output, batch)`, what to differentiate, (examples, ...); by default the model's output.
        verify: whether closed forms are proved against plain autograd, once per call and batch shape (see `tangentlab.verify`).
        n_output: checked against what the model gives, never needed.
        progress: True / False; by default a bar appears after two seconds in a terminal.
    """

    layers: Any
    forward: Forward | None
    function: OutputFunction | None
    verify: bool
    n_output: int | None
    progress: bool | None


@dataclass(frozen=True)
class Network:
    """A model, how to call it on a batch, what to differentiate, and with respect to which parameters.

    `forward(model, batch)` gives the model's output; `function(output, batch)` turns it into (examples, ...).
    `verify` says whether routes are proved before they are used (see `certificate`), `progress` whether bars are shown.
    `dependence` remembers whether any outputs depended on a selected parameter, `watched` names the parameters of which
    a copy was kept in the first forward.
    """

    model: nn.Module
    layout: LayerCollection
    forward: Forward | None = None
    function: OutputFunction | None = None
    verify: bool = True
    n_output: int | None = None
    progress: bool | None = None
    dependence: Dependence = field(default_factory=Dependence, repr=False, compare=False)
    watched: list[str] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layers: Any = None,
        forward: Forward | None = None,
        function: OutputFunction | None = None,
        verify: bool = True,
        n_output: int | None = None,
        progress: bool | None = None,
    ) -> Network:
        """Build and check: the mode of the model must make the outputs a deterministic function of each example."""
        with TURN:
            known = known_chain(model)
            if known is None:
                require_module(model)
            layout = known.layout if known is not None and layers is None else LayerCollection.of(model, layers)
            if known is None:
                refuse_modes(model)
            elif layout == known.layout:
                layout = known.layout
            _require_trainable(layout.parameters(model))
        return cls(model, layout, forward, function, verify, n_output, progress)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Selected parameters by name, in flat order."""
        return self.layout.parameters(self.model)

    def __call__(self, batch: Any, stands: bool = False) -> Tensor:
        """Outputs (N, ...) on a batch, with a graph where gradients are on.

        stands: no code but that of torch's own layers runs (see `standing`), which neither draws nor writes.
        """
        _refuse_tensors(batch)
        if stands and self.forward is None and self.function is None:
            output = self._forward(batch)
        else:
            refuse_modes(self.model)
            output = self._output(batch)
        if output.ndim == 0:
            raise InputError(
                "The output has no example axis; it must be (examples, ...): pass function=lambda out, b: ..."
            )
        if not output.is_floating_point():
            raise InputError(
                f"The output has dtype {output.dtype}; only real floating-point outputs have a Jacobian here."
            )
        if output.layout != torch.strided:
            raise InputError(f"The output has the layout {output.layout}: pass function=lambda out, b: out.to_dense().")
        if output.numel() == 0:
            raise InputError(
                f"The output is empty, of shape {tuple(output.shape)}: a batch needs at least one example."
            )
        if self.n_output not in (None, output[0].numel()):
            raise InputError(
                f"The argument n_output={self.n_output}, but the model gives {output[0].numel()} outputs per example."
            )
        return output[:, None] if output.ndim == 1 else output

    def values(self, batch: Any) -> Tensor:
        """The outputs (N, ...) as numbers, without a graph; see `evaluated`."""
        with grad_mode(), untouched(self.model):
            return self(batch).detach()

    def _output(self, batch: Any) -> Tensor:
        """One forward that neither draws random numbers nor writes to parameters.

        Only what happens twice is held against it: another thread may have drawn meanwhile, and a first call may convert.
        """
        copied = () if self.watched else tuple(worth_copying(self.model, self.layout.names))
        random, before = RandomState.now(), Parameters(self.model, copied)
        try:
            output = self._forward(batch)
            if random.drawn() or before.written():
                random.restore()
                output = self._repeated(batch, random, Parameters(self.model, copied))
        except BaseException:
            before.restore()
            raise
        self.watched[:] = before.copies or self.watched
        return output

    def _repeated(self, batch: Any, random: RandomState, before: Parameters) -> Tensor:
        output = self._forward(batch)
        if whose := random.drawn():
            random.restore()
            raise ModelError(RANDOM_FORWARD.format(whose))
        if name := before.written():
            raise ModelError(WRITING_FORWARD.format(name))
        return output

    def _forward(self, batch: Any) -> Tensor:
        with eagerly():
            batch = beside(self.model, batch)
            output = run_forward(self.model, batch, self.forward)
            return main_tensor(output if self.function is None else self.function(output, batch))


def spelled_out(function: Function) -> Function:
    """Say what the `**options: Unpack[Options]` of a function stand for: in `help()` and to whoever misspells one.

    Type checkers and editors read the annotation; `inspect.signature` gets the names, types and defaults one by one.
    """
    signature, defaults = inspect.signature(function), inspect.signature(Network.of).parameters
    own = [parameter for parameter in signature.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    bundled = [defaults[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in Options.__annotations__]
    known = {parameter.name for parameter in (*own, *bundled)}

    @wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if unknown := options.keys() - known:
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {min(unknown)!r}.")
        return function(*arguments, **options)

    called.__signature__ = signature.replace(parameters=[*own, *bundled])  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]


def evaluated(run: Callable[[], Result]) -> Result:
    """What user code computes, as tensors without a graph; refused if it draws random numbers.

    Gradients are on inside, as in training: a forward may take derivatives itself (forces, residuals of differential
    equations), which torch refuses under `no_grad`, or may ask for the mode and compute something else.
    """
    with torch.enable_grad(), eagerly():
        found = without_chance(run)
        return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, found)


def without_chance(run: Callable[[], Result]) -> Result:
    """What user code computes, refused if it draws random numbers, twice: another thread may have drawn the first time."""
    random = RandomState.now()
    found = run()
    if random.drawn():
        random.restore()
        found = run()
        if whose := random.drawn():
            random.restore()
            raise ModelError(RANDOM_FORWARD.format(whose))
    return found


RANDOM_FORWARD = (
    "The forward draws from the random generator of {}, so its outputs change from call to call and have no derivative as a "
    "function of one example: call model.eval(), or switch off what is random in the forward (dropout, stochastic depth, "
    "noise) with forward= or function= that evaluate examples independently of chance."
)
WRITING_FORWARD = (
    "The forward writes to the parameter {!r} in every call, so there is no fixed point at which to take derivatives: apply "
    "the constraint (max-norm, clipping, normalization) after the optimizer's step instead, or as a parametrization."
)


def require_module(model: Any) -> None:
    """Refuse functions and other things that are not modules, and models that are spread over processes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"A torch.nn.Module is expected as the model, got {type(model).__name__}.")
    refuse_sharded(model)


def main_tensor(output: Any) -> Tensor:
    """The tensor that a model's output is, or its `logits`."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"The model returns a {type(output).__name__}: pass function=lambda output, batch: ... that picks a tensor "
        "of shape (examples, ...), or wrap it in a module that returns one."
    )


def _require_trainable(parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise InputError("The selection of parameters is empty: layers= must name at least one.")
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            raise InputError(f"Parameter {name!r} is frozen (requires_grad=False): unfreeze it or select without it.")
        if parameter.is_inference():
            raise InputError(f"Parameter {name!r} was made in torch.inference_mode(): make the model outside of it.")
        if parameter.is_complex():
            raise InputError(f"Parameter {name!r} is complex: only real parameters have a Jacobian here.")
        if parameter.is_meta:
            raise InputError(
                f"Parameter {name!r} is on the device 'meta' and has no values: materialize the model first."
            )


def _refuse_tensors(batch: Any) -> None:
    for leaf in parts_of(batch):
        if isinstance(leaf, Tensor) and leaf.is_meta:
            raise InputError("The batch holds a tensor on the device 'meta', which has no values: pass real data.")
        if isinstance(leaf, Tensor) and leaf.is_nested:
            raise InputError(
                "The batch holds a nested tensor, whose examples have different lengths: pad it (x.to_padded_tensor(0.0), with "
                "a mask for the model), or pass batches of examples of one length."
            )
        if isinstance(leaf, Tensor) and leaf.is_inference() and not torch.is_inference_mode_enabled():
            raise InputError("The batch was made in torch.inference_mode(), which rules derivatives out: clone() it.")


def refuse_modes(model: nn.Module) -> None:
    """Layers that make outputs depend on other examples or on chance, or gradients on the counts of a batch."""
    for name, module in model.named_modules():
        if mixes_examples(module):
            raise ModelError(
                f"{type(module).__name__} {name!r} uses batch statistics, so outputs of one example depend on the others: "
                "call model.eval() first (a norm without running statistics has no per-example gradients at all)."
            )
        if is_stochastic(module):
            raise ModelError(f"{type(module).__name__} {name!r} is random in train mode: call model.eval() first.")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (module.max_norm or module.scale_grad_by_freq):
            option = "max_norm" if module.max_norm else "scale_grad_by_freq"
            what = "rewrites its weight in every forward" if module.max_norm else "divides gradients by batch counts"
            raise ModelError(
                f"{type(module).__name__} {name!r} {what} ({option}), so its derivative is not that of one example: "
                f"set module.{option} = {None if module.max_norm else False} first."
            )


def mixes_examples(module: nn.Module) -> bool:
    """True for a norm layer whose output on one example depends on the others (train-mode or statistics-free BN)."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None)


def is_stochastic(module: nn.Module) -> bool:
    """True for a layer that draws random numbers in the mode it is in."""
    if not module.training:
        return False
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def eagerly() -> Any:
    """Compiled code runs as it was written: its backward passes may run only once, and hooks do not see inside."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def grad_mode() -> Iterator[None]:
    """Gradients on, whatever the caller has set; inference mode cannot be left from inside, so it is refused."""
    if torch.is_inference_mode_enabled():
        raise ModelError("Derivatives cannot be taken inside torch.inference_mode(): leave it, or use torch.no_grad().")
    with torch.enable_grad():
        yield


def require_finite(tensor: Tensor, what: str) -> None:
    """Refuse to build geometry on NaN or infinity. A finite sum shows in one pass that all entries are."""
    if not torch.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor).all():
        raise NumericsError(f"{what} contain NaN or infinity; check the data and the weights of the model.")

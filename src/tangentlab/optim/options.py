"""Options that are given by name: what is unknown is refused, with the nearest name that exists."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tangentlab.engine.layout import refuse_sharded
from tangentlab.errors import InputError

SYNONYMS = {
    "learning_rate": "lr",
    "eps": "damping",
    "epsilon": "damping",
    "regul": "damping",
    "l2": "weight_decay",
    "update_freq": "period",
    "frequency": "period",
    "batch_averaged": "loss_reduction",
    "reduction": "loss_reduction",
}
"""Names of the same thing elsewhere."""

WHOLE_COPIES = (
    "Train with torch.nn.parallel.DistributedDataParallel, whose processes hold whole copies: give the wrapped model to the "
    "preconditioner."
)


class NamedOptions:
    """A class whose constructor refuses options that it does not know (`InputError`), before anything else happens.

    Attributes:
        idle: options of a base class that have no effect here, and are errors as well.
    """

    name: str
    idle: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *_: Any, **options: Any) -> Any:
        idle = [word for word in options if word in cls.idle]
        if idle:
            raise InputError(f"{', '.join(idle)} has no meaning for {cls.name!r}: leave it out.")
        refuse_unknown(cls.__name__, options, option_names(cls))
        return super().__new__(cls)


def option_names(cls: type) -> list[str]:
    """Names of a constructor's arguments, and through `**options` of those of its bases, without idle ones."""
    names: dict[str, None] = {}
    for owner in (base for base in cls.__mro__ if "__init__" in vars(base)):
        arguments = list(signature(vars(owner)["__init__"]).parameters.values())[1:]
        named = (Parameter.KEYWORD_ONLY,) if names else (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        names |= dict.fromkeys(argument.name for argument in arguments if argument.kind in named)
        if all(argument.kind is not Parameter.VAR_KEYWORD for argument in arguments):
            break
    return [name for name in names if name not in getattr(cls, "idle", ())]


def refuse_unknown(owner: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse the options whose names are not known, each with the nearest one that is."""
    unknown = [name for name in options if name not in known]
    if unknown:
        told = " and ".join(f"{name!r}{_hint(name, known)}" for name in unknown)
        choices = ", ".join(name for name in dict.fromkeys(known) if name not in ("model", "params"))
        raise InputError(f"{owner} has no option {told}. Its options are: {choices}.")


def _hint(name: str, known: Collection[str]) -> str:
    near = [SYNONYMS[name]] if SYNONYMS.get(name) in known else get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def require_model(owner: str, model: Any) -> None:
    """Refuse what is not a module, with the right call for what it is instead, and modules that are sharded."""
    if isinstance(model, nn.Module):
        refuse_sharded(model, WHOLE_COPIES)
        return
    if isinstance(model, torch.optim.Optimizer):
        advice = f"{owner}(model) first, then attach(optimizer)"
    elif isinstance(model, Iterable | Tensor) and not isinstance(model, str):
        advice = f"{owner}(model), not {owner}(model.parameters())"
    else:
        advice = f"{owner}(model)"
    raise InputError(
        f"{owner} reads the passes of a model's layers, so it needs the torch.nn.Module itself: {advice}; "
        f"got {type(model).__name__}."
    )

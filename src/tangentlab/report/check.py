"""``tangentlab check``: a user's own network before the engine: coverage, agreement with autograd, plan and memory."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tangentlab.errors import InputError, NumericsError
from tangentlab.report.console import show_error

if TYPE_CHECKING:
    from torch import nn


def check_model(target: str, shape: str, examples: int) -> bool:
    """Print what the engine makes of the network of ``module:factory``; true when it agrees with plain autograd."""
    import tangentlab

    model, inputs = make_model(target, shape)
    console = Console()
    console.print("[bold]Coverage[/]: which route each parameter takes")
    _print(console, tangentlab.coverage(model, inputs))
    console.print("\n[bold]Check[/]: the engine against plain autograd, in double precision")
    try:
        report = tangentlab.check(model, inputs)
    except NumericsError as error:
        show_error(str(error))
        return False
    console.print(f"agree to {report.error:.1e} relative (allowed {report.tolerance:.0e})")
    console.print(f"\n[bold]Plan[/]: the tangent kernel of {examples:,} examples")
    _print(console, tangentlab.plan(model, inputs, n=examples, what="ntk"))
    return True


def _print(console: Console, thing: object) -> None:
    console.print(str(thing), markup=False, highlight=False, soft_wrap=True)


def make_model(target: str, shape: str) -> tuple[nn.Module, Any]:
    """The model and a small batch of inputs from ``module:factory``; modules of the current folder are found."""
    import torch
    from torch import nn

    module_name, colon, factory_name = target.partition(":")
    if not colon or not module_name or not factory_name:
        raise InputError(f"write MODULE:FACTORY, as in mymodule:make_model, not {target!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import '{module_name}': {error}; run the command in the folder it lies in") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise InputError(f"'{module_name}' has no function '{factory_name}'")
    made = factory()
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(f"{target} gave a {type(model).__name__}, not a torch module or a pair (module, inputs)")
    if inputs is None:
        if not shape:
            raise InputError(f"{target} gives a model without inputs: add --shape, as in --shape 3,32,32")
        try:
            sizes = [int(size) for size in shape.split(",")]
        except ValueError:
            raise InputError(f"--shape takes whole numbers with commas, as in 3,32,32, not {shape!r}") from None
        inputs = torch.randn(4, *sizes, generator=torch.Generator().manual_seed(0))
    return model.eval(), inputs

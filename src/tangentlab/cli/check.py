"""`tangentlab check`: a user's own network before the engine: coverage, agreement with autograd, plan and memory."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tangentlab.cli.console import show_error
from tangentlab.errors import InputError, NumericsError, TangentlabError

if TYPE_CHECKING:
    from torch import nn

BLOCK_LIMIT = 4096  # of PMatMixed.default


def check_model(target: str, shape: str, examples: int) -> bool:
    """Print what the engine makes of the network of `module:factory`; true when it agrees with plain autograd."""
    import tangentlab

    model, inputs = make_model(target, shape)
    _require_forward(model, inputs)
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
    console.print("\n[bold]Memory[/]: the Fisher matrix in each representation")
    _print(console, fisher_memory(model, inputs))
    return True


def fisher_memory(model: nn.Module, inputs: Any) -> str:
    """A table of what the Fisher matrix would take: all parameters squared, Kronecker factors, the diagonal, nothing."""
    import tangentlab
    from tangentlab.engine.memory import human_bytes
    from tangentlab.engine.network import Network
    from tangentlab.engine.planner import factor_cells
    from tangentlab.engine.rows import Engine
    from tangentlab.objects.pmat.blockwise import groups_by_layer

    network = Network.of(model)
    sweep = Engine(network).sweep(inputs)
    factors = sweep.factors(sweep.identity_cotangents(range(1)))
    d, size, budget = network.layout.numel, sweep.outputs.element_size(), tangentlab.memory_budget()
    kronecker = sum(factor_cells(factor) for factor in factors.values() if factor.kronecker)
    if others := [group for group, factor in factors.items() if not factor.kronecker]:
        small = groups_by_layer(network.layout, [g for g in others if factors[g].numel <= BLOCK_LIMIT]).values()
        blocks = sum(sum(factors[group].numel for group in groups) ** 2 for groups in small)
        diagonals = sum(factors[group].numel for group in others if factors[group].numel > BLOCK_LIMIT)
        structured = {"PMatMixed.default()": kronecker + blocks + diagonals}
    else:
        structured = {"PMatEKFAC": kronecker + d, "PMatKFAC": kronecker}
    cells = {"PMatDense": d**2, **structured, "PMatDiag": d, "PMatImplicit": 0}
    lines = [
        f"{name:<21}{human_bytes(n * size):>8}  {'fits' if n * size <= budget else 'does NOT fit'}"
        for name, n in cells.items()
    ]
    return "\n".join([*lines, f"{'(budget)':<21}{human_bytes(budget):>8}"])


def _print(console: Console, thing: object) -> None:
    console.print(str(thing), markup=False, highlight=False, soft_wrap=True)


def make_model(target: str, shape: str) -> tuple[nn.Module, Any]:
    """The model and a small batch of inputs from `module:factory`; modules of the current folder are found."""
    import torch
    from torch import nn

    module_name, colon, factory_name = target.partition(":")
    if not colon or not module_name or not factory_name:
        raise InputError(f"Write MODULE:FACTORY, as in mymodule:make_model, not {target!r}.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"Cannot import '{module_name}': {error}; run the command in the folder it lies in."
        ) from error
    except Exception as error:  # whatever the user's module does
        raise InputError(f"Importing '{module_name}' failed:\n{last_lines(error)}") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise InputError(f"'{module_name}' has no function '{factory_name}'.")
    try:
        made = factory()
    except Exception as error:  # whatever the user's function does
        raise InputError(f"{target}() failed (it is called without arguments):\n{last_lines(error)}") from error
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(f"{target} gave a {type(model).__name__}, not a torch module or a pair (module, inputs).")
    if inputs is None:
        if not shape:
            raise InputError(f"{target} gives a model without inputs: add --shape, as in --shape 3,32,32.")
        try:
            sizes = [int(size) for size in shape.split(",")]
        except ValueError:
            raise InputError(f"--shape takes whole numbers with commas, as in 3,32,32, not {shape!r}.") from None
        inputs = torch.randn(4, *sizes, generator=torch.Generator().manual_seed(0))
    return model.eval(), inputs


def _require_forward(model: nn.Module, inputs: Any) -> None:
    """One forward, so that a model that does not take these inputs is told apart from an engine that cannot."""
    import torch

    from tangentlab.engine.feeding import call_model
    from tangentlab.engine.network import eagerly
    from tangentlab.engine.snapshot import untouched

    try:
        with torch.enable_grad(), untouched(model), eagerly():
            call_model(model, inputs)
    except TangentlabError:
        raise
    except Exception as error:  # whatever the user's forward does
        shape = f" of shape {tuple(inputs.shape)}" if isinstance(inputs, torch.Tensor) else ""
        raise InputError(f"The model does not take inputs{shape}:\n{last_lines(error)}") from error


def last_lines(error: Exception, frames: int = 1) -> str:
    """Where an error came from and what it says, without the way there."""
    return "".join(traceback.format_exception(error, limit=-frames, chain=False)).rstrip()

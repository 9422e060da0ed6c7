"""Looking at a network in the middle of its training so that the training goes on bit for bit as if nobody had looked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tangentlab.engine.snapshot import untouched
from tangentlab.temporary import changed


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of compilation and of data-parallel training, whose parameters it shares."""
    parallel = isinstance(model, DataParallel | DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside: eval mode, no autocast, gradients on, no `.grad`, and no hooks on the gradients of parameters.

    Afterwards, also after an exception: the random states of torch, numpy and Python, buffers, attributes and hooks of all
    modules, their modes one by one, `requires_grad` and `.grad` of all parameters are what they were. Modes are set as
    attributes, since `eval()` of some models does more than that (merges adapters, unfreezes layers).
    """
    with ExitStack() as stack:
        stack.enter_context(same_python_randomness())
        stack.enter_context(_without_gradient_hooks(model))
        stack.enter_context(_same_gradients(model))
        stack.enter_context(untouched(model))
        stack.enter_context(_evaluation(model))
        for device in {parameter.device.type for parameter in model.parameters()}:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def same_python_randomness() -> Iterator[None]:
    """The random states of Python and numpy are afterwards what they were."""
    state, numpy_state = random.getstate(), np.random.get_state()

    def back() -> None:
        random.setstate(state)
        np.random.set_state(numpy_state)

    yield from changed(lambda: None, back)


@contextmanager
def _same_gradients(model: nn.Module) -> Iterator[None]:
    """A backward inside would add to `.grad` in place, so the gradients are put away and back."""
    saved = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]

    def put_away() -> None:
        for parameter, _, _ in saved:
            parameter.grad = None

    def back() -> None:
        for parameter, gradient, required in saved:
            parameter.requires_grad_(required)
            parameter.grad = gradient

    yield from changed(put_away, back)


@contextmanager
def _without_gradient_hooks(model: nn.Module) -> Iterator[None]:
    """Hooks that the user put on parameters (clipping, an optimizer in the backward pass) would see the look's gradients."""
    tables = ("_backward_hooks", "_post_accumulate_grad_hooks")
    places = [(parameter, table) for parameter in model.parameters() for table in tables]
    saved = [(place, dict(getattr(*place) or {})) for place in places]

    def clear() -> None:
        for place, _ in saved:
            if getattr(*place) is not None:
                getattr(*place).clear()

    def back() -> None:
        for place, hooks in saved:
            if (getattr(*place) or {}) != hooks:
                getattr(*place).clear()
                getattr(*place).update(hooks)

    yield from changed(clear, back)


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]

    def switch(back: bool) -> None:
        for module, training in modes:
            module.training = training and back

    yield from changed(lambda: switch(back=False), lambda: switch(back=True))

"""What backward passes bring to every parameter: all together, and through the outputs of the model alone.

A hook on the node that accumulates into `parameter.grad` sees the sum of all uses. Hooks on the operations of the outputs'
graph that take the parameter see the same without what the loss adds elsewhere (a penalty on the weight), and with all that
the forward does: functional uses, derivatives taken inside it, hooks on activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from tangentlab.optim.consumers import consumers

_will_execute: Callable[[Any], bool] = getattr(torch._C, "_will_engine_execute_node", lambda node: True)


@dataclass
class Leaf:
    """A parameter, the node that accumulates its gradient, and the sums of what came there.

    Attributes:
        brought: by all uses.
        through: by those in the outputs' graph.
        traced: whether the graphs of all passes could be read; None before the first.
    """

    parameter: nn.Parameter
    node: Any
    handle: Any = None
    brought: Tensor | None = None
    through: Tensor | None = None
    traced: bool | None = None


class Leaves:
    """The parameters of a model that are followed.

    Args:
        parameters: by name.
        listens: whether sums are wanted at the moment.
        backward_begins: called when a gradient arrives.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], listens: Callable[[], bool], backward_begins: Callable[[], None]
    ) -> None:
        self.parameters, self.listens, self.backward_begins = parameters, listens, backward_begins
        self.found: dict[str, Leaf] = {}
        self.touched = False  # by any gradient since the last look

    def follow(self, names: Iterable[str]) -> None:
        """Note from now on what is brought to these parameters."""
        for name in names:
            parameter, known = self.parameters[name], self.found.get(name)
            node = get_gradient_edge(parameter).node if parameter.requires_grad else None
            if node is not None and (known is None or known.node is not node):
                leaf = self.found[name] = Leaf(parameter, node)
                leaf.handle = node.register_prehook(self._arrival(leaf))

    def _arrival(self, leaf: Leaf) -> Callable[[Any], None]:
        def arrives(grads: tuple[Tensor | None, ...]) -> None:
            self.backward_begins()
            self.touched = True
            if grads[0] is not None and self.listens():
                leaf.brought = _sum(leaf.brought, grads[0])

        return arrives

    def trace(self, output: Any) -> None:
        """Note what the graph of these outputs will bring."""
        uses = consumers(output)
        for leaf in self.found.values():
            leaf.traced = uses is not None and leaf.traced is not False
            for node, place in (uses or {}).get(id(leaf.parameter), ()):
                node.register_hook(self._passage(leaf, place))

    def _passage(self, leaf: Leaf, place: int) -> Callable[..., None]:
        def passes(sent: tuple[Tensor | None, ...], _: Any) -> None:
            grad = sent[place]
            if grad is not None and will_accumulate(leaf.node) and self.listens():
                self.backward_begins()
                leaf.through = _sum(leaf.through, grad)

        return passes

    def brought_to(self, names: Iterable[str]) -> bool:
        """Whether anything but zeros is known to have come to these parameters."""
        known = [self.found[name].brought for name in names if name in self.found]
        return any(brought is not None and bool(brought.any()) for brought in known)

    def forget(self) -> None:
        """Begin all sums anew."""
        self.touched = False
        for leaf in self.found.values():
            leaf.brought = leaf.through = leaf.traced = None

    def detach(self) -> None:
        """Follow nothing any more."""
        for leaf in self.found.values():
            leaf.handle.remove()
        self.found.clear()


def will_accumulate(node: Any) -> bool:
    """Whether the backward pass that is running will reach this leaf's gradient."""
    try:
        return _will_execute(node)
    except RuntimeError:  # torch.autograd.grad with this leaf among its inputs
        return False


def _sum(known: Tensor | None, grad: Tensor) -> Tensor:
    own = grad.detach()  # torch may make it the gradient itself, and write to it
    return own.clone() if known is None else known + own

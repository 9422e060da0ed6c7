"""Whether the outputs depend on a selected parameter at all: where none of them does, every result would be zero."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tangentlab.engine.graph import reaches
from tangentlab.errors import ModelError


class Dependence:
    """What was seen of one network so far: a batch may leave all selected parameters out (an expert without tokens), the
    data as a whole may not."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, outputs: Tensor, parameters: Iterable[Tensor]) -> None:
        """Look at outputs with a graph. Cost: a walk from the outputs to the first selected parameter."""
        self.seen = self.seen or reaches(outputs, parameters)

    def require(self) -> None:
        """Refuse if no outputs looked at so far depended on a selected parameter."""
        if not self.seen:
            raise ModelError(NO_DEPENDENCE)


NO_DEPENDENCE = (
    "The outputs do not depend on any selected parameter through the autograd graph, so every derivative would be zero: the "
    "forward may run under torch.no_grad() or detach its result, forward= or function= may call another model than the one "
    "given, or layers= may select parameters that these outputs do not use."
)

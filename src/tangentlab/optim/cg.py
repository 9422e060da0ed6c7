"""Exact natural gradient: (F + eps I)^-1 g by conjugate gradients on products with the batch's own F."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.linalg import CGReport, conjugate_gradients
from tangentlab.optim.damping import AdaptiveDamping
from tangentlab.optim.hyperparameters import Schedule, check_period, check_schedule, value_at
from tangentlab.optim.method import Gradients
from tangentlab.optim.preconditioner import Preconditioner
from tangentlab.optim.sums import Sample

NO_EXAMPLES = "no axis of its input separates the examples, so its gradients cannot be joined with the other layers'"


class ConjugateGradient(Preconditioner):
    """F with all layers and their correlations, never stored (Martens 2010; section 4.2.4 of the thesis as the rival).

        F v = 1/N sum_n sum_k g_kn <g_kn, v>

    The gradients g_kn of all examples (and cotangents k) stay in factored form from the user's own backward pass, so a
    product costs about as much as a forward and a backward pass of the layers, and no further pass of the model is run.

    Args:
        model: the network.
        iterations: largest number of products per step.
        rtol: relative residual at which a step stops earlier.
        warm_start: start from this multiple of the last solution (0: from zero).
        options: of `Preconditioner`; the damping enters as plain eps I.
    """

    name = "cg"

    def __init__(
        self,
        model: nn.Module,
        *,
        iterations: int = 50,
        rtol: float = 1e-3,
        warm_start: Schedule = 0.0,
        **options: Any,
    ) -> None:
        check_period("iterations", iterations)
        check_schedule("warm_start", warm_start, high=1.0)
        if not 0 < rtol < 1:
            raise InputError(f"The argument rtol must lie between 0 and 1, got {rtol}.")
        self.iterations, self.rtol, self.warm_start = iterations, rtol, warm_start
        self.folds: list[dict[Group, OuterSum]] = []
        self.last: dict[str, Tensor] = {}
        self.solved: CGReport | None = None
        self._weight = 1.0
        super().__init__(model, **options)

    def _wants(self, step: int) -> bool:
        return True

    def _collect(self, samples: dict[Group, list[Sample]], examples: int) -> None:
        if self._stale:
            self.folds, self._stale = [], False
        apart = {g for g, found in samples.items() if not all(sample.by_example for sample in found)}
        self._pass_on(dict.fromkeys(apart, NO_EXAMPLES))
        self.folds.append({g: found[0].outer() for g, found in samples.items() if g not in apart})

    _stale = True

    def _clear(self) -> None:
        self._stale = True
        if not isinstance(self.damping, AdaptiveDamping):
            self.folds = []

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(side.sum())) for f in self.folds for o in f.values() for side in _sides(o))

    def _update(self, gain: float, examples: float) -> None:
        self._weight = gain**2 / examples

    def product(self, parts: dict[Group, Tensor]) -> dict[Group, Tensor]:
        """F v without damping, for flat vectors by group."""
        total = {group: torch.zeros_like(part) for group, part in parts.items()}
        for fold in self.folds:
            own = [group for group in fold if group in parts]
            if own:
                along = torch.stack([fold[group].push(parts[group]) for group in own]).sum(0)
                for group in own:
                    total[group] += fold[group].pull(along * self._weight)
        self.processes.sum_(*total.values())
        return total

    def _natural(self, gradients: Gradients, weight: float) -> Gradients:
        groups = [group for group in gradients if any(group in fold for fold in self.folds)]
        if not groups:
            return {}
        dtype = torch.promote_types(gradients[groups[0]][0].dtype, torch.float32)
        flat = {g: torch.cat([grad.flatten() for grad in gradients[g]]).to(dtype) for g in groups}
        sizes = [flat[group].numel() for group in groups]
        epsilon = self.epsilon

        def matvec(vectors: Tensor) -> Tensor:
            rows = []
            for vector in vectors:
                image = self.product(dict(zip(groups, vector.split(sizes), strict=True)))
                rows.append(torch.cat([image[group] for group in groups]) + epsilon * vector)
            return torch.stack(rows)

        rhs = torch.cat([flat[group] for group in groups])
        start = self._start(groups, rhs)
        solution, self.solved = conjugate_gradients(
            matvec, rhs, start=start, rtol=self.rtol, max_iterations=self.iterations, on_failure="report"
        )
        parts = dict(zip(groups, solution.split(sizes), strict=True))
        self.last = {group.name: part.clone() for group, part in parts.items()} if self.warm_start else {}
        return {group: self._shaped(group, part) for group, part in parts.items()}

    def _start(self, groups: list[Group], rhs: Tensor) -> Tensor | None:
        decay = value_at(self.warm_start, self.steps)
        if not decay or any(group.name not in self.last for group in groups):
            return None
        return decay * torch.cat([self.last[group.name] for group in groups]).to(rhs)

    def _shaped(self, group: Group, flat: Tensor) -> list[Tensor]:
        parameters = [self.parameters[name] for name in group.names]
        parts = flat.split([p.numel() for p in parameters])
        return [part.reshape(p.shape) for part, p in zip(parts, parameters, strict=True)]

    def quadratic(self, step: dict[str, Tensor]) -> float:
        """d^T F d on the last batch."""
        seen = [g for g in self.groups if any(g in fold for fold in self.folds) and all(n in step for n in g.names)]
        flat = {group: torch.cat([step[name].flatten() for name in group.names]) for group in seen}
        image = self.product(flat)
        return sum(float((flat[group] * image[group]).sum()) for group in seen)

    def _treatment(self, group: Group) -> str:
        return f"exact, at most {self.iterations} iterations"

    def _state(self) -> dict[str, Any]:
        return {"last": self.last}

    def _load(self, state: dict[str, Any]) -> None:
        device = next(iter(self.parameters.values())).device
        self.last = {name: value.to(device, copy=True) for name, value in state["last"].items()}


def _sides(outer: OuterSum) -> tuple[Tensor, Tensor]:
    return outer._left, outer._right

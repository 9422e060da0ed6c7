"""`Preconditioner`: between `loss.backward()` and `optimizer.step()`, gradients become natural gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.likelihood import Likelihood
from tangentlab.errors import InputError, ModelError
from tangentlab.optim.clipping import Clipping
from tangentlab.optim.curvature import Curvature
from tangentlab.optim.damping import AdaptiveDamping
from tangentlab.optim.hyperparameters import Schedule, check_period, check_schedule, value_at
from tangentlab.optim.method import Gradients, Method
from tangentlab.optim.options import NamedOptions, require_model
from tangentlab.optim.passes import Pass, PassObserver
from tangentlab.optim.reduction import check_reduction, gain_of
from tangentlab.optim.report import Report, Treatment, shortfall
from tangentlab.optim.sums import Sample, samples_of
from tangentlab.optim.trial import Evaluate, adapt
from tangentlab.optim.verification import Verification, brought_to
from tangentlab.optim.watch import CLEARED, HOOKS_OFF, NOTHING_SEEN, LoopWatch, require_overlap, tell
from tangentlab.parallel.processes import unwrap

HALF = 0.5
"""Share of the parameters below which a preconditioner says what it does not treat."""


class Preconditioner(NamedOptions, Method):
    """Replaces `parameter.grad` by `(F + damping)^-1 grad`, for an approximation of the Fisher matrix F.

        precond = EKFAC(model, damping=1e-2)
        loss.backward(); precond.step(); optimizer.step()

    F is the second moment of per-example gradients, `1/N sum_i g_i g_i^T`. Statistics come from the user's own passes;
    parameters without a closed form keep their gradient and `report()` says why.

    Args:
        model: the network, or its DistributedDataParallel wrapper (statistics are then those of the joint batch).
        damping: epsilon; a number, a function of the step, or an `AdaptiveDamping` (see `trial`).
        layers: which parameters, as in `LayerCollection.from_model`; by default all trainable ones.
        curvature: "empirical" (gradients of the loss at the observed labels, as in the thesis), "monte-carlo" (one label
            drawn from the model per example), "exact" (expectation over labels).
        likelihood, outputs, seed: for the last two; see `Curvature`.
        loss_reduction: "mean", "sum", or the number that the sum of per-example losses was divided by. With gradient
            accumulation, of all that was backpropagated since the last step together.
        example_axis: axis of the examples in the model's input and, for layers that act on each position alone, in theirs.
        kl_clip, norm_clip, lr: see `Clipping`.
        grad_scaler: a `torch.amp.GradScaler`, whose scale is taken off the statistics (unscale the gradients first).
        process_group: processes to sum over when the model is not wrapped but its gradients are averaged.
    """

    name: str

    def __new__(cls, model: Any = None, *values: Any, **options: Any) -> Any:
        """Refuse options without a name, and names that there are not."""
        if values:
            raise InputError(f"Options of {cls.__name__} have names: {cls.__name__}(model, damping={values[0]!r}).")
        return super().__new__(cls, model, **options)

    def __init__(
        self,
        model: nn.Module,
        *,
        damping: Schedule | AdaptiveDamping = 1e-2,
        layers: Any = None,
        curvature: str = "empirical",
        likelihood: str | Likelihood | None = None,
        outputs: Callable[[Any], Tensor] | None = None,
        seed: int = 0,
        loss_reduction: str | float = "mean",
        example_axis: int = 0,
        kl_clip: Schedule | None = None,
        norm_clip: Schedule | None = None,
        lr: Schedule | torch.optim.Optimizer | None = None,
        grad_scaler: Any = None,
        process_group: Any = None,
    ) -> None:
        require_model(type(self).__name__, model)
        if not isinstance(damping, AdaptiveDamping):
            check_schedule("damping", damping)
        check_reduction(loss_reduction)
        self.model, self.processes = unwrap(model, process_group)
        self.damping, self.loss_reduction, self.grad_scaler = damping, loss_reduction, grad_scaler
        self.clipping = Clipping(kl_clip, norm_clip, lr)
        self.curvature = Curvature(curvature, likelihood, outputs, seed)
        self.layout = LayerCollection.from_model(self.model, layers)
        self.parameters = self.layout.parameters(self.model)
        self.steps = self.skipped = 0
        self.mean_factor = 1.0  # from parameter.grad to the mean gradient
        self._examples, self._unscale = 0, 1.0
        self._modes: set[bool] = set()
        self._warned = False
        self.verification = Verification()
        self.passed: dict[Group, str] = {}
        self.groups = self._treated(parameter_groups(self.model, self.layout))
        treated = [self.parameters[name] for group in self.groups for name in group.names]
        if isinstance(lr, torch.optim.Optimizer):
            require_overlap(lr, treated)
        self.watch = LoopWatch(self.model, treated)
        me = weakref.proxy(self)  # a preconditioner that nobody holds takes its hooks off the model
        self.observer = PassObserver(
            self.model,
            self.groups,
            self.parameters,
            example_axis,
            wants=lambda: me._wants(me.steps),
            keeps_loss=lambda: me.curvature.from_loss or me._verifies,
            verifies=lambda: me._verifies,
            begins=lambda shapes: me._begins(shapes),
            before_pass=lambda: me._fold(),
            after_pass=None if self.curvature.from_loss else lambda *ended: me._draw(*ended),
            cleared=lambda: me._forget(),
            watch=self.watch,
        )
        weakref.finalize(self, self.observer.detach).atexit = False
        self._warn_of_little()

    def _treated(self, groups: Sequence[Group]) -> list[Group]:
        """The groups that this preconditioner can treat; the others go to `passed` with their reason."""
        reasons = {group: group.reason or self._refusal(group) for group in groups}
        self.passed = {group: reason for group, reason in reasons.items() if reason}
        if len(self.passed) == len(groups):
            first = "; ".join(f"{group.name}: {reason}" for group, reason in list(self.passed.items())[:5])
            raise InputError(f"No parameter of this model can be preconditioned ({first}).")
        return [group for group in groups if group not in self.passed]

    @property
    def epsilon(self) -> float:
        """The damping at the current step."""
        return self.damping.value if isinstance(self.damping, AdaptiveDamping) else value_at(self.damping, self.steps)

    def _draw(self, current: Pass, output: Any) -> None:
        if self._wants(self.steps):
            self.curvature.draw(current, output, self.steps)

    @property
    def _verifies(self) -> bool:
        return self._wants(self.steps) and self.verification.due(self.steps, self.groups)

    def _forget(self) -> None:
        """Drop what was collected since the last step."""
        self._examples = 0
        self._modes.clear()
        self._clear()
        self.verification.clear()

    def _fold(self) -> None:
        """Take in what has been backpropagated since the last look, so that nothing piles up in gradient accumulation."""
        seen = self.observer.take()
        self._examples += seen.examples
        self._modes |= seen.modes
        if self.grad_scaler is not None:
            self._unscale = 1.0 / float(self.grad_scaler.get_scale())
        if not self._wants(self.steps):
            return
        samples: dict[Group, list[Sample]] = {}
        with torch.no_grad():
            for group, calls in seen.calls.items():
                if group in self.passed:
                    continue
                dtype = torch.promote_types(self.parameters[group.names[0]].dtype, torch.float32)
                uses = self.observer.uses(calls, seen.examples, dtype, drawn=not self.curvature.from_loss)
                samples[group] = samples_of(uses)
                if self._verifies:
                    losses = self.observer.uses(calls, seen.examples, dtype, drawn=False)
                    self.verification.add(group, calls, samples_of(losses))
            self._collect({group: found for group, found in samples.items() if found}, seen.examples)

    @torch.no_grad()
    def step(self, batch_size: int | None = None) -> bool:
        """Precondition the gradients in place.

        Args:
            batch_size: examples (of this process) since the last step, if the model's input does not show it.

        Returns:
            False when the gradients or statistics are not finite: then neither gradients nor state are touched.
        """
        if batch_size is not None:
            check_period("batch_size", batch_size)
        try:
            self._fold()
            return self._precondition(self._examples if batch_size is None else batch_size)
        finally:
            self.observer.looks = 0
            self.observer.forget()
            self._forget()

    def _precondition(self, examples: int) -> bool:
        if examples < 1:
            if self.observer.runs_seen and not self._gradients():
                return True  # a pass that reached nothing of what is preconditioned
            raise ModelError(NOTHING_SEEN if self.observer.attached else HOOKS_OFF)
        self.watch.step_begins(training=self._modes != {False})
        if self.observer.misses(self.groups):
            raise ModelError(CLEARED)
        if not self._all_finite(self._gradients()):
            return False
        if self._verifies:
            brought, interrupted = brought_to(self.groups, self.observer), self.observer.interrupted
            self._pass_on(self.verification.verdicts(self.steps, brought, self.processes, interrupted))
        (total,) = self.processes.totals([float(examples)])
        gain = gain_of(self.loss_reduction, examples)
        self.mean_factor = gain * self.processes.size / total
        if self.groups:  # some are left after the verification
            self._update(gain * self._unscale if self.curvature.from_loss else 1.0, total)
            gradients = self._gradients()
            self._write(gradients, self._natural(gradients, total * self.mean_factor**2))
        self.steps += 1
        self.watch.step_ends()
        return True

    def _gradients(self) -> Gradients:
        """Of the groups that are treated and have them; zeros where a weight has one and its bias has not."""
        found = {}
        for group in self.groups:
            own = [self.parameters[name] for name in group.names]
            if any(p.grad is not None for p in own):
                found[group] = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        return found

    def _all_finite(self, gradients: Gradients) -> bool:
        flat = [grad for grads in gradients.values() for grad in grads]
        finite = not flat or bool(torch.isfinite(torch.stack(torch._foreach_norm(flat))).all())
        if self.processes.all_agree(finite and self._finite()):
            return True
        self.skipped += 1
        tell(
            f"Step {self.steps}: gradients or their statistics are not finite; the curvature stays as it was and the "
            "gradients are left untouched. Skip this update (NaturalSGD does), lower the learning rate or raise the damping."
        )
        return False

    def _pass_on(self, reasons: dict[Group, str]) -> None:
        """Groups that turned out not to be what they looked like keep their gradients from now on."""
        if not reasons:
            return
        self.passed |= reasons
        self.groups = [group for group in self.groups if group not in reasons]
        told = "; ".join(f"{group.name}: {reason}" for group, reason in reasons.items())
        tell(f"Not preconditioned: {told}.")
        self._warn_of_little()

    def _warn_of_little(self) -> None:
        """A word, once, when less than half of the parameters are preconditioned."""
        sizes = {group: sum(self.parameters[name].numel() for name in group.names) for group in self.passed}
        share = 1 - sum(sizes.values()) / self.layout.numel
        if share < HALF and not self._warned:
            self._warned = True
            tell(shortfall(self.name, share, [(g.names, sizes[g], reason) for g, reason in self.passed.items()]))

    def _write(self, gradients: Gradients, natural: Gradients) -> None:
        pairs = [
            (self.parameters[name], old, new)
            for group, tensors in natural.items()
            for name, old, new in zip(group.names, gradients[group], tensors, strict=True)
        ]
        factor = self.clipping.factor(pairs, self.steps)
        for _, old, new in pairs:
            old.copy_(new if factor == 1.0 else new * factor)

    def trial(self, evaluate: Evaluate) -> AbstractContextManager[None]:
        """Measure what the step inside the block does, and adapt the damping; does nothing unless that is due.

            with precond.trial(lambda: F.cross_entropy(model(x), y, reduction="none")):
                precond.step(); optimizer.step()

        Cost: two forward passes, every `damping.period` steps.

        Args:
            evaluate: losses of some examples, (N,) or their mean: the training batch's, or better (for `NoiseAware`)
                those of a batch that the step has not seen.
        """
        return adapt(self, evaluate)

    def paused(self) -> AbstractContextManager[None]:
        """A block in which the model is not observed: no hooks on its modules."""
        return self.observer.paused()

    def remove(self) -> None:
        """Take all hooks off the model for good."""
        self.observer.detach()

    def attach(self, optimizer: torch.optim.Optimizer) -> Any:
        """Let `optimizer.step()` begin with `self.step()`; returns the handle that undoes it."""

        def precondition(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
                raise InputError(
                    "A closure runs inside the optimizer's step, after the preconditioner: call it yourself."
                )
            self.step()

        self.watch.driven(optimizer)
        return optimizer.register_step_pre_hook(precondition)

    def report(self) -> Report:
        """What is done with every parameter."""
        sizes = {spec.name: spec.numel for spec in self.layout}
        rows = [
            Treatment(g.names, sum(sizes[n] for n in g.names), "" if g in self.passed else self._treatment(g), reason)
            for g, reason in {**dict.fromkeys(self.groups, ""), **self.passed}.items()
        ]
        return Report(self.name, tuple(sorted(rows, key=lambda row: self.layout.names.index(row.names[0]))))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later step depends on; resuming from it continues bit for bit."""
        adaptive = self.damping.state_dict() if isinstance(self.damping, AdaptiveDamping) else None
        return {
            "name": self.name,
            "steps": self.steps,
            "skipped": self.skipped,
            "damping": adaptive,
            "verified": [group.name for group in self.groups if group in self.verification.done],
            "passed": {group.name: reason for group, reason in self.passed.items()},
            "state": self._state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of a preconditioner of the same kind on the same model."""
        if state.get("name") != self.name:
            raise InputError(f"This state belongs to {state.get('name')!r}, not to {self.name!r}.")
        known = {group.name: group for group in (*self.groups, *self.passed)}
        named = {*state["passed"], *state["verified"]}
        if not named <= set(known):
            raise InputError(f"This state belongs to another model: unknown {', '.join(sorted(named - set(known)))}.")
        self._load(state["state"])
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.passed |= {known[name]: reason for name, reason in state["passed"].items()}
        self.groups = [group for group in self.groups if group not in self.passed]
        self.verification.done = {known[name] for name in state["verified"]}
        self.verification.last = self.steps
        if isinstance(self.damping, AdaptiveDamping) and state["damping"] is not None:
            self.damping.load_state_dict(state["damping"])
        self.observer.forget()
        self._forget()

    def __repr__(self) -> str:
        treated = sum(len(group.names) for group in self.groups)
        return f"{type(self).__name__}({treated} of {len(self.layout)} parameters, step {self.steps}, damping {self.epsilon:g})"

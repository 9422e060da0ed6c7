"""Early stopping without held-out data: when the part of the labels that a network learns fast has been learnt."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import take_examples
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.errors import InputError
from tangentlab.linearized.information import InformationSpace, information_space
from tangentlab.recorder.isolation import undisturbed, unwrapped
from tangentlab.recorder.likelihoods import classes_last, guessed, loss_slopes
from tangentlab.recorder.probes import Probe
from tangentlab.schedule import Geometric, schedule_of

AT_ONCE = 500
"""Examples per forward pass."""


class Patience:
    """Stop when a number has not become smaller for a share of the time that has passed.

    Attributes:
        best_step: where it was smallest so far.
        best_value: and how small.
    """

    def __init__(self, share: float = 0.5, least: int = 100) -> None:
        if not 0 < share < 1 or least < 0:
            raise InputError(f"The patience is a share of the elapsed steps, 0 < share < 1, not {share}; least >= 0.")
        self.share, self.least = share, least
        self.best_step, self.best_value = 0, inf

    def improved(self, step: int, value: float) -> bool:
        """Take notice of a value; whether it is the smallest so far."""
        if not value < self.best_value:
            return False
        self.best_step, self.best_value = step, value
        return True

    def exhausted(self, step: int) -> bool:
        """Whether `step - best_step >= share * step`, and `least` steps have been done."""
        return step >= self.least and step - self.best_step >= self.share * step


class InformationStopping:
    """Stops a training on noisy labels when its information part has been learnt.

    The labels' leading directions, those of the largest eigenvalues of the tangent kernel at the start, are learnt first; what
    wrong labels add lies mostly outside of them and is learnt later, and its learning disturbs the leading directions again.
    So the rule follows the norm of the error in the r leading directions of the initial kernel, summed over outputs, on some
    training examples with the labels as they are, and takes the point where it is smallest. No example is held out.

        stopping = InformationStopping(model, (x, y))
        for batch in batches:
            ...
            optimizer.step()
            if stopping.step():
                break
        stopping.restore()

    `lightning_callback()` and `hugging_face_callback()` do this inside those trainers.

    It is a heuristic: no theorem says that r is right, and with much larger or smaller r it fails (see the documentation).
    The kernel is that of the model when the rule is made, so make it before the first step.

    Args:
        model: the network at its start; wrappers of compilation and of data-parallel training are taken off.
        data: training examples with their labels: a batch, a dataset, or a loader whose first batches are taken.
        r: directions.
        examples: of the data that are looked at, drawn by chance.
        patience: stop after this share of the elapsed steps without a smaller error.
        least: steps before which it does not stop.
        schedule: when to look; by default at 5 x 1.15^k.
        likelihood: of the labels, as in `TangentRecorder`; decides what the error is.
        seed: of the examples.
        options: `layers`, `forward` and `function`, as in `NTK`.

    Cost: one trace kernel of `examples`, `examples^2` numbers, and its r leading eigenvectors, once; then a forward pass over
    them at every look, and a copy of the model's state.
    """

    @spelled_out
    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        r: int = 50,
        examples: int = 2000,
        patience: float = 0.5,
        least: int = 100,
        schedule: Any = None,
        likelihood: str | Likelihood | None = None,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        self.model, self.steps, self.stopped = unwrapped(model), 0, False
        self.rule, self.schedule = Patience(patience, least), schedule_of(schedule or Geometric(5, 1.15))
        self.history: list[tuple[int, float]] = []
        self._likelihood, function = classes_last(likelihood, options.get("function"))
        self._options: Options = {**options, "function": function, "progress": options.get("progress", False)}
        self._probe = Probe.of("train", data, examples, torch.Generator().manual_seed(seed))
        if self._probe.labels is None:
            raise InputError("The rule needs labels: give (inputs, labels), or a loader or dataset of such.")
        if not 1 <= r <= self._probe.examples:
            raise InputError(f"The argument r must be between 1 and {self._probe.examples}, the examples, not {r}.")
        self._parts = [
            range(k, min(k + AT_ONCE, self._probe.examples)) for k in range(0, self._probe.examples, AT_ONCE)
        ]
        with undisturbed(self.model):
            batches = [self._part(part) for part in self._parts]
            self.space: InformationSpace = information_space(
                self.model, batches, r, outputs="trace", method="gram", **self._options
            )
        self._best: dict[str, Tensor] = {}
        self._look()

    def _part(self, part: range) -> Any:
        device = next(self.model.parameters()).device
        return Probe("train", take_examples(self._probe.batch, part), len(part), None).part(len(part), device)

    def residual(self) -> Tensor:
        """dl/df of the examples that are looked at, `(outputs, examples)`."""
        with undisturbed(self.model):
            network = Network.of(self.model, **self._options)
            values = torch.cat([network.values(self._part(part)) for part in self._parts])
        labels = self._probe.labels
        assert labels is not None
        if self._likelihood is None:
            self._likelihood = guessed([labels], values.shape[1:])
        slopes = loss_slopes(self._likelihood, values.cpu(), labels.cpu())
        if slopes is None:
            raise InputError("No loss is known for this likelihood: give likelihood= of another kind.")
        return slopes.T

    def step(self) -> bool:
        """Call it after every update; True when the training should stop."""
        self.steps += 1
        if not self.stopped and self.schedule.due(self.steps):
            self._look()
        return self.stopped

    def _look(self) -> None:
        value = float(self.space.split(self.residual()).information.norm())
        self.history.append((self.steps, value))
        if self.rule.improved(self.steps, value):
            self._best = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        self.stopped = not isfinite(value) or self.rule.exhausted(self.steps)

    @property
    def best_step(self) -> int:
        """Where the error was smallest."""
        return self.rule.best_step

    def restore(self) -> None:
        """Give the model the state that it had there."""
        self.model.load_state_dict(self._best)

    def state_dict(self) -> dict[str, Any]:
        """All that a rule of the same arguments needs to go on, for a checkpoint."""
        return {
            "steps": self.steps,
            "stopped": self.stopped,
            "history": list(self.history),
            "rule": (self.rule.best_step, self.rule.best_value),
            "best": dict(self._best),
            "basis": {name: getattr(self.space.basis, name) for name in ("eigenvalues", "vectors", "residual_norms")},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps, self.stopped, self._best = state["steps"], state["stopped"], dict(state["best"])
        self.history = [(int(step), float(value)) for step, value in state["history"]]
        self.rule.best_step, self.rule.best_value = state["rule"]
        self.space = InformationSpace(type(self.space.basis)(**state["basis"]))

    def lightning_callback(self) -> Any:
        """A `lightning.pytorch.Callback` that ends a fit, and leaves the model as it was at the best step."""
        from tangentlab.recorder.stopping_callbacks import lightning_stopping

        return lightning_stopping(self)

    def hugging_face_callback(self) -> Any:
        """A `transformers.TrainerCallback` that ends a Trainer's training, and leaves the model as it was at the best step."""
        from tangentlab.recorder.stopping_callbacks import hugging_face_stopping

        return hugging_face_stopping(self)

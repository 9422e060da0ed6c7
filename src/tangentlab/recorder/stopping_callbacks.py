"""`InformationStopping` inside PyTorch Lightning and inside the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tangentlab.recorder.hugging_face import trainer_callback_class
from tangentlab.recorder.lightning import callback_class, derivatives_allowed

if TYPE_CHECKING:
    from tangentlab.recorder.stopping import InformationStopping


def lightning_stopping(stopping: InformationStopping) -> Any:
    """A callback for `Trainer(callbacks=[...])`; its state is part of Lightning's checkpoints.

    Every process of a distributed training looks at the same examples with the same weights, and so decides alike.
    """
    base = callback_class()

    class InformationStoppingCallback(base):  # type: ignore[misc, valid-type]
        """Passes Lightning's events on to an `InformationStopping`."""

        def __init__(self) -> None:
            self.stopping, self._seen = stopping, 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Where the training begins, or goes on."""
            self._seen = trainer.global_step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """After a batch; counts if the optimizer has moved."""
            if trainer.global_step != self._seen:
                self._seen = trainer.global_step
                with derivatives_allowed():
                    trainer.should_stop = stopping.step() or trainer.should_stop

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Back to the best step."""
            stopping.restore()

        def state_dict(self) -> dict[str, Any]:
            """The rule's state."""
            return stopping.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Go on from it."""
            stopping.load_state_dict(state_dict)

    return InformationStoppingCallback()


def hugging_face_stopping(stopping: InformationStopping) -> Any:
    """A callback for `Trainer(callbacks=[...])`. A training that is resumed begins the rule anew at its step."""
    base = trainer_callback_class()

    class InformationStoppingCallback(base):  # type: ignore[misc, valid-type]
        """Passes the Trainer's events on to an `InformationStopping`."""

        def __init__(self) -> None:
            self.stopping = stopping

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Where the training begins, or goes on."""
            stopping.steps = state.global_step

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """After an update of the optimizer."""
            control.should_training_stop = stopping.step() or control.should_training_stop

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Back to the best step."""
            stopping.restore()

    return InformationStoppingCallback()

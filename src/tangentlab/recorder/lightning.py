"""The recorder inside PyTorch Lightning."""

from __future__ import annotations

from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch

from tangentlab.errors import InputError

if TYPE_CHECKING:
    from tangentlab.recorder.recorder import TangentRecorder


def lightning_callback(recorder: TangentRecorder) -> Any:
    """A callback for `Trainer(callbacks=[...])`: a snapshot before training, at the schedule's steps, and at the end.

    Steps are updates of the optimizer, so accumulated batches count once. The recorder's state is part of Lightning's
    checkpoints; a fit that goes on from one without it is joined at its step. In distributed training the process of rank 0
    records.
    """
    base = callback_class()

    class TangentRecorderCallback(base):  # type: ignore[misc, valid-type]
        """Passes Lightning's events on to a `TangentRecorder`."""

        def __init__(self) -> None:
            self.recorder = recorder
            self._seen = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Before the first update."""
            if trainer.is_global_zero:
                total = trainer.estimated_stepping_batches
                self._seen = trainer.global_step
                with derivatives_allowed():
                    recorder.start(int(total) if isfinite(total) and total > 0 else None, trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """After a batch; counts if the optimizer has moved."""
            if not trainer.is_global_zero or trainer.global_step == self._seen:
                return
            self._seen = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            with derivatives_allowed():
                recorder.step(loss=loss)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """After the last update."""
            if trainer.is_global_zero:
                with derivatives_allowed():
                    recorder.finish()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Close the files."""
            recorder.close()

        def state_dict(self) -> dict[str, Any]:
            """The recorder's state."""
            return recorder.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Go on from it."""
            recorder.load_state_dict(state_dict)

    return TangentRecorderCallback()


def derivatives_allowed() -> Any:
    """Lightning may call its callbacks in inference mode, where nothing can be differentiated."""
    return torch.inference_mode(False)


def callback_class() -> Any:
    """Lightning's `Callback`, under either name of the package."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(package).Callback
        except ImportError:
            continue
    raise InputError("This needs Lightning: pip install 'tangentlab[lightning]'.")

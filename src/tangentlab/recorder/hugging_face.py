"""The recorder inside the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.errors import InputError
from tangentlab.files import read_state, write_state

if TYPE_CHECKING:
    from tangentlab.recorder.recorder import TangentRecorder

FILE = "tangent_recorder.pt"


def hugging_face_callback(recorder: TangentRecorder) -> Any:
    """A callback for `Trainer(callbacks=[...])`: a snapshot before training, at the schedule's steps, and at the end.

    The Trainer gives callbacks a loss only when it logs one; the last one logged goes into the rows. The recorder's state is
    saved as `tangent_recorder.pt` in every checkpoint, and taken up from there by `resume_from_checkpoint`. Where it is
    not there, the recorder joins at the Trainer's step.
    """
    base = trainer_callback_class()

    class TangentRecorderCallback(base):  # type: ignore[misc, valid-type]
        """Passes the Trainer's events on to a `TangentRecorder`."""

        def __init__(self) -> None:
            self.recorder = recorder
            self._logged: dict[str, float] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Before the first update, or before the first after a checkpoint."""
            if not state.is_world_process_zero:
                return
            kept = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE
            if state.global_step and kept.exists():
                way_out = "Delete it, and the recorder joins the training at this checkpoint."
                recorder.load_state_dict(read_state(kept, way_out))
            recorder.start(state.max_steps if state.max_steps > 0 else None, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """After an update of the optimizer."""
            if state.is_world_process_zero:
                recorder.step(**self._logged)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
        ) -> None:
            """Keep the loss and the learning rate."""
            wanted = ("loss", "learning_rate", "grad_norm")
            self._logged |= {name: float(value) for name, value in (logs or {}).items() if name in wanted}

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Beside the checkpoint of the model."""
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if state.is_world_process_zero and folder.exists() and not recorder.off:
                with recorder.surviving_the_disk():
                    write_state(folder / FILE, recorder.state_dict())

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """After the last update."""
            if state.is_world_process_zero:
                recorder.finish()

    return TangentRecorderCallback()


def trainer_callback_class() -> Any:
    """The `TrainerCallback` of transformers."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise InputError("This needs transformers: pip install 'tangentlab[transformers]'.") from error
    return TrainerCallback

"""The recorder: a training seen through its tangent kernels, at a tenth of its cost or less.

`TangentRecorder` records, `Recording` reads; `Geometric`, `Every` and `At` say when. `InformationStopping` ends a training.
"""

from tangentlab.recorder.probes import View
from tangentlab.recorder.recorder import TangentRecorder
from tangentlab.recorder.recording import Recording
from tangentlab.recorder.stopping import InformationStopping, Patience
from tangentlab.schedule import At, Every, Geometric, Schedule, When

__all__ = [
    "At",
    "Every",
    "Geometric",
    "InformationStopping",
    "Patience",
    "Recording",
    "Schedule",
    "TangentRecorder",
    "View",
    "When",
]

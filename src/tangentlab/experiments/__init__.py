"""Experiments: questions with measured answers. A module here is one family of figures; `bench` is what they stand on.

An experiment needs four things: parameters (the fields of the class), `run`, `draw`, and claims::

    from tangentlab.experiments import Chapter, Claim, Experiment, Lab, Picture, Results, experiment

    @experiment
    class MyQuestion(Experiment):
        name, title, question, ... = ...
        width: int = 100

        def run(self, lab: Lab) -> None: ...
        def draw(self, results: Results) -> Iterable[Picture]: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tangentlab.experiments.bench.batches import Batches
    from tangentlab.experiments.bench.callbacks import At, Callback, Every, OnProgress, geometric_steps
    from tangentlab.experiments.bench.claims import Claim, Status, Verdict
    from tangentlab.experiments.bench.experiment import Chapter, Cost, Experiment, Picture
    from tangentlab.experiments.bench.lab import Lab
    from tangentlab.experiments.bench.registry import all_experiments, experiment, find
    from tangentlab.experiments.bench.results import Curves, Results, Table
    from tangentlab.experiments.bench.training import Training, train

_WHERE = {
    "batches": ("Batches",),
    "callbacks": ("At", "Callback", "Every", "OnProgress", "geometric_steps"),
    "claims": ("Claim", "Status", "Verdict"),
    "experiment": ("Chapter", "Cost", "Experiment", "Picture"),
    "lab": ("Lab",),
    "registry": ("all_experiments", "experiment", "find"),
    "results": ("Curves", "Results", "Table"),
    "training": ("Training", "train"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "At",
    "Batches",
    "Callback",
    "Chapter",
    "Claim",
    "Cost",
    "Curves",
    "Every",
    "Experiment",
    "Lab",
    "OnProgress",
    "Picture",
    "Results",
    "Status",
    "Table",
    "Training",
    "Verdict",
    "all_experiments",
    "experiment",
    "find",
    "geometric_steps",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the bench piece by piece, when it is used: listing experiments should not load torch."""
    if name in _MODULE_OF:
        return getattr(import_module(f"tangentlab.experiments.bench.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

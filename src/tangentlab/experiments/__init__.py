"""Experiments: questions with measured answers. A module here is one family of figures; they stand on `tangentlab.bench`.

An experiment needs four things: parameters (the fields of the class), `run`, `draw`, and claims:

    from tangentlab.experiments import Chapter, Claim, Experiment, Lab, Picture, Results, experiment

    @experiment
    class MyQuestion(Experiment):
        name, title, question, ... = ...
        width: int = 100

        def run(self, lab: Lab) -> None: ...
        def draw(self, results: Results) -> Iterable[Picture]: ...
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.bench.callbacks import Callback as Callback
    from tangentlab.bench.callbacks import OnPeriod as OnPeriod
    from tangentlab.bench.callbacks import OnProgress as OnProgress
    from tangentlab.bench.callbacks import OnSteps as OnSteps
    from tangentlab.bench.callbacks import geometric_steps as geometric_steps
    from tangentlab.bench.claims import Change as Change
    from tangentlab.bench.claims import Claim as Claim
    from tangentlab.bench.claims import Precondition as Precondition
    from tangentlab.bench.claims import Status as Status
    from tangentlab.bench.experiment import Chapter as Chapter
    from tangentlab.bench.experiment import Cost as Cost
    from tangentlab.bench.experiment import Experiment as Experiment
    from tangentlab.bench.game import Game as Game
    from tangentlab.bench.game import Player as Player
    from tangentlab.bench.game import play as play
    from tangentlab.bench.lab import Lab as Lab
    from tangentlab.bench.minibatches import Minibatches as Minibatches
    from tangentlab.bench.registry import all_experiments as all_experiments
    from tangentlab.bench.registry import experiment as experiment
    from tangentlab.bench.registry import find as find
    from tangentlab.bench.results import Results as Results
    from tangentlab.bench.results import Table as Table
    from tangentlab.bench.tables import read_claims as read_claims
    from tangentlab.bench.training import Training as Training
    from tangentlab.bench.training import train as train
    from tangentlab.bench.verdicts import Verdict as Verdict
    from tangentlab.figures.curves import Curves as Curves
    from tangentlab.figures.picture import Picture as Picture
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

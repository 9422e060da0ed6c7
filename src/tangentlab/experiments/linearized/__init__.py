"""Linearized networks and their kernels: eigenfunctions as tasks, energy, directions, runtimes."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.linearized.directions import NeuralDirections as NeuralDirections
    from tangentlab.experiments.linearized.energy import EnergyConcentration as EnergyConcentration
    from tangentlab.experiments.linearized.pretrained import PretrainedKernel as PretrainedKernel
    from tangentlab.experiments.linearized.runtimes import KernelRuntimes as KernelRuntimes
    from tangentlab.experiments.linearized.sample_size import SampleSize as SampleSize
    from tangentlab.experiments.linearized.tasks import EigenfunctionTasks as EigenfunctionTasks
    from tangentlab.experiments.linearized.tasks import EigenfunctionTasksAdam as EigenfunctionTasksAdam
    from tangentlab.experiments.linearized.tasks import EigenfunctionTasksMnist as EigenfunctionTasksMnist
    from tangentlab.experiments.linearized.tasks import EigenfunctionTasksResNet as EigenfunctionTasksResNet
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

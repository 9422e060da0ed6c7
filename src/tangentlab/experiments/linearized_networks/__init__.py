"""Figures 5.3, 5.4 and C.9, and the experiments on linearized networks: eigenfunctions, energy, directions."""

from tangentlab.experiments.linearized_networks.dense import DenseRegimes
from tangentlab.experiments.linearized_networks.directions import NeuralDirections
from tangentlab.experiments.linearized_networks.energy import EnergyConcentration
from tangentlab.experiments.linearized_networks.pretrained import PretrainedKernel
from tangentlab.experiments.linearized_networks.quadratic import QuadraticRegimes
from tangentlab.experiments.linearized_networks.runtimes import KernelRuntimes
from tangentlab.experiments.linearized_networks.sample_size import SampleSize
from tangentlab.experiments.linearized_networks.spurious import SpuriousCue
from tangentlab.experiments.linearized_networks.spurious_files import SpuriousCelebA, SpuriousWaterbirds
from tangentlab.experiments.linearized_networks.tasks import (
    EigenfunctionTasks,
    EigenfunctionTasksAdam,
    EigenfunctionTasksMnist,
    EigenfunctionTasksResNet,
)

__all__ = [
    "DenseRegimes",
    "EigenfunctionTasks",
    "EigenfunctionTasksAdam",
    "EigenfunctionTasksMnist",
    "EigenfunctionTasksResNet",
    "EnergyConcentration",
    "KernelRuntimes",
    "NeuralDirections",
    "PretrainedKernel",
    "QuadraticRegimes",
    "SampleSize",
    "SpuriousCelebA",
    "SpuriousCue",
    "SpuriousWaterbirds",
]

"""The limits of learning: cross-predictability, statistical queries, and networks that are computers.

What gradient descent cannot learn (Abbe and Sandon 2019), measured: families of Boolean functions, how well their members
predict each other, the bound that follows for noisy gradient descent, and networks that plain SGD turns into any learner.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.limits.algorithms import Algorithm as Algorithm
    from tangentlab.limits.algorithms import DecisionList as DecisionList
    from tangentlab.limits.algorithms import Elimination as Elimination
    from tangentlab.limits.algorithms import Perceptron as Perceptron
    from tangentlab.limits.algorithms import SparseParity as SparseParity
    from tangentlab.limits.circuits import Circuit as Circuit
    from tangentlab.limits.circuits import Signal as Signal
    from tangentlab.limits.cluster_theorems import ClusterTheorem as ClusterTheorem
    from tangentlab.limits.cluster_theorems import MixtureTheorem as MixtureTheorem
    from tangentlab.limits.cube import Inputs as Inputs
    from tangentlab.limits.cube import ProductInputs as ProductInputs
    from tangentlab.limits.cube import SampledInputs as SampledInputs
    from tangentlab.limits.cube import TableInputs as TableInputs
    from tangentlab.limits.cube import UniformInputs as UniformInputs
    from tangentlab.limits.cube import all_inputs as all_inputs
    from tangentlab.limits.emulation import EmulatingNetwork as EmulatingNetwork
    from tangentlab.limits.emulation import GivenCircuit as GivenCircuit
    from tangentlab.limits.emulation import accuracy as accuracy
    from tangentlab.limits.emulation import add_noise as add_noise
    from tangentlab.limits.emulation import train_by_sgd as train_by_sgd
    from tangentlab.limits.families import Halfspaces as Halfspaces
    from tangentlab.limits.families import Juntas as Juntas
    from tangentlab.limits.families import Majorities as Majorities
    from tangentlab.limits.families import Monomials as Monomials
    from tangentlab.limits.families import Parities as Parities
    from tangentlab.limits.functions import CallableFamily as CallableFamily
    from tangentlab.limits.functions import Family as Family
    from tangentlab.limits.functions import Functions as Functions
    from tangentlab.limits.functions import TableFamily as TableFamily
    from tangentlab.limits.growth import Growth as Growth
    from tangentlab.limits.growth import growth_of as growth_of
    from tangentlab.limits.growth import predictability_growth as predictability_growth
    from tangentlab.limits.idealized import MemoryEdgeNetwork as MemoryEdgeNetwork
    from tangentlab.limits.idealized import SharedMemoryNetwork as SharedMemoryNetwork
    from tangentlab.limits.junk import GradientBound as GradientBound
    from tangentlab.limits.junk import JunkFlow as JunkFlow
    from tangentlab.limits.junk import gradient_bound as gradient_bound
    from tangentlab.limits.junk import junk_flow as junk_flow
    from tangentlab.limits.learners import Descent as Descent
    from tangentlab.limits.learners import FromSamples as FromSamples
    from tangentlab.limits.learners import Learner as Learner
    from tangentlab.limits.learners import QueryDescent as QueryDescent
    from tangentlab.limits.learners import Standing as Standing
    from tangentlab.limits.learners import compare_learners as compare_learners
    from tangentlab.limits.learners import relu_network as relu_network
    from tangentlab.limits.parsing import parse_circuit as parse_circuit
    from tangentlab.limits.plateau import PlateauNetwork as PlateauNetwork
    from tangentlab.limits.plateau import compile_circuit as compile_circuit
    from tangentlab.limits.population import Population as Population
    from tangentlab.limits.population import gradient_norms as gradient_norms
    from tangentlab.limits.population import logistic_loss as logistic_loss
    from tangentlab.limits.population import population_gradient as population_gradient
    from tangentlab.limits.population import squared_loss as squared_loss
    from tangentlab.limits.predictability import CrossPredictability as CrossPredictability
    from tangentlab.limits.predictability import correlations as correlations
    from tangentlab.limits.predictability import cross_predictability as cross_predictability
    from tangentlab.limits.predictability import data_free_accuracy as data_free_accuracy
    from tangentlab.limits.predictability import estimate_cross_predictability as estimate_cross_predictability
    from tangentlab.limits.predictability import label_spectrum as label_spectrum
    from tangentlab.limits.predictability import sampled_predictability as sampled_predictability
    from tangentlab.limits.predictability import table_correlations as table_correlations
    from tangentlab.limits.queries import QueryOracle as QueryOracle
    from tangentlab.limits.queries import queries_needed as queries_needed
    from tangentlab.limits.queries import query_bound as query_bound
    from tangentlab.limits.queries import sq_dimension as sq_dimension
    from tangentlab.limits.task_families import Additions as Additions
    from tangentlab.limits.task_families import Communities as Communities
    from tangentlab.limits.task_families import DecisionTrees as DecisionTrees
    from tangentlab.limits.task_families import DNFs as DNFs
    from tangentlab.limits.walsh import walsh_coefficients as walsh_coefficients
    from tangentlab.limits.walsh import weight_by_degree as weight_by_degree
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

"""Implicit bias: which of many interpolants a descent chooses, by its geometry, its parametrization and the scale of its start.

Potentials and their minimizers, exact oracles for the limits, flows of diagonal, convolutional and factored predictors,
mirror and coordinate descent, margins of homogeneous models, and functions of one variable (slides of Srebro, 2019).
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.implicit_bias.descents import coordinate_descent as coordinate_descent
    from tangentlab.implicit_bias.descents import mirror_descent as mirror_descent
    from tangentlab.implicit_bias.flows import FlowPath as FlowPath
    from tangentlab.implicit_bias.flows import follow_flow as follow_flow
    from tangentlab.implicit_bias.homogeneous import Stationarity as Stationarity
    from tangentlab.implicit_bias.homogeneous import homogeneity as homogeneity
    from tangentlab.implicit_bias.homogeneous import margin_stationarity as margin_stationarity
    from tangentlab.implicit_bias.line_functions import LineFunction as LineFunction
    from tangentlab.implicit_bias.line_functions import least_line_norm as least_line_norm
    from tangentlab.implicit_bias.line_functions import line_function as line_function
    from tangentlab.implicit_bias.line_functions import path_cost as path_cost
    from tangentlab.implicit_bias.minimizers import Minimum as Minimum
    from tangentlab.implicit_bias.minimizers import minimum_on as minimum_on
    from tangentlab.implicit_bias.oracles import NuclearMinimum as NuclearMinimum
    from tangentlab.implicit_bias.oracles import l1_margin as l1_margin
    from tangentlab.implicit_bias.oracles import l2_margin as l2_margin
    from tangentlab.implicit_bias.oracles import least_l1 as least_l1
    from tangentlab.implicit_bias.oracles import least_l2 as least_l2
    from tangentlab.implicit_bias.oracles import least_nuclear as least_nuclear
    from tangentlab.implicit_bias.parametrizations import convolutional_predictor as convolutional_predictor
    from tangentlab.implicit_bias.parametrizations import diagonal_predictor as diagonal_predictor
    from tangentlab.implicit_bias.parametrizations import diagonal_start as diagonal_start
    from tangentlab.implicit_bias.parametrizations import fourier_norm as fourier_norm
    from tangentlab.implicit_bias.parametrizations import orthogonal_start as orthogonal_start
    from tangentlab.implicit_bias.parametrizations import product_kernel as product_kernel
    from tangentlab.implicit_bias.parametrizations import product_matrix as product_matrix
    from tangentlab.implicit_bias.potentials import Entropy as Entropy
    from tangentlab.implicit_bias.potentials import Euclidean as Euclidean
    from tangentlab.implicit_bias.potentials import FlowPotential as FlowPotential
    from tangentlab.implicit_bias.potentials import Potential as Potential
    from tangentlab.implicit_bias.potentials import distance_potential as distance_potential
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

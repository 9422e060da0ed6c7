"""Layer calculus: per-example gradients of each layer family, from its inputs and output-gradients."""

from tangentlab.layers import attention, conv, linear, lookup, norm
from tangentlab.layers.outer import OuterSum, concatenate
from tangentlab.layers.registry import LayerRule, Matrix, register, rule_of

__all__ = [
    "LayerRule",
    "Matrix",
    "OuterSum",
    "attention",
    "concatenate",
    "conv",
    "linear",
    "lookup",
    "norm",
    "register",
    "rule_of",
]

"""Layer calculus: per-example gradients of each layer family, from its inputs and output-gradients."""

from tangentlab.layers import conv, linear, norm
from tangentlab.layers.outer import OuterSum, concatenate
from tangentlab.layers.registry import LayerRule, register, rule_of

__all__ = ["LayerRule", "OuterSum", "concatenate", "conv", "linear", "norm", "register", "rule_of"]

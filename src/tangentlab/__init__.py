"""tangentlab: the laboratory for networks seen to first order in their parameters."""

__version__ = "0.1.0"

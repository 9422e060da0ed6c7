"""Figures 5.1 to 5.4 and C.1 to C.9: lazy training against feature learning."""

from tangentlab.experiments.lazy.yin_yang import LazyYinYang

__all__ = ["LazyYinYang"]

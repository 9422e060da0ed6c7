"""Figures 5.1, 5.2 and C.1 to C.6: lazy training against feature learning."""

from tangentlab.experiments.lazy.c_scores import LazyCScores, LazyCScoresVGG
from tangentlab.experiments.lazy.label_noise import LazyLabelNoise, LazyLabelNoiseVGG
from tangentlab.experiments.lazy.learning_rates import LazyLearningRates
from tangentlab.experiments.lazy.yin_yang import LazyYinYang

__all__ = [
    "LazyCScores",
    "LazyCScoresVGG",
    "LazyLabelNoise",
    "LazyLabelNoiseVGG",
    "LazyLearningRates",
    "LazyYinYang",
]

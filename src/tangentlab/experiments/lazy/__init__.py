"""Figures 5.1 to 5.4 and C.1 to C.9: lazy training against feature learning."""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.experiments.lazy.c_scores import LazyCScores as LazyCScores
    from tangentlab.experiments.lazy.c_scores import LazyCScoresVGG as LazyCScoresVGG
    from tangentlab.experiments.lazy.dense_networks import DenseRegimes as DenseRegimes
    from tangentlab.experiments.lazy.label_noise import LazyLabelNoise as LazyLabelNoise
    from tangentlab.experiments.lazy.label_noise import LazyLabelNoiseVGG as LazyLabelNoiseVGG
    from tangentlab.experiments.lazy.learning_rates import LazyLearningRates as LazyLearningRates
    from tangentlab.experiments.lazy.quadratic import QuadraticRegimes as QuadraticRegimes
    from tangentlab.experiments.lazy.spurious import SpuriousCue as SpuriousCue
    from tangentlab.experiments.lazy.spurious_files import SpuriousCelebA as SpuriousCelebA
    from tangentlab.experiments.lazy.spurious_files import SpuriousWaterbirds as SpuriousWaterbirds
    from tangentlab.experiments.lazy.yin_yang import LazyYinYang as LazyYinYang
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

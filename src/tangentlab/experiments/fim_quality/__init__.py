"""Figures 3.3 to 3.6: how well each representation of the Fisher matrix does what the exact one would."""

from tangentlab.experiments.fim_quality.experiment import FimQuality

__all__ = ["FimQuality"]

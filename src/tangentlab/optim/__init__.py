"""Natural gradient: preconditioners for any torch optimizer, ready-made optimizers, and SOAP as today's rival."""

from tangentlab.optim.cg import ConjugateGradient
from tangentlab.optim.damping import AdaptiveDamping, LevenbergMarquardt, NoiseAware, Trial
from tangentlab.optim.natural import PRECONDITIONERS, NaturalSGD, make_preconditioner
from tangentlab.optim.preconditioner import Preconditioner
from tangentlab.optim.soap import SOAP
from tangentlab.optim.variants import EKFAC, KFAC, BlockDiagonal, Diagonal, EKFACra

__all__ = [
    "EKFAC",
    "KFAC",
    "PRECONDITIONERS",
    "SOAP",
    "AdaptiveDamping",
    "BlockDiagonal",
    "ConjugateGradient",
    "Diagonal",
    "EKFACra",
    "LevenbergMarquardt",
    "NaturalSGD",
    "NoiseAware",
    "Preconditioner",
    "Trial",
    "make_preconditioner",
]

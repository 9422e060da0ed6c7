"""Mutual information: estimates whose number can be trusted, with their error, and losses for trainings of one's own.

MINE and its relatives (Belghazi, Baratin et al. 2018) fit a critic to tell pairs that belong together from pairs that do not.
Here a fit is stopped on validation data and read on test data, over as many pairs as there are; nearest neighbours, canonical
correlations and exact tables stand behind the same call.
"""

from typing import TYPE_CHECKING

from tangentlab.lazy import imported_on_first_use

if TYPE_CHECKING:
    from tangentlab.information.adversarial import discriminator_loss as discriminator_loss
    from tangentlab.information.adversarial import generator_loss as generator_loss
    from tangentlab.information.adversarial import inference_loss as inference_loss
    from tangentlab.information.adversarial import reconstruction_error as reconstruction_error
    from tangentlab.information.adversarial import squared_cycle as squared_cycle
    from tangentlab.information.all_pairs import PairTable as PairTable
    from tangentlab.information.all_pairs import pair_table as pair_table
    from tangentlab.information.bottleneck import AdditiveEncoder as AdditiveEncoder
    from tangentlab.information.bottleneck import Encoded as Encoded
    from tangentlab.information.bottleneck import GaussianEncoder as GaussianEncoder
    from tangentlab.information.bottleneck import PropagatedEncoder as PropagatedEncoder
    from tangentlab.information.bounds import dv_of_table as dv_of_table
    from tangentlab.information.bounds import f_bound_of_table as f_bound_of_table
    from tangentlab.information.bounds import gibbs as gibbs
    from tangentlab.information.bounds import kl_divergence as kl_divergence
    from tangentlab.information.bounds import sample_size as sample_size
    from tangentlab.information.clipping import adaptive_clip as adaptive_clip
    from tangentlab.information.clipping import clipped_backward as clipped_backward
    from tangentlab.information.closed_forms import canonical_correlations as canonical_correlations
    from tangentlab.information.coverage import ModeCoverage as ModeCoverage
    from tangentlab.information.coverage import coverage_of_modes as coverage_of_modes
    from tangentlab.information.coverage import coverage_of_points as coverage_of_points
    from tangentlab.information.critics import Bilinear as Bilinear
    from tangentlab.information.critics import Concatenated as Concatenated
    from tangentlab.information.critics import Convolutional as Convolutional
    from tangentlab.information.critics import Separable as Separable
    from tangentlab.information.estimate import mutual_information as mutual_information
    from tangentlab.information.fitting import Fit as Fit
    from tangentlab.information.fitting import FitRecipe as FitRecipe
    from tangentlab.information.fitting import fit_critic as fit_critic
    from tangentlab.information.image_similarity import ms_ssim as ms_ssim
    from tangentlab.information.margins import Margin as Margin
    from tangentlab.information.neighbours import ksg_terms as ksg_terms
    from tangentlab.information.objectives import MINE as MINE
    from tangentlab.information.objectives import NWJ as NWJ
    from tangentlab.information.objectives import SMILE as SMILE
    from tangentlab.information.objectives import DonskerVaradhan as DonskerVaradhan
    from tangentlab.information.objectives import FDime as FDime
    from tangentlab.information.objectives import InfoNCE as InfoNCE
    from tangentlab.information.objectives import JensenShannon as JensenShannon
    from tangentlab.information.objectives import Objective as Objective
    from tangentlab.information.result import Diagnostics as Diagnostics
    from tangentlab.information.result import MutualInformation as MutualInformation
    from tangentlab.information.scores import Scores as Scores
    from tangentlab.information.scores import derangement as derangement
    from tangentlab.information.scores import joint_scores as joint_scores
    from tangentlab.information.scores import score_matrix as score_matrix
    from tangentlab.information.scores import score_pairs as score_pairs
else:
    __getattr__, __dir__, __all__ = imported_on_first_use(__name__)

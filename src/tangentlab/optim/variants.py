"""The layer-wise preconditioners: diagonal, block-diagonal, KFAC, EKFAC, EKFAC-ra."""

from __future__ import annotations

from typing import Any

from torch import nn

from tangentlab.errors import InputError
from tangentlab.objects.pmat.pi import Pi, check_pi
from tangentlab.optim.hyperparameters import Schedule
from tangentlab.optim.layer_block import BlockOptions
from tangentlab.optim.layerwise import BlockPreconditioner


class Diagonal(BlockPreconditioner):
    """g / (E[g_i^2] + eps): second moments of the gradient's own entries.

    Memory d; every step squares per-example gradients (`running=False`) or only the batch gradient (`running=True`).

    Args:
        model: the network.
        running: estimate the second moment by N times the squared mean gradient of each batch, averaged over steps,
            in place of per-example gradients.
        scale_decay: weight of the old second moment; by default 0 for per-example moments and 0.95 for running ones.
        options: of `Preconditioner` (damping, layers, curvature, ...).
    """

    name = "diagonal"
    idle = (
        "period",
        "warm_up",
        "gentle_start",
        "factor_period",
        "factor_decay",
        "sua",
        "refresh",
        "eigh_every",
        "separate_weight_and_bias",
    )

    def __init__(
        self, model: nn.Module, *, running: bool = False, scale_decay: Schedule | None = None, **options: Any
    ) -> None:
        self.name = "diagonal-ra" if running else "diagonal"
        if running and options.get("curvature", "empirical") != "empirical":
            raise InputError(
                "The argument running=True squares the gradient of the loss: curvature= other than 'empirical' has no use."
            )
        block = BlockOptions("batch" if running else "per_example", factors=False, form="plain")
        decay: Schedule = (0.95 if running else 0.0) if scale_decay is None else scale_decay
        super().__init__(model, block, scale_decay=decay, **options)


class BlockDiagonal(BlockPreconditioner):
    """(F_l + eps I)^-1 g_l with the full second moment F_l of every layer: for small layers.

    Memory and time d_l^2 and d_l^3 per layer; a layer above `block_limit` parameters is an error.

    Args:
        model: the network.
        period: steps between inverses.
        factor_decay: weight of the old F_l.
        block_limit: largest d_l.
        options: of `BlockPreconditioner` and `Preconditioner`.
    """

    name = "block-diagonal"
    idle = ("gentle_start", "sua", "scale_decay", "refresh", "eigh_every", "factor_limit")

    def __init__(
        self,
        model: nn.Module,
        *,
        period: int = 1,
        factor_decay: Schedule = 0.0,
        block_limit: int = 4096,
        **options: Any,
    ) -> None:
        block = BlockOptions("kronecker", rowwise=True, form="plain", inverse="cholesky")
        super().__init__(model, block, period=period, factor_decay=factor_decay, block_limit=block_limit, **options)


class KFAC(BlockPreconditioner):
    """B^-1 g A^-1 per layer (Martens & Grosse 2015; Grosse & Martens 2016 for convolutions).

    A = E[a a^T] of the inputs (with a homogeneous 1), B = E[Ds Ds^T] of the output-gradients; memory d_in^2 + d_out^2,
    inverses d_in^3 + d_out^3 every `period` steps, two products per step.

    Args:
        model: the network.
        period: steps between inverses.
        factor_period, factor_decay: when and how A and B are averaged.
        damping_form: "factored", (A + sqrt(eps) I)^-1 and (B + sqrt(eps) I)^-1, or "plain", (A x B + eps I)^-1.
        pi: balance the factored damping, A + pi sqrt(eps) I and B + sqrt(eps) / pi I: True for the root of the ratio of
            the factors' mean eigenvalues, a number, or a mapping from layer names or globs to either, of which the first
            that covers a layer counts; the others have 1.
        cutoff: keep this many (or this fraction of) modes of each layer's Kronecker eigenbasis, zero the rest.
        inverse: "cholesky", or "eigh", with which a change of the damping acts at once rather than at the next refresh;
            by default the first where it can.
        sua: spatially uncorrelated activations in convolutions: A has the size of the channels, not of the patches.
        sharing: "expand" or "reduce" for weights shared over positions.
        options: of `BlockPreconditioner` and `Preconditioner`.
    """

    name = "kfac"
    idle = ("scale_decay", "rebase")

    def __init__(
        self,
        model: nn.Module,
        *,
        period: int = 50,
        damping_form: str = "factored",
        pi: Pi = False,
        cutoff: int | float | None = None,
        inverse: str | None = None,
        sharing: str = "expand",
        **options: Any,
    ) -> None:
        if inverse is None:
            inverse = "cholesky" if damping_form == "factored" and cutoff is None else "eigh"
        block = BlockOptions("kronecker", form=damping_form, pi=pi, cutoff=cutoff, inverse=inverse, sharing=sharing)
        super().__init__(model, block, period=period, **options)
        check_pi(pi, self.parameters)


class EKFAC(BlockPreconditioner):
    """KFAC's eigenbasis with second moments that are right in it (George et al. 2018, Algorithm 1).

        g~ = U_B^T g U_A;   g~ / (s* + eps');   U_B (.) U_A^T,       s* = E[(U_B^T g_i U_A)^2] over the batch's examples

    The basis is recomputed every `period` steps, s* at every step. Cost per step beyond SGD: four products for the
    gradient and, for s*, the projections of all per-example factors.

    Args:
        model: the network.
        period: n, steps between eigenbases.
        scale_decay: weight of the old s* (0 as in the thesis: each batch anew).
        damping_form: "factored", eps' = (S_A + sqrt(eps)) x (S_B + sqrt(eps)) - S_A x S_B (appendix A.4), or "plain".
        pi: balance the factored damping, as in `KFAC`.
        cutoff: keep this many (or this fraction of) modes, zero the rest.
        rebase: with a scale_decay, what s* becomes in a new basis: "kfac" (S_A x S_B), "transport" (the old matrix's
            diagonal in the new basis) or "keep".
        sua, sharing: as in `KFAC`.
        options: of `BlockPreconditioner` and `Preconditioner`.
    """

    name = "ekfac"

    def __init__(
        self,
        model: nn.Module,
        *,
        period: int = 50,
        damping_form: str = "factored",
        pi: Pi = False,
        cutoff: int | float | None = None,
        rebase: str = "kfac",
        sharing: str = "expand",
        **options: Any,
    ) -> None:
        block = BlockOptions("per_example", form=damping_form, pi=pi, cutoff=cutoff, rebase=rebase, sharing=sharing)
        super().__init__(model, block, period=period, **options)
        check_pi(pi, self.parameters)


class EKFACra(BlockPreconditioner):
    """EKFAC-ra: the second moments are a running average of squared batch gradients in the eigenbasis.

        s <- alpha s + (1 - alpha) N (U_B^T gbar U_A)^2,       gbar the mean gradient of the batch's N examples

    Between refreshes nothing is read but the gradients themselves: per step four products and a few passes over the
    parameters. The factor N makes the expectation that of s* when gradients are dominated by noise.

    Args:
        model: the network.
        period: n, steps between eigenbases.
        scale_decay: alpha.
        rebase: what s becomes in a new basis: "kfac" (S_A x S_B, as in the authors' code), "transport" or "keep".
        thin: where A is measured on so few rows (examples times positions, at most 0.6 of its size) that it is singular,
            keep its eigenvectors of nonzero eigenvalue only, and one second moment per row of U_B^T g for all directions
            outside (`RestBasis`): wide layers then cost about half. For A of one batch alone (factor_decay 0), with rebase
            "kfac" and no cutoff. By default all eigenbases are full.
        damping_form, pi, cutoff, sua, sharing: as in `EKFAC`.
        options: of `BlockPreconditioner` and `Preconditioner`.
    """

    name = "ekfac-ra"

    def __init__(
        self,
        model: nn.Module,
        *,
        period: int = 50,
        scale_decay: Schedule = 0.75,
        damping_form: str = "factored",
        pi: Pi = False,
        cutoff: int | float | None = None,
        rebase: str = "kfac",
        thin: bool = False,
        sharing: str = "expand",
        **options: Any,
    ) -> None:
        averaged = options.get("factor_decay", 0)
        if thin and (rebase != "kfac" or cutoff is not None or not (callable(averaged) or averaged == 0)):
            raise InputError(
                "The argument thin=True has no single modes outside the span of one batch: it takes rebase='kfac', no cutoff "
                "and no factor_decay (or one that is a function of the step, for the steps at which it is 0)."
            )
        block = BlockOptions(
            "batch", form=damping_form, pi=pi, cutoff=cutoff, rebase=rebase, sharing=sharing, thin=thin
        )
        super().__init__(model, block, period=period, scale_decay=scale_decay, **options)
        check_pi(pi, self.parameters)

"""Curvatures besides the Fisher matrix: Gauss-Newton matrices, Hessians, gradient covariances and KFRA.

Arguments as in `tangentlab.metrics`. `loss` is "classification", "log_softmax", "binary", "regression", "segmentation" (their
negative log-likelihoods), a `Likelihood`, any function (outputs, targets) -> one value per example (or per position of an
example; positions are summed), or "model" for the loss in the model's own output, as models of transformers give it.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.hessian import LossHessian
from tangentlab.engine.kfra import affine, feed_forward_statistics, recursion
from tangentlab.engine.likelihood import Likelihood, loss_of
from tangentlab.engine.losses import LossFunction
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.own_loss import with_loss
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import ConvexLoss
from tangentlab.errors import InputError, StructureError
from tangentlab.metrics import build_matrix, loss_rows
from tangentlab.objects.pmat import PMat, PMatDense, PMatImplicit, PMatKFAC
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pmat.blockwise import BlockwisePMat
from tangentlab.objects.pmat.kronecker import KronBlock, MatrixForm
from tangentlab.objects.pmat.lowrank import PMatLowRank
from tangentlab.objects.pvector import PVector

Loss = str | Likelihood | LossFunction


@spelled_out
def GGN(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    loss: Loss = "classification",
    **options: Unpack[Options],
) -> PMat:
    """Generalized Gauss-Newton matrix G = 1/n sum_n J_n^T (d^2 loss_n / df_n^2) J_n of a loss that is convex in the outputs.

    In every representation that a Fisher matrix has, KFAC and EKFAC included. For negative log-likelihoods of exponential
    families in their natural parameters it equals the Fisher matrix (Martens 2020), which `FIM` computes cheaper. Cost: one
    backward per output, plus what the representation needs. A loss that is not convex raises NumericsError.
    """
    network, batches, loss = with_loss(Network.of(model, **options), loader, loss, of_outputs=True)
    return build_matrix(representation, Rows(network, batches, ConvexLoss(loss)))


@spelled_out
def Hessian(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatImplicit,
    loss: Loss = "classification",
    **options: Unpack[Options],
) -> PMat:
    """Hessian H = 1/n sum_n d^2 loss_n / dw^2: symmetric, in general indefinite.

    `representation`: PMatImplicit (Hessian-vector products), PMatDense, PMatBlockDiag and PMatDiag (exact, one product per
    parameter), PMatQuasiDiag (its entries, exact), PMatLowRank.with_options(rank=k) (eigenpairs of largest magnitude), and
    for linear layers that are applied once per example PMatKronSum (the blocks as 1/n sum a a^T (x) Hess_s, exact), PMatKFAC
    (mean a a^T (x) mean Hess_s) and PMatEKFAC (the exact diagonal in the eigenbasis of that).
    """
    if not hasattr(representation, "from_hessian"):
        raise InputError(
            f"The argument representation must be a class such as PMatImplicit or PMatDense, not {representation!r}."
        )
    network, batches, loss = with_loss(Network.of(model, **options), loader, loss)
    return representation.from_hessian(LossHessian(network, batches, loss_of(loss)))


@spelled_out
def GradientCovariance(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    loss: Loss = "classification",
    *,
    centred: bool = True,
    **options: Unpack[Options],
) -> PMat:
    """Covariance of per-example gradients, C = 1/n sum_n (g_n - g)(g_n - g)^T with g the mean (TONGA, Le Roux et al. 2008).

    centred=False keeps the second moment, 1/n sum_n g_n g_n^T, as `FIM_Empirical` does. The mean is taken off exactly in
    every representation that stores the affected entries (EKFAC in its own basis); KFAC, whose factors cannot take it up,
    becomes the lazy difference KFAC - g g^T. Cost: one backward, and one more for the mean.
    """
    rows = loss_rows(Network.of(model, **options), loader, loss)
    moment = build_matrix(representation, rows)
    if not centred:
        return moment
    mean = mean_gradient(rows)
    if isinstance(moment, BlockwisePMat):
        return moment.less_outer(mean)
    return moment + PMatLowRank.from_factors(moment.layout, mean.flat[None], weights=-1.0)


def mean_gradient(rows: Rows) -> PVector:
    """1/n sum over examples of their rows, streamed."""
    layout = rows.network.layout
    parts: dict[str, Tensor] = {}
    examples = 0
    for chunk in rows:
        examples += chunk.examples * chunk.first
        for group, factor in chunk.factors.items():
            weights = factor.left.new_ones((factor.outputs, factor.examples))
            sizes = [torch.Size(layout.shapes[name]).numel() for name in group.names]
            for name, piece in zip(group.names, factor.pull(weights).split(sizes), strict=True):
                parts[name] = parts[name] + piece if name in parts else piece
    return PVector(layout, torch.cat([parts[name] for name in layout.names]) / examples)


@spelled_out
def KFRA(
    model: nn.Module,
    loader: Any,
    loss: Loss = "classification",
    **options: Unpack[Options],
) -> PMatKFAC:
    """Kronecker-factored recursive approximation of the Gauss-Newton matrix (Botev, Ritter & Barber 2017).

    For a chain of linear layers with entrywise activations s': A as in KFAC, and instead of sampled or exact output-gradients
    the batch-averaged recursion G_l = (W^T G_{l+1} W) * mean(s' s'^T), from the mean Hessian of the loss in the outputs
    down. No backward pass per output. Exact for one example, and for linear chains with a quadratic loss.
    """
    network = Network.of(model, **options)
    curvature = ConvexLoss(loss)
    statistics, output, examples = feed_forward_statistics(network, Batches(loader), curvature.hessians)
    units = recursion(network, statistics, output, examples)
    blocks: dict[tuple[str, ...], Block] = {}
    for name, found in statistics.items():
        names = [f"{name}.{local}".lstrip(".") for local in affine(model.get_submodule(name)) or ()]
        owned = tuple(n for n in names if n in network.layout)
        if not owned:
            continue
        inputs, bias = found.inputs / examples, len(owned) == 2
        if len(names) == 2 and not bias:
            inputs = inputs[:-1, :-1] if owned[0] == names[0] else inputs[-1:, -1:]
        form = MatrixForm((1, len(units[name]), len(inputs) - bias), bias)
        blocks[owned] = KronBlock(units[name][None], inputs[None], form)
    missing = set(network.layout.names) - {name for names in blocks for name in names}
    if missing:
        raise StructureError(
            f"KFRA is defined for linear layers only, not for {', '.join(sorted(missing))}: use layers=."
        )
    return PMatKFAC(network.layout, blocks, examples=examples, likelihood="KFRA")

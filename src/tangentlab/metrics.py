"""The factories users call: Fisher matrices, tangent kernels, Jacobians and per-example gradients of any model.

Arguments that all of them share:

* `model`: any `torch.nn.Module` whose outputs on an example depend on that example alone (eval-mode batch norm).
* `loader`: a DataLoader, a tensor, an (inputs, targets) tuple, a dict, or any iterable of these.
* `**options`: `layers`, `forward`, `function`, `verify`, `n_output` and `progress`, see `Options`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.likelihood import Likelihood, likelihood_of
from tangentlab.engine.losses import LossFunction
from tangentlab.engine.memory import memory_limit
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.own_loss import with_loss
from tangentlab.engine.rows import Rows
from tangentlab.engine.tangent_kernel import tangent_kernel
from tangentlab.engine.weightings import Empirical, Exact, MonteCarlo, Unweighted
from tangentlab.errors import InputError
from tangentlab.objects.fmat import FMat, FMatDense
from tangentlab.objects.fmat_implicit import FMatImplicit
from tangentlab.objects.fvector import check_centring
from tangentlab.objects.maps import PullBack, PushForward, PushForwardDense
from tangentlab.objects.pmat import PMat, PMatDense
from tangentlab.objects.pvector import PVector


@spelled_out
def FIM(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    likelihood: str | Likelihood | None = None,
    *,
    variant: str | None = None,
    **options: Unpack[Options],
) -> PMat:
    """Fisher information matrix F = 1/n sum_n E_{y ~ p(y|x_n)}[ dlog p dlog p^T ], the expectation in closed form.

    `likelihood` is "classification" (default; softmax over the last axis of logits), "log_softmax", "binary" (also
    multi-label), "regression" (or `Regression(variance)`, whose inverse the Fisher uses), "segmentation" (classes on axis
    1), or a `Likelihood`. Cost: one backward per class but one, plus what the representation needs.
    """
    weighting = Exact(likelihood_of(_one_of(likelihood, variant)))
    return build_matrix(representation, Rows(Network.of(model, **options), loader, weighting))


@spelled_out
def FIM_MonteCarlo(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    likelihood: str | Likelihood | None = None,
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
    labels: Any = None,
    variant: str | None = None,
    trials: int | None = None,
    **options: Unpack[Options],
) -> PMat:
    """Unbiased estimate of the Fisher from labels drawn from the model: one backward per sample, whatever the classes.

    `labels` shares the draws of another matrix (`F.labels`, or one tensor (samples, examples, ...)); `generator` seeds them.
    `trials` is another name of `samples`.
    """
    weighting = MonteCarlo(
        likelihood_of(_one_of(likelihood, variant)), samples if trials is None else trials, generator, labels
    )
    rows = Rows(Network.of(model, **options), loader, weighting, ordered=labels is not None)
    result = build_matrix(representation, rows)
    result.labels = weighting.labels  # type: ignore[attr-defined]
    return result


@spelled_out
def FIM_Empirical(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    likelihood: str | Likelihood | None = None,
    *,
    loss: str | Likelihood | LossFunction | None = None,
    variant: str | None = None,
    **options: Unpack[Options],
) -> PMat:
    """Second moment of per-example loss gradients at the observed targets, 1/n sum g_n g_n^T. Cost: one backward.

    `loss(outputs, targets)` gives one value per example; without it the negative log-likelihood is taken, or with "model" the
    loss in the model's own output. Often called empirical Fisher, though it is not the Fisher matrix.
    """
    loss = _one_of(likelihood, variant) if loss is None else loss
    return build_matrix(representation, loss_rows(Network.of(model, **options), loader, loss))


@spelled_out
def NTK(
    model: nn.Module,
    loader: Any,
    loader2: Any = None,
    *,
    outputs: str | int | Sequence[int] = "all",
    per_layer: bool = False,
    center: str | None = None,
    representation: type[FMat] = FMatDense,
    memory: int | None = None,
    **options: Unpack[Options],
) -> Any:
    """Tangent kernel K[c, n, d, m] = <d f_c(x_n) / dw, d f_d(x_m) / dw>, never divided by the number of examples.

    `loader2` gives the cross kernel k(loader, loader2). `outputs`: "all", "trace" (sum over outputs, one "output" left), the
    index of one output, or the indices of some. `per_layer` returns the kernel of every layer; their sum is the kernel.
    `center` is None, "per_output" or "global", by the means over the kernel's own rows and columns. A scalar function of the
    outputs has its kernel by `function=lambda out, batch: out[:, 1] - out[:, 0]`. The order of examples matters, so a
    shuffling DataLoader is refused. No Jacobian is built. `representation` is FMatDense, or FMatImplicit for kernel-vector
    products that store nothing. `memory` is the budget in bytes for this call; `tangentlab.plan(model, x, n)` says
    beforehand what it will cost.
    """
    network = Network.of(model, **options)
    chosen = _chosen_outputs(outputs)
    if center is not None:
        check_centring(center)
    loader = Batches(loader, ordered=True)
    if representation is FMatImplicit:
        return _implicit_kernel(network, loader, loader2, outputs == "trace", chosen, per_layer, center)
    if representation is not FMatDense:
        raise InputError(f"The argument representation must be FMatDense or FMatImplicit, not {representation!r}.")
    layer_of = {name: layer for layer, names in network.layout.layers.items() for name in names}
    with memory_limit(memory):
        kernels = tangent_kernel(
            network,
            loader,
            loader2,
            Unweighted(chosen),
            outputs == "trace",
            lambda group: layer_of[group.names[0]] if per_layer else "",
        )
    result = {name: _finished(data, center) for name, data in kernels.items()}
    return result if per_layer else result[""]


GramMatrix = NTK


def _implicit_kernel(
    network: Network,
    loader: Any,
    loader2: Any,
    trace: bool,
    chosen: list[int] | None,
    per_layer: bool,
    center: str | None,
) -> FMatImplicit | dict[str, FMatImplicit]:
    """The kernel, or one per layer, as products."""
    whole = network
    if chosen is not None:
        network = Network(
            whole.model, whole.layout, lambda model, batch: whole(batch).flatten(1)[:, chosen], progress=whole.progress
        )
    parts = {"": network}
    if per_layer:
        Rows(network, loader, Unweighted(), ordered=True).require_dependence()
        layers = {layer: [s for s in network.layout if s.layer == layer] for layer in network.layout.layers}
        parts = {n: replace(network, layout=LayerCollection(specs)) for n, specs in layers.items()}
    kernels = {name: FMatImplicit(part, loader, loader2, trace=trace, center=center) for name, part in parts.items()}
    return kernels if per_layer else kernels[""]


@spelled_out
def Jacobian(
    model: nn.Module,
    loader: Any,
    representation: Any = PushForwardDense,
    *,
    outputs: list[int] | None = None,
    **options: Unpack[Options],
) -> PushForward | PullBack:
    """The Jacobian (outputs, examples, parameters): PushForward v -> J v, or PullBack u -> J^T u, dense or implicit."""
    return build_matrix(representation, Rows(Network.of(model, **options), loader, Unweighted(outputs), ordered=True))


@spelled_out
def per_example_grads(
    model: nn.Module,
    loader: Any,
    loss: str | Likelihood | LossFunction | None = None,
    *,
    likelihood: str | Likelihood = "classification",
    **options: Unpack[Options],
) -> PVector:
    """Gradient of every example's loss, as a batch of vectors (examples, d); `loss` and `likelihood` as in `FIM_Empirical`."""
    rows = loss_rows(Network.of(model, **options), loader, likelihood if loss is None else loss, ordered=True)
    return PVector(rows.network.layout, PushForwardDense.from_rows(rows).data[0])


@spelled_out
def per_example_grad_norms(
    model: nn.Module,
    loader: Any,
    loss: str | Likelihood | LossFunction | None = None,
    *,
    likelihood: str | Likelihood = "classification",
    **options: Unpack[Options],
) -> Tensor:
    """Euclidean norm of every example's loss gradient, (examples), without building the gradients of linear layers."""
    rows = loss_rows(Network.of(model, **options), loader, likelihood if loss is None else loss, ordered=True)
    squares, dtype = [], torch.float32
    for chunk in rows:
        dtype = next(iter(chunk.factors.values())).right.dtype
        squares.append(torch.stack([factor.squared_norms()[0] for factor in chunk.factors.values()]).sum(0))
    return torch.cat(squares).sqrt().to(dtype)


def _one_of(likelihood: str | Likelihood | None, variant: str | None) -> str | Likelihood:
    if likelihood is not None and variant is not None and likelihood != variant:
        raise InputError(
            f"The arguments likelihood={likelihood!r} and variant={variant!r} are two names of one argument: give one."
        )
    return likelihood if likelihood is not None else variant if variant is not None else "classification"


def _chosen_outputs(outputs: str | int | Sequence[int]) -> list[int] | None:
    """The indices of the outputs that were asked for, None for "all" and "trace"."""
    if isinstance(outputs, str) and outputs in ("all", "trace"):
        return None
    chosen: list[int] = (
        [outputs] if isinstance(outputs, int) else [*outputs] if isinstance(outputs, list | tuple) else []
    )
    if not chosen or any(isinstance(index, bool) or not isinstance(index, int) for index in chosen):
        raise InputError(
            f"The argument outputs must be 'all', 'trace', the index of one output or of several, not {outputs!r}."
        )
    return chosen


def _finished(data: Tensor, center: str | None) -> FMatDense:
    kernel = FMatDense(data if data.ndim == 4 else data[None, :, None, :])
    return kernel if center is None else kernel.center(center)


def loss_rows(network: Network, loader: Any, loss: str | Likelihood | LossFunction, *, ordered: bool = False) -> Rows:
    """The gradient of every example's loss, as rows."""
    network, batches, own = with_loss(network, loader, loss)
    return Rows(network, batches, Empirical(own), ordered=ordered)


def build_matrix(representation: Any, rows: Rows) -> Any:
    """A representation of the matrix that has these rows."""
    if not hasattr(representation, "from_rows"):
        raise InputError(
            f"The argument representation must be a class such as PMatKFAC or PMatDense, not {representation!r}."
        )
    return representation.from_rows(rows)

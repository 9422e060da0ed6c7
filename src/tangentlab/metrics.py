"""The factories users call: Fisher matrices, tangent kernels, Jacobians and per-example gradients of any model.

Arguments that all of them share:

* `model`: any `torch.nn.Module` whose outputs on an example depend on that example alone (eval-mode batch norm).
* `loader`: a DataLoader, a tensor, an (inputs, targets) tuple, a dict, or any iterable of these.
* `layers`: which parameters, see `LayerCollection.from_model`; all trainable ones by default.
* `forward(model, batch)`: how to call the model, when the default does not fit.
* `function(output, batch)`: what to differentiate, (examples, ...); by default the model's output.
* `n_output`: checked against what the model gives, never needed.
* `verify`: whether closed forms are proved against plain autograd, once per call and batch shape (see `tangentlab.verify`).
* `progress`: True / False; by default a bar appears after two seconds in a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.likelihood import Likelihood, likelihood_of
from tangentlab.engine.losses import LossFunction
from tangentlab.engine.memory import memory_limit
from tangentlab.engine.network import Forward, Network, OutputFunction
from tangentlab.engine.own_loss import with_loss
from tangentlab.engine.rows import Rows
from tangentlab.engine.tangent_kernel import tangent_kernel
from tangentlab.engine.weightings import Empirical, Exact, MonteCarlo, Unweighted, Weighting
from tangentlab.errors import InputError
from tangentlab.objects.fmat import FMat, FMatDense
from tangentlab.objects.fmat_implicit import FMatImplicit
from tangentlab.objects.maps import PullBack, PushForward, PushForwardDense
from tangentlab.objects.pmat import PMat, PMatDense
from tangentlab.objects.pvector import PVector


def FIM(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    likelihood: str | Likelihood | None = None,
    *,
    variant: str | None = None,
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    n_output: int | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> PMat:
    """Fisher information matrix F = 1/n sum_n E_{y ~ p(y|x_n)}[ dlog p dlog p^T ], the expectation in closed form.

    `likelihood` is "classification" (default; softmax over the last axis of logits), "log_softmax", "binary" (also
    multi-label), "regression" (or `Regression(variance)`, whose inverse the Fisher uses), "segmentation" (classes on axis
    1), or a `Likelihood`. Cost: one backward per class but one, plus what the representation needs.
    """
    weighting = Exact(likelihood_of(_one_of(likelihood, variant)))
    network = Network.of(model, layers, forward, function, verify)
    return build_matrix(representation, network, loader, weighting, n_output, progress)


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
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    n_output: int | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> PMat:
    """Unbiased estimate of the Fisher from labels drawn from the model: one backward per sample, whatever the classes.

    `labels` shares the draws of another matrix (`F.labels`, or one tensor (samples, examples, ...)); `generator` seeds them.
    `trials` is another name of `samples`.
    """
    weighting = MonteCarlo(
        likelihood_of(_one_of(likelihood, variant)), samples if trials is None else trials, generator, labels
    )
    network = Network.of(model, layers, forward, function, verify)
    result = build_matrix(representation, network, loader, weighting, n_output, progress, ordered=labels is not None)
    result.labels = weighting.labels  # type: ignore[attr-defined]
    return result


def FIM_Empirical(
    model: nn.Module,
    loader: Any,
    representation: Any = PMatDense,
    likelihood: str | Likelihood | None = None,
    *,
    loss: str | Likelihood | LossFunction | None = None,
    variant: str | None = None,
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    n_output: int | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> PMat:
    """Second moment of per-example loss gradients at the observed targets, 1/n sum g_n g_n^T. Cost: one backward.

    `loss(outputs, targets)` gives one value per example; without it the negative log-likelihood is taken, or with "model" the
    loss in the model's own output. Often called empirical Fisher, though it is not the Fisher matrix.
    """
    network = Network.of(model, layers, forward, function, verify)
    network, batches, loss = with_loss(network, loader, _one_of(likelihood, variant) if loss is None else loss)
    return build_matrix(representation, network, batches, Empirical(loss), n_output, progress)


def NTK(
    model: nn.Module,
    loader: Any,
    loader2: Any = None,
    *,
    outputs: str | int | Sequence[int] = "all",
    function: OutputFunction | None = None,
    layers: Any = None,
    per_layer: bool = False,
    center: str | None = None,
    representation: type[FMat] = FMatDense,
    forward: Forward | None = None,
    n_output: int | None = None,
    memory: int | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> Any:
    """Tangent kernel K[c, n, d, m] = <d f_c(x_n) / dw, d f_d(x_m) / dw>, never divided by the number of examples.

    `loader2` gives the cross kernel k(loader, loader2). `outputs`: "all", "trace" (sum over outputs, one "output" left), the
    index of one output, or the indices of some. `per_layer` returns the kernel of every layer; their sum is the kernel.
    `center` is None, "per_output" or "global", by the means over the kernel's own rows and columns. A scalar function of the
    outputs has its kernel by `function=lambda out, batch: out[:, 1] - out[:, 0]`. The order of examples matters, so a
    shuffling DataLoader is refused. No Jacobian is built. `representation` is FMatDense, or FMatImplicit for kernel-vector
    products that store nothing. `memory` is the budget in bytes for this call; `tangentlab.plan(model, x, n)` tells
    beforehand what it will cost.
    """
    network = Network.of(model, layers, forward, function, verify)
    chosen = _chosen_outputs(outputs)
    if center not in (None, "per_output", "global"):
        raise InputError(f"center must be None, 'per_output' or 'global', not {center!r}.")
    loader = Batches(loader, ordered=True)
    _check_outputs(network, loader, n_output)
    if representation is FMatImplicit:
        return _implicit_kernel(network, loader, loader2, outputs == "trace", chosen, per_layer, center, progress)
    if representation is not FMatDense:
        raise InputError(f"representation must be FMatDense or FMatImplicit, not {representation!r}.")
    layer_of = {name: layer for layer, names in network.layout.layers.items() for name in names}
    with memory_limit(memory):
        kernels = tangent_kernel(
            network,
            loader,
            loader2,
            Unweighted(chosen),
            outputs == "trace",
            lambda group: layer_of[group.names[0]] if per_layer else "",
            progress,
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
    progress: bool | None,
) -> FMatImplicit | dict[str, FMatImplicit]:
    """The kernel, or one per layer, as products."""
    whole = network
    if chosen is not None:
        network = Network(whole.model, whole.layout, lambda model, batch: whole(batch).flatten(1)[:, chosen])
    parts = {"": network}
    if per_layer:
        Rows(network, loader, Unweighted(), ordered=True).require_dependence()
        layers = {layer: [s for s in network.layout if s.layer == layer] for layer in network.layout.layers}
        parts = {n: replace(network, layout=LayerCollection(specs)) for n, specs in layers.items()}
    options: dict[str, Any] = {"trace": trace, "center": center, "progress": progress}
    kernels = {name: FMatImplicit(part, loader, loader2, **options) for name, part in parts.items()}
    return kernels if per_layer else kernels[""]


def Jacobian(
    model: nn.Module,
    loader: Any,
    representation: Any = PushForwardDense,
    *,
    outputs: list[int] | None = None,
    function: OutputFunction | None = None,
    layers: Any = None,
    forward: Forward | None = None,
    n_output: int | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> PushForward | PullBack:
    """The Jacobian (outputs, examples, parameters): PushForward v -> J v, or PullBack u -> J^T u, dense or implicit."""
    network = Network.of(model, layers, forward, function, verify)
    return build_matrix(representation, network, loader, Unweighted(outputs), n_output, progress, ordered=True)


def per_example_grads(
    model: nn.Module,
    loader: Any,
    loss: str | Likelihood | LossFunction | None = None,
    *,
    likelihood: str | Likelihood = "classification",
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> PVector:
    """Gradient of every example's loss, as a batch of vectors (examples, d); `loss` and `likelihood` as in `FIM_Empirical`."""
    network = Network.of(model, layers, forward, function, verify)
    network, batches, loss = with_loss(network, loader, likelihood if loss is None else loss)
    rows = Rows(network, batches, Empirical(loss), ordered=True, progress=progress)
    return PVector(network.layout, PushForwardDense.from_rows(rows).data[0])


def per_example_grad_norms(
    model: nn.Module,
    loader: Any,
    loss: str | Likelihood | LossFunction | None = None,
    *,
    likelihood: str | Likelihood = "classification",
    layers: Any = None,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> Tensor:
    """Euclidean norm of every example's loss gradient, (examples), without building the gradients of linear layers."""
    network = Network.of(model, layers, forward, function, verify)
    network, batches, loss = with_loss(network, loader, likelihood if loss is None else loss)
    rows = Rows(network, batches, Empirical(loss), ordered=True, progress=progress)
    squares = [torch.stack([factor.squared_norms()[0] for factor in chunk.factors.values()]).sum(0) for chunk in rows]
    return torch.cat(squares).sqrt()


def _one_of(likelihood: str | Likelihood | None, variant: str | None) -> str | Likelihood:
    if likelihood is not None and variant is not None and likelihood != variant:
        raise InputError(f"likelihood={likelihood!r} and variant={variant!r} are two names of one argument: give one.")
    return likelihood if likelihood is not None else variant if variant is not None else "classification"


def _chosen_outputs(outputs: str | int | Sequence[int]) -> list[int] | None:
    """The indices of the outputs that were asked for, None for "all" and "trace"."""
    if isinstance(outputs, str) and outputs in ("all", "trace"):
        return None
    chosen: list[int] = (
        [outputs] if isinstance(outputs, int) else [*outputs] if isinstance(outputs, list | tuple) else []
    )
    if not chosen or any(isinstance(index, bool) or not isinstance(index, int) for index in chosen):
        raise InputError(f"outputs must be 'all', 'trace', the index of one output or of several, not {outputs!r}.")
    return chosen


def _finished(data: Tensor, center: str | None) -> FMatDense:
    kernel = FMatDense(data if data.ndim == 4 else data[None, :, None, :])
    return kernel if center is None else kernel.center(center)


def _check_outputs(network: Network, batches: Batches, n_output: int | None) -> None:
    """Refuse another number of outputs than was expected, by a forward of the first batch."""
    if n_output is not None:
        found = network.values(next(iter(batches)))[0].numel()
        if found != n_output:
            raise InputError(f"n_output={n_output}, but the model gives {found} outputs per example.")


def build_matrix(
    representation: Any,
    network: Network,
    loader: Any,
    weighting: Weighting,
    n_output: int | None,
    progress: bool | None,
    ordered: bool = False,
) -> Any:
    """A representation from the rows of a network on data, after the checks that all factories share."""
    if not hasattr(representation, "from_rows"):
        raise InputError(f"representation must be a class such as PMatKFAC or PMatDense, not {representation!r}.")
    rows = Rows(network, loader, weighting, ordered=ordered, progress=progress)
    _check_outputs(network, rows.batches, n_output)
    return representation.from_rows(rows)

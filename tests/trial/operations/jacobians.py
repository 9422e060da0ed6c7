"""Jacobians, dense and implicit, and gradients of every example's loss."""

from __future__ import annotations

import torch

import tangentlab as tl
from tangentlab.errors import ModelError
from tests.trial.choices import Choices
from tests.trial.operations.base import Results, Work, has_targets, in_type, operation, random_vector
from tests.trial.scene import Scene
from tests.trial.truth import Truth, losses, scores


@operation(4)
def jacobian(o: Choices, scene: Scene) -> Work:
    count = scene.truth.count
    outputs = o.pick("outputs", [None, [count - 1]], [4, 1])

    def found() -> Results:
        return {"rows": tl.Jacobian(scene.model, scene.data.give(), outputs=outputs, **scene.options()).data}

    return Work(found, lambda truth: {"rows": truth.rows if outputs is None else truth.rows[outputs]}, ordered=True)


@operation(4)
def jacobian_product(o: Choices, scene: Scene) -> Work:
    """J v and J^T u."""
    kinds = {
        "push": tl.PushForwardImplicit,
        "pull": tl.PullBackImplicit,
        "dense push": tl.PushForwardDense,
        "dense pull": tl.PullBackDense,
    }
    what = o.pick("map", list(kinds))
    size = (scene.truth.count, scene.truth.examples)

    def found() -> Results:
        one = tl.Jacobian(scene.model, scene.data.give(), kinds[what], **scene.options())
        if what.endswith("push"):
            return {what: (one @ tl.PVector(one.layout, in_type(scene, one.layout.numel))).data}
        return {what: (one @ tl.FVector(in_type(scene, *size))).flat}

    def expected(truth: Truth) -> Results:
        if what.endswith("push"):
            return {what: truth.rows @ random_vector(truth.rows.shape[-1])}
        return {what: torch.einsum("cnd,cn->d", truth.rows, random_vector(*size))}

    overflows = scene.blueprint.dtype == torch.float16  # forward mode of norms, in torch itself
    return Work(found, expected, ordered=True, refusals=(ModelError,) if overflows and what == "push" else ())


@operation(3, fits=has_targets)
def example_gradients(o: Choices, scene: Scene) -> Work:
    """By the likelihood's name or by a loss function; the gradients or their norms."""
    norms, own = o.chance("norms"), o.chance("own loss")
    name = scene.data.likelihood

    def found() -> Results:
        loss = (lambda f, y: losses(name, f, y)) if own else None
        call = tl.per_example_grad_norms if norms else tl.per_example_grads
        result = call(scene.model, scene.data.give(), loss, likelihood=name, **scene.options())
        return {"norms": result} if norms else {"gradients": result.flat}

    def expected(truth: Truth) -> Results:
        gradients = truth.pulled(scores(name, truth.outputs, truth.targets))
        return {"norms": gradients.norm(dim=1)} if norms else {"gradients": gradients}

    def size(truth: Truth) -> float:
        """Scores are differences of probabilities; norms over a single feature multiply their rounding by hundreds."""
        return 1e-4 * float(truth.rows.abs().max())

    return Work(found, expected, ordered=True, size=size)

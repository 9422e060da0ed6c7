"""Linearized networks, tables, proofs, plans and spectra."""

from __future__ import annotations

import math

import torch

import tangentlab as tl
from tangentlab.engine.planner import WHAT
from tangentlab.errors import ModelError
from tangentlab.linearized import linearize
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.operations.base import Results, Work, in_type, operation, random_vector
from tests.trial.scene import Scene
from tests.trial.truth import Truth, fisher_of_outputs


@operation(3)
def linearized(o: Choices, scene: Scene) -> Work:
    """f + J v on every batch; the whole batch is one function, so examples may mix."""
    if scene.function != "none" or scene.model.returns == "tuple":
        raise NoSuchCase("the network itself is linearized")
    if any(module.training for module in scene.model.modules()):
        raise NoSuchCase("in eval mode")
    if "changed_backward" in scene.blueprint.kinds and scene.blueprint.dtype.itemsize == 2:
        raise NoSuchCase("a part of the gradient may be halved within the rounding of half precision")
    moved = o.pick("moved", [True, False], [3, 1])
    names = scene.selected()

    def found() -> Results:
        model = linearize(scene.model, layers=list(names))
        if moved:
            v = tl.PVector(
                tl.LayerCollection.from_model(scene.model, list(names)), in_type(scene, scene.truth.rows.shape[-1])
            )
            with torch.no_grad():
                for name, part in model.displacements().items():
                    part.copy_(v[name])
        parts = [model(x) for x, _ in scene.data.batches]
        return {"outputs": torch.cat([part[:, None] if part.ndim == 1 else part for part in parts]).detach()}

    def expected(truth: Truth) -> Results:
        change = truth.rows @ random_vector(truth.rows.shape[-1]) if moved else torch.zeros(truth.rows.shape[:2])
        return {"outputs": truth.outputs + change.t().reshape(truth.outputs.shape)}

    return Work(found, expected, one_batch=True, refusals=(ModelError,))


@operation(1.5)
def coverage(o: Choices, scene: Scene) -> Work:
    """Every selected parameter is in the table, once."""

    def found() -> Results:
        table = tl.coverage(scene.model, scene.data.batches[0], **scene.options())
        assert "%" in str(table)
        names = [name for row in table.rows for name in row.names]
        assert sorted(names) == sorted(scene.selected()), names
        return {"share": torch.tensor(float(0 <= table.structured_fraction <= 1))}

    return Work(found, lambda truth: {"share": torch.ones(())}, one_batch=True)


@operation(2)
def check(o: Choices, scene: Scene) -> Work:
    """The engine's own proof passes."""

    def found() -> Results:
        report = tl.check(scene.model, scene.data.batches[0], **scene.options())
        return {"passed": torch.tensor(float(report.passed))}

    # a copy of a network whose forward is a function on the instance computes with the original
    refusals = (ModelError,) if "impostor" in scene.blueprint.kinds else ()
    return Work(found, lambda truth: {"passed": torch.ones(())}, one_batch=True, refusals=refusals)


@operation(1)
def plan(o: Choices, scene: Scene) -> Work:
    what = o.pick("what", list(WHAT))

    def found() -> Results:
        table = tl.plan(scene.model, scene.data.batches[0], 100, what, **scene.options())
        assert str(table)
        numbers = [table.operations, table.seconds, table.memory]
        return {"positive": torch.tensor(float(all(math.isfinite(x) and x >= 0 for x in numbers)))}

    return Work(found, lambda truth: {"positive": torch.ones(())}, one_batch=True)


@operation(1, dtypes=(torch.float64,))
def eigenpairs(o: Choices, scene: Scene) -> Work:
    """Leading eigenvalues of the Fisher matrix by the cheapest route, and by products."""
    name, k = scene.data.likelihood, 1

    def found() -> Results:
        pairs = tl.fisher_eigenpairs(scene.model, scene.data.give(), k, name, **scene.options())
        if not len(pairs.values):  # a matrix of zeros has no nonzero ones
            return {"value": torch.zeros(1), "residual": torch.zeros(())}
        return {"value": pairs.values[:1], "residual": pairs.residual_norms.max()}

    def expected(truth: Truth) -> Results:
        matrix = truth.weighted(fisher_of_outputs(name, truth.outputs))
        return {"value": torch.linalg.eigvalsh(matrix)[-1:], "residual": torch.zeros(())}

    def size(truth: Truth) -> float:
        return float(expected(truth)["value"])

    return Work(found, expected, slack=1e3, draws=True, size=size)

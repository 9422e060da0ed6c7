"""One step of every preconditioner: with infinite damping it is the gradient, and diagonals and blocks are exact."""

from __future__ import annotations

import torch
from torch import Tensor

import tangentlab as tl
from tangentlab import optim
from tangentlab.errors import InputError
from tests.trial.blocks.base import MIXES, NOISE
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.operations.base import Results, Work, operation
from tests.trial.scene import Scene
from tests.trial.truth import Truth, losses, scores

HUGE = {torch.float64: 1e60, torch.float32: 1e26}
"""Its square root, which dampens each Kronecker factor, is far above all second moments."""


def one_step(scene: Scene) -> bool:
    """Whether the scene is a training step on one batch, in whatever form its data came."""
    plain = scene.place not in ("no_grad", "inference mode") and scene.function == "none" and scene.selection == "all"
    hooked = any(p._backward_hooks for p in scene.model.parameters())  # what is in .grad would be no gradient
    learns = bool(scene.truth.rows.any())  # else torch itself refuses loss.backward()
    return plain and learns and not hooked and len(scene.data.batches) == 1


def backward(scene: Scene) -> None:
    """The gradients of the mean loss, left in .grad."""
    x, y = scene.data.batches[0]
    outputs = scene.call(scene.model, x)
    losses(scene.data.likelihood, outputs[:, None] if outputs.ndim == 1 else outputs, y).mean().backward()


def gradients(scene: Scene) -> dict[str, Tensor]:
    """What is in .grad, zero where nothing is."""
    trainable = {n: p for n, p in scene.model.named_parameters() if p.requires_grad}
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in trainable.items()}


@operation(7, dtypes=(torch.float64, torch.float32), fits=one_step)
def damped_step(o: Choices, scene: Scene) -> Work:
    """A huge damping: every gradient is left alone or divided by the damping."""
    name = o.pick("preconditioner", [n for n in optim.PRECONDITIONERS if n != "cg"])
    huge = HUGE[scene.blueprint.dtype]

    if NOISE in scene.blueprint.traits:
        raise NoSuchCase("no gradient to compare with")

    def found() -> Results:
        precond = optim.make_preconditioner(name, scene.model, damping=huge)
        backward(scene)
        precond.step()
        treated = {n for row in precond.report().rows if row.treated for n in row.names}
        return {n: grad * (huge if n in treated else 1.0) for n, grad in gradients(scene).items()}

    def expected(truth: Truth) -> Results:
        flat = truth.pulled(scores(scene.data.likelihood, truth.outputs, truth.targets)).mean(0)
        return {n: flat[place].reshape(truth.shapes[n]) for n, place in truth.slices().items()}

    return Work(found, expected, refusals=(InputError,), touches=True, measures=False, one_batch=True, slack=10)


@operation(6, dtypes=(torch.float64,), fits=one_step)
def exact_step(o: Choices, scene: Scene) -> Work:
    """Diagonal and block-diagonal steps against the second moment of per-example gradients."""
    if scene.blueprint.traits & {MIXES, NOISE}:
        raise NoSuchCase("no gradient of one example")
    name, damping = o.pick("preconditioner", ["diagonal", "block-diagonal"]), 0.1
    treated: list[tuple[str, ...]] = []
    announced: list[str] = []  # as something else than the second moment of examples

    def found() -> Results:
        precond = optim.make_preconditioner(name, scene.model, damping=damping)
        backward(scene)
        precond.step()
        rows = precond.report().rows
        treated[:] = [row.names for row in rows if row.treated]
        announced[:] = [n for row in rows if "positions count as examples" in row.method for n in row.names]
        return {n: grad for n, grad in gradients(scene).items() if n not in announced}

    def expected(truth: Truth) -> Results:
        every = truth.pulled(scores(scene.data.likelihood, truth.outputs, truth.targets))
        places = truth.slices()
        flat = every.mean(0)
        for names in treated:
            index = torch.cat([torch.arange(places[n].start, places[n].stop) for n in names])
            own = every[:, index]
            moment = own.t() @ own / len(own)
            moment = torch.diag(moment.diagonal()) if name == "diagonal" else moment
            step = torch.linalg.solve(moment + damping * torch.eye(len(moment)).double(), flat[index])
            flat = flat.index_copy(0, index, step)
        return {n: flat[place].reshape(truth.shapes[n]) for n, place in places.items() if n not in announced}

    def size(truth: Truth) -> float:
        """A tenth of the largest entry of all steps: small ones may be nothing but rounding of the way back."""
        return 0.1 * max((float(step.abs().max()) for step in expected(truth).values() if step.numel()), default=0.0)

    return Work(
        found, expected, refusals=(InputError,), touches=True, measures=False, one_batch=True, slack=100, size=size
    )


@operation(5, fits=one_step)
def training(o: Choices, scene: Scene) -> Work:
    """Two steps of NaturalSGD leave finite weights, whatever the network."""
    name = o.pick("preconditioner", list(optim.PRECONDITIONERS))

    def found() -> Results:
        optimizer = tl.optim.NaturalSGD(scene.model, lr=1e-3, preconditioner=name, damping=1.0)
        for _ in range(2):
            optimizer.zero_grad()
            backward(scene)
            optimizer.step()
        finite = [torch.isfinite(p).all() for p in scene.model.parameters()]
        return {"finite": torch.stack(finite).all().double()}

    return Work(
        found,
        lambda truth: {"finite": torch.ones(()).double()},
        refusals=(InputError,),
        touches=True,
        measures=False,
        one_batch=True,
    )

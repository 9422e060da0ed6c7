"""The recorder on force fields and physics-informed networks: its numbers are those of plain autograd."""

import pytest
import torch

from tangentlab.alignment import compare_directions, directional_effects, ka, label_alignment
from tangentlab.objects.fmat import FMatDense
from tangentlab.objects.pvector import PVector
from tangentlab.recorder import TangentRecorder
from tests.derivatives_inside import KINDS, caught, kernel_matrix, moved
from tests.recorder.trainings import STEADY

each_kind = pytest.mark.parametrize("kind", KINDS)
MEASURES = ["performance", "spectrum", "uncentred", "alignment", "linearity", "complexity", "curvature"]


def as_kernel(matrix: torch.Tensor, examples: int) -> FMatDense:
    outputs = len(matrix) // examples
    return FMatDense(matrix.view(outputs, examples, outputs, examples))


@each_kind
@pytest.mark.parametrize("inside", [True, False], ids=["grad", "no_grad"])
def test_every_measure_is_that_of_plain_autograd(kind: str, inside: bool) -> None:
    model, x = caught(kind, 6)
    outputs = model(x).shape[1]
    targets = torch.randn(6, outputs, dtype=torch.float64)
    with torch.set_grad_enabled(inside):
        recorder = TangentRecorder(
            model, {"p": (x, targets)}, 1, size=(6, None), measures=MEASURES, strict=True, **STEADY
        )
        recorder.start()
        first = kernel_matrix(model, recorder._observer.probes["p"].batch[0])
        moved(model)
        recorder.step()
        recorder.finish()
    inputs, labels = recorder._observer.probes["p"].batch
    matrix = kernel_matrix(model, inputs)
    now, before = as_kernel(matrix, 6), as_kernel(first, 6)
    truth = {
        "p/loss": float(0.5 * (model(inputs) - labels).square().sum(1).mean()),
        "p/uncentred/trace": float(matrix.trace()),
        "p/uncentred/max": float(torch.linalg.eigvalsh(matrix)[-1]),
        "p/ka": label_alignment(now, labels, None),
        "p/cka": label_alignment(now, labels, "per_output"),
        "p/ntk_similarity": ka(now, before),
        "feature_norm": float(matrix.trace().sqrt()),
    }
    found = recorder.snapshots[-1]["values"]
    assert {name: found[name] for name in truth} == pytest.approx(truth, rel=1e-9)
    assert recorder.snapshots[-1]["problems"] == {} and found["p/fisher_trace"] > 0


@each_kind
def test_the_training_goes_on_as_without_the_recorder(kind: str) -> None:
    def trained(recorded: bool) -> torch.Tensor:
        model, x = caught(kind)
        recorder = TangentRecorder(model, {"p": (x, model(x).detach())}, 1, **STEADY) if recorded else None
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        if recorder is not None:
            recorder.start()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            if recorder is not None:
                recorder.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(True), trained(False))


@each_kind
def test_effects_of_directions_are_those_of_the_network_moved(kind: str) -> None:
    model, x = caught(kind)
    before = model(x).detach()
    direction = PVector.random_unit(model, batch=2, generator=torch.Generator().manual_seed(0))
    found = directional_effects(model, x, direction)
    for number, flat in enumerate(direction.flat):
        there, _ = caught(kind)
        sizes = [p.numel() for p in there.parameters()]
        with torch.no_grad():
            for parameter, part in zip(there.parameters(), flat.split(sizes)):
                parameter += part.view_as(parameter)
        assert float(found[number]) == pytest.approx(float((there(x) - before).square().mean().sqrt()))
    assert len(compare_directions(model, x, x, k=2).top) == 2

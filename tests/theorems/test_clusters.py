"""One hidden layer on few points, on Gaussian mixtures and on corrupted clusters (slides of Soltanolkotabi, 2019)."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn

from tangentlab import NTK
from tangentlab.data import label_noise, random_clusters
from tangentlab.errors import InputError
from tangentlab.limits import ClusterTheorem, MixtureTheorem
from tangentlab.models import MLP, FixedOutputMLP


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def singular_values(model: nn.Module, inputs: Tensor) -> Tensor:
    """Those of the Jacobian (outputs * examples, parameters), descending, as roots of the eigenvalues of the kernel."""
    return NTK(model, inputs).eigvalsh().flip(0).clamp_min(0).sqrt()


def descend(model: nn.Module, inputs: Tensor, targets: Tensor, rate: float, steps: int):
    """The outputs (n, K) before each step `W <- W - rate J^T (f - y)` of gradient descent on |f - y|^2 / 2."""
    weights = [p for p in model.parameters() if p.requires_grad]
    for _ in range(steps):
        outputs = model(inputs)
        yield outputs.detach()
        gradients = torch.autograd.grad((outputs - targets).square().sum() / 2, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient


@pytest.mark.parametrize("width", [10, 20, 25, 50])
def test_half_as_many_smooth_hidden_units_as_points_and_fewer_fit_them_at_a_geometric_rate(width: int):
    generator = rng(
        0
    )  # widths below 25 are beyond the theorem, and half of the seeds take longer than this at width 10
    inputs, targets = (torch.randn(50, size, generator=generator, dtype=torch.float64) for size in (20, 1))
    model = MLP((20, width, 1), "softplus", bias=False).double()
    with torch.no_grad():
        for layer, scale in ((model.layers[0], 1.0), (model.layers[2], 10.0)):
            layer.weight.normal_(0, scale, generator=generator)
    rate = 0.4 / float(singular_values(model, inputs)[0]) ** 2
    losses = []
    for outputs in descend(model, inputs, targets, rate, 12_000):
        losses.append(float((outputs - targets).square().sum()))
        if losses[-1] <= 1e-10 * losses[0]:
            break
    else:
        raise AssertionError(f"The relative loss is {losses[-1] / losses[0]:.1e} after {len(losses)} steps.")
    logs = torch.tensor(losses, dtype=torch.float64).log()
    slopes = logs[len(logs) // 4 :].diff()
    assert slopes.max() < 0  # L_t <= (1 - rho)^t L_0: from the first quarter on every step shrinks the loss


@pytest.mark.parametrize(("spread", "ratio"), [(0.0, math.inf), (0.01, 153), (0.05, 25), (0.2, 7)])
def test_the_jacobian_on_a_mixture_has_as_many_large_singular_values_as_components_times_outputs(
    spread: float, ratio: float
):
    theorem = MixtureTheorem(classes=3, components=2)
    assert theorem.large_values == 18
    clusters = random_clusters(6, 3, 50, spread, rng())
    data, _ = clusters.sample(600, rng(1))
    torch.manual_seed(0)
    values = singular_values(FixedOutputMLP(50, 40, 3).double(), data.inputs)
    gaps = values[:-1] / values[1:].clamp_min(1e-8 * float(values[0]))
    assert int(gaps[:100].argmax()) + 1 == 18
    if spread:
        assert float(gaps[17]) == pytest.approx(ratio, rel=0.25)
    else:
        assert float(values[18] / values[0]) < 1e-7


def test_the_large_singular_values_on_a_mixture_grow_like_the_root_of_the_number_of_examples():
    clusters = random_clusters(6, 3, 50, 0.01, rng())
    torch.manual_seed(0)
    model = FixedOutputMLP(50, 40, 3).double()
    counts = (75, 150, 300, 600)
    spectra = [singular_values(model, clusters.sample(count, rng(1))[0].inputs)[:18] for count in counts]
    for few, many in zip(spectra, spectra[1:], strict=False):
        assert float((many / few).log().mean().exp()) == pytest.approx(math.sqrt(2), rel=0.05)


@pytest.mark.parametrize("corruption", [0.05, 0.2, 0.4])
def test_descent_on_corrupted_clusters_finds_every_true_label_and_keeps_it_for_a_while(corruption: float):
    clusters = random_clusters(10, 2, 20, 0.05, rng(), sphere=True)
    data, members = clusters.sample(300, rng(1))
    noisy, _ = label_noise(data, corruption, rng(2), groups=members)
    torch.manual_seed(0)
    model = FixedOutputMLP(20, 200, activation="relu").double()
    rate = 1 / float(NTK(model, data.inputs).eigvalsh().max())
    right = [
        float(((outputs[:, 0] > 0) == data.targets.bool()).double().mean())
        for outputs in descend(model, data.inputs, (2.0 * noisy.targets - 1)[:, None], rate, 3001)
    ]
    assert min(right[5:300]) == 1.0
    if corruption < 0.4:
        assert min(right[5:]) >= 0.995  # to the last step; ClusterTheorem proves it below 1/16 up to about L log(1/rho)
    else:
        assert right[1000] >= 0.95
        assert right[3000] <= 0.9


def test_the_scales_of_the_theorems_are_those_of_the_slides():
    theorem = MixtureTheorem(3, 2, confidence=4.0)
    assert theorem.width == pytest.approx(4.0**4 * 3**8 * 2**4)
    assert theorem.width == pytest.approx(theorem.confidence**4 / theorem.cutoff**8)
    assert theorem.steps == pytest.approx(4.0 * 9 * 2) == pytest.approx(theorem.confidence / theorem.cutoff**2)
    assert theorem.error(1800) == pytest.approx(4.0 * math.sqrt(18 / 1800) + math.exp(-4.0))
    clusters = ClusterTheorem(10, 0.05)
    assert (clusters.parameters, clusters.proved, ClusterTheorem(10, 0.2).proved) == (10_000, True, False)
    assert clusters.steps == pytest.approx(10 * math.log(20))


def test_settings_that_the_theorems_do_not_speak_of_are_refused():
    for wrong in (lambda: MixtureTheorem(0, 2), lambda: MixtureTheorem(3, 2, 0.5), lambda: ClusterTheorem(10, 0.0)):
        with pytest.raises(InputError):
            wrong()
    with pytest.raises(InputError, match="examples"):
        MixtureTheorem(3, 2).error(0)

"""Spectra at perturbed parameters: a loop written out, the neutral size, and a model that is left alone."""

import copy

import pytest
import torch
from torch import nn

from tangentlab import PVector
from tangentlab.errors import InputError, NumericsError
from tangentlab.models import MLP
from tangentlab.spectral import amplitudes, perturbed_spectrum

POINTS = (torch.arange(40) / 40)[:, None]
FREQUENCIES = (1, 3, 7)


def network() -> MLP:
    torch.manual_seed(0)
    return MLP((1, 16, 16, 1)).double()


def points() -> torch.Tensor:
    return POINTS.double()


def test_without_a_perturbation_every_frequency_is_as_it_was():
    found = perturbed_spectrum(network(), points(), FREQUENCIES, (0.0,), 3)
    torch.testing.assert_close(found, torch.ones(1, 3, dtype=torch.float64))


def test_it_is_the_mean_over_models_whose_parameters_were_moved():
    model = network()
    sizes, count = (0.3, 1.0), 4
    found = perturbed_spectrum(model, points(), FREQUENCIES, sizes, count, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    start = amplitudes(model(points()).detach().flatten(), FREQUENCIES)
    total = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(count):
        direction = PVector.random_unit(model, generator=generator)
        assert float(direction.flat.norm()) == pytest.approx(1)
        for row, size in enumerate(sizes):
            moved = copy.deepcopy(model)
            (direction * size).add_to_model(moved)
            total[row] += amplitudes(moved(points()).detach().flatten(), FREQUENCIES)
    torch.testing.assert_close(found, total / count / start)


def test_the_model_is_left_as_it_was():
    model = network()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    perturbed_spectrum(model, points(), FREQUENCIES, (2.0,), 2)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class Zero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: perturbed_spectrum(network(), points(), (1,), (), 2), InputError, "sizes holds lengths"),
        (lambda: perturbed_spectrum(network(), points(), (1,), (-1.0,), 2), InputError, "sizes holds lengths"),
        (lambda: perturbed_spectrum(network(), points(), (1,), (1.0,), 0), InputError, "at least 1"),
        (lambda: perturbed_spectrum(network(), points(), (30,), (1.0,), 1), InputError, "whole frequencies 0 to 19"),
        (lambda: perturbed_spectrum(MLP((1, 4, 2)), POINTS, (1,), (1.0,), 1), InputError, "one output is needed"),
        (lambda: perturbed_spectrum(Zero(), POINTS, (1,), (1.0,), 1), NumericsError, "has none of"),
    ],
)
def test_what_has_no_perturbed_spectrum_is_refused(call, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        call()

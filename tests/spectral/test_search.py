"""The search with linear programs and the subdivision with corners know nothing of each other and find the same regions."""

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError
from tangentlab.spectral import enumerate_regions, search_regions
from tests.spectral.networks import hat, mlp, patterns_of, shallow, uniform


def keys(regions) -> set[bytes]:
    return {b"".join(part.to(torch.int16).numpy().tobytes() for part in region.pattern) for region in regions}


@pytest.mark.parametrize("dimension, width, depth", [(1, 6, 2), (2, 5, 2), (3, 4, 2), (4, 3, 2)])
def test_both_find_the_same_regions(dimension: int, width: int, depth: int) -> None:
    model = mlp(dimension, width, depth, seed=11)
    box = [[-1.5, 1.5]] * dimension
    partition = enumerate_regions(model, box)
    found = search_regions(model, box)
    assert len(found) == len(partition)
    assert keys(found) == patterns_of(model, torch.from_numpy(partition.complex.centres()))


def test_six_inputs() -> None:
    model = mlp(6, 3, 2, seed=1)
    found = search_regions(model, [[-2.0, 2.0]] * 6)
    seen = patterns_of(model, uniform(100_000, -2, 2, 6))
    assert seen <= keys(found) and len(found) - len(seen) <= 2
    for region in found:
        inside = uniform(2000, -2, 2, 6, seed=2)
        mine = inside[(region.normals @ inside.T <= region.offsets[:, None]).all(0)][:3]
        truth = model.double()(mine)
        assert torch.allclose(mine @ region.weight.T + region.bias, truth, atol=1e-12)


def test_duplicated_hyperplanes_and_dead_units() -> None:
    model = shallow([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]], [0.5, 1.0, -0.5, 1.0], [1.0] * 4)
    assert len(search_regions(model, [[-1, 1]] * 2)) == 2


def test_hardtanh_and_max_pooling() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 3), nn.Hardtanh(), nn.Linear(3, 6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(3)
    ).eval()
    box = [[-3.0, 3.0]] * 2
    partition = enumerate_regions(model, box)
    assert keys(search_regions(model, box)) == patterns_of(model, torch.from_numpy(partition.complex.centres()))
    assert len(search_regions(model, box)) == len(partition)


def test_too_many_regions_are_refused() -> None:
    with pytest.raises(InputError, match="more than 2"):
        search_regions(hat(), (-2, 2), most=2)

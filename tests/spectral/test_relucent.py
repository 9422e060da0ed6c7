"""Region counts of an installed `relucent`."""

import pytest
import torch

from tangentlab.spectral import enumerate_regions
from tests.spectral.networks import mlp

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("inputs, width, depth, radius", [(2, 8, 2, 1.0), (2, 16, 3, 0.5), (3, 6, 2, 1.0)])
def test_counts_are_equal(inputs: int, width: int, depth: int, radius: float) -> None:
    relucent = pytest.importorskip("relucent", reason="a peer that is installed on request")
    model = mlp(inputs, width, depth, seed=3).double()
    complex = relucent.Complex(model)
    start = torch.full((1, inputs), 0.013 * radius, dtype=torch.float64)
    result = complex.bfs(start, nworkers=1, cube_radius=radius, cube_mode="intersect", verify=False, verbose=0)
    assert result.complete
    assert len(enumerate_regions(model, [[-radius, radius]] * inputs)) == len(complex)

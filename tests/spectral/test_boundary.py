"""Decision boundaries and pictures."""

import numpy as np
import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.figures.lint import complaints
from tangentlab.figures.svg import to_svg
from tangentlab.spectral import decision_boundary, enumerate_regions, partition_picture
from tangentlab.spectral.picture import polygons
from tests.spectral.networks import Pyramid, hat, mlp


def test_the_level_set_of_a_pyramid_is_a_square_and_an_octahedron() -> None:
    square = decision_boundary(enumerate_regions(Pyramid(), [[-2, 2]] * 2), level=0.25)
    assert square.sizes.sum() == pytest.approx(4 * 0.75 * np.sqrt(2), rel=1e-12)
    assert np.abs(np.abs(square.pieces).sum(2) - 0.75).max() < 1e-12
    octahedron = decision_boundary(enumerate_regions(Pyramid(), [[-2, 2]] * 3), level=0.25)
    assert octahedron.sizes.sum() == pytest.approx(8 * np.sqrt(3) / 4 * (0.75 * np.sqrt(2)) ** 2, rel=1e-12)


def test_in_one_dimension_the_boundary_is_points() -> None:
    found = decision_boundary(enumerate_regions(hat(), (-2, 2)), level=0.5)
    assert sorted(found.pieces[:, 0, 0]) == pytest.approx([-0.5, 0.5])


def test_three_classes_meet_where_the_two_largest_outputs_are_equal() -> None:
    model = mlp(2, 12, 2, seed=4, outputs=3).double()
    with torch.no_grad():  # all three classes occur
        model[-1].bias.copy_(-model(torch.zeros(1, 2, dtype=torch.float64))[0] + model[-1].bias)
    found = decision_boundary(enumerate_regions(model, [[-2, 2]] * 2))
    assert len({tuple(pair) for pair in found.classes.tolist()}) >= 2
    middles = torch.from_numpy(found.pieces.mean(1))
    with torch.no_grad():
        outputs = model(middles)
    top = outputs.topk(2)
    assert float((top.values[:, 0] - top.values[:, 1]).abs().max()) < 1e-12
    assert torch.equal(top.indices.sort(1).values, torch.from_numpy(found.classes))


def test_boundary_separates_the_classes_of_points_on_a_line() -> None:
    """Along a segment, the class changes as often as the segment crosses the boundary."""
    model = mlp(2, 12, 2, seed=4).double()
    with torch.no_grad():
        model[-1].bias -= model(torch.zeros(1, 2, dtype=torch.float64))[0]
    pieces = decision_boundary(enumerate_regions(model, [[-2, 2]] * 2)).pieces
    for height in (-1.234, 0.377, 1.5):
        crossings = int(((pieces[:, 0, 1] - height) * (pieces[:, 1, 1] - height) < 0).sum())
        x = torch.linspace(-2, 2, 20_001, dtype=torch.float64)
        with torch.no_grad():
            signs = model(torch.stack([x, torch.full_like(x, height)], 1))[:, 0] > 0
        assert crossings == int((signs[1:] != signs[:-1]).sum())


def test_polygons_go_around_their_regions() -> None:
    found = polygons(enumerate_regions(mlp(2, 10, 2), [[-1, 1]] * 2))
    areas = [_area(corners) for corners in found]
    assert min(areas) > 0 and sum(areas) == pytest.approx(4, rel=1e-12)


def _area(corners: np.ndarray) -> float:
    x, y = corners.T
    return 0.5 * float(x @ np.roll(y, -1) - y @ np.roll(x, -1))


@pytest.mark.parametrize("colour", ["value", "slope", "region"])
def test_pictures_are_drawn_in_the_house_style(colour: str) -> None:
    picture = partition_picture(enumerate_regions(mlp(2, 10, 2), [[-1, 1]] * 2), colour)  # type: ignore[arg-type]
    assert complaints(picture.figure) == []
    assert "<svg" in to_svg(picture.figure) and "regions" in picture.caption


def test_other_dimensions_and_colours_are_refused() -> None:
    with pytest.raises(InputError, match="2-D"):
        partition_picture(enumerate_regions(hat(), (-1, 1)))
    with pytest.raises(InputError, match="colour"):
        partition_picture(enumerate_regions(Pyramid(), [[-1, 1]] * 2), "loss")  # type: ignore[arg-type]


def test_a_level_that_is_not_reached_has_no_boundary() -> None:
    found = decision_boundary(enumerate_regions(mlp(2, 4, 1), [[-1, 1]] * 2), level=1e6)
    assert len(found.pieces) == 0

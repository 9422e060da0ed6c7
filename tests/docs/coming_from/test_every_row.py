"""No row of the page goes untested."""

from tests.docs.coming_from import (  # noqa: F401
    test_backpack,
    test_curvlinops,
    test_neural_tangents,
    test_nngeometry,
)
from tests.docs.coming_from.cases import ROWS, TESTED


def test_every_row_of_the_page_has_a_test() -> None:
    assert set(TESTED) == set(ROWS)
    assert len(ROWS) > 80

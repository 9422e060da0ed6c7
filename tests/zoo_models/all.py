"""All specimens."""

from tests.zoo_models import graphs, images, language
from tests.zoo_models.base import SPECIMENS

__all__ = ["SPECIMENS", "graphs", "images", "language"]

"""The zoo: awkward modules that every engine must survive, each with a batch and the routes its parameters must take."""

from tests.animals import control_flow, example_axes, impostors, sharing
from tests.animals.base import ZOO, Animal

__all__ = ["ZOO", "Animal", "by_name", "control_flow", "example_axes", "impostors", "sharing"]


def by_name(name: str) -> Animal:
    """The animal of a name."""
    return next(one for one in ZOO if one.name == name)

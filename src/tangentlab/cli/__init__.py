"""The command `tangentlab`: list, run, show, replay and compare experiments, and check a network of one's own."""

from tangentlab.cli.app import app

__all__ = ["app"]

"""What can go wrong on the bench."""

from __future__ import annotations

from tangentlab.errors import InputError, TangentlabError


class RunError(TangentlabError, RuntimeError):
    """A run cannot start or go on: its folder is taken, unreadable, or a seed failed."""


class SettingError(InputError):
    """A name or a value on the command line or in a config does not fit the experiment."""


class RunStopped(TangentlabError):
    """The run was asked to stop (Ctrl-C, or the process that started it is gone); what is on disk is valid."""

"""Reason why a process of a slice ends, in one line, for its own log and the others'."""

from __future__ import annotations

from models.checkpoint.folder import CheckpointError
from service.settings.section import ConfigError
from workers.engine.errors import is_out_of_memory
from workers.multihost.connection import ConnectionLost

CAUSE_S = 1.0
"""Time to wait for the last word of a process that is gone, which its connection brings at once."""


def is_own(error: Exception) -> bool:
    """Return whether no other process can have caused it.

    An error of a collective may mean that one of the others is gone, and does not say which.
    """
    return isinstance(error, (CheckpointError, ConfigError)) or is_out_of_memory(error)


def reason(error: Exception) -> str:
    """Return an error in a line that names what to do."""
    if isinstance(error, (CheckpointError, ConfigError, ConnectionLost)):
        return str(error)
    said = next(iter(str(error).splitlines()), "")
    if is_out_of_memory(error):
        return (
            f"it ran out of memory ({said}): give the pool fewer slots or more devices, or its "
            "model smaller sizes"
        )
    return f"{type(error).__name__}: {said}; its own log has the whole error"

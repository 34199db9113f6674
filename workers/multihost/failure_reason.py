"""One-line reason why a process of a slice exits, for its log and those of the other processes."""

from __future__ import annotations

from models.checkpoint.folder import CheckpointError
from service.settings.section import ConfigError
from workers.engine.errors import is_out_of_memory
from workers.multihost.connection import ConnectionLost

CAUSE_S = 1.0
"""Time to wait for the final message of an exited process, which its connection usually delivers at
once."""


def is_local(error: Exception) -> bool:
    """Return whether an error originates in this process.

    A collective's error may mean that any other process is lost, without naming it.
    """
    return isinstance(error, (CheckpointError, ConfigError)) or is_out_of_memory(error)


def reason(error: Exception) -> str:
    """Format an error as a line that states how to fix it."""
    if isinstance(error, (CheckpointError, ConfigError, ConnectionLost)):
        return str(error)
    text = next(iter(str(error).splitlines()), "")
    if is_out_of_memory(error):
        return (
            f"it ran out of memory ({text}): give the pool fewer slots or more devices, or its "
            "model smaller sizes"
        )
    return f"{type(error).__name__}: {text}; its own log has the whole error"

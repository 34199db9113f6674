"""Two processes' ends of a line, both in this one."""

from __future__ import annotations

import socket

from workers.multihost.connection import Connection

SILENCE_S = 20.0
"""Longer than any test that does not wait for it."""


def ends(silence_s: float = SILENCE_S) -> tuple[Connection, Connection]:
    """One calls the other `there`, and is called `here` by it."""
    here, there = socket.socketpair()
    return Connection(here, "there", silence_s), Connection(there, "here", silence_s)

"""Both ends of a connection between two processes, in this process."""

from __future__ import annotations

import socket

from workers.multihost.connection import Connection

SILENCE_S = 20.0
"""Timeout of a connection, longer than any test that does not wait for it."""


def ends(silence_s: float = SILENCE_S) -> tuple[Connection, Connection]:
    """Return two connected ends. The first names its peer `there`, the second `here`."""
    first, second = socket.socketpair()
    return Connection(first, "there", silence_s), Connection(second, "here", silence_s)

"""A separate network namespace, in which every port is free."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.deploy.docker.machine import PYTHON

# Brings the loopback device up (SIOCSIFFLAGS with IFF_UP and IFF_RUNNING) and keeps running.
HOLD = """
import fcntl, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def own_network() -> Iterator[int]:
    """Create a network with only loopback; yields the id of the process that holds it."""
    holder = subprocess.Popen(
        ["unshare", "--net", str(PYTHON), "-I", "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        try:
            yield holder.pid
        finally:
            holder.stdin.close()

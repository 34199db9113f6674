"""A line: the connection of two processes of one slice, which ends with either of them.

A process that dies closes its sockets, so the other one hears of it at once; a host that vanishes
or a process that hangs is missed by its beats.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from workers.engine.array_framing import BadMessage, Message, packed, received

BEATS = 5
"""Number of heartbeats in the time after which a silent peer counts as gone."""

log = logging.getLogger(__name__)


class ConnectionLost(ConnectionError):
    """The other process is gone, or cannot be heard."""


class Connection:
    """End of a connected socket.

    Args:
        peer: what the other end is called in messages.
        silence_s: after which a peer that says nothing counts as gone.
    """

    def __init__(self, connection: socket.socket, peer: str, silence_s: float) -> None:
        self.peer = peer
        self._socket = connection
        self._socket.settimeout(silence_s)
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises: ConnectionLost.
        """
        self.send_packed(packed(message))

    def send_packed(self, data: bytes) -> None:
        """Send a packed message. Raises: ConnectionLost."""
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"{self.peer} cannot be reached: {error}") from error

    def receive(self) -> Message:
        """The next message. Raises: ConnectionLost."""
        try:
            return received(self._read)
        except TimeoutError as error:
            silence_s = self._socket.gettimeout()
            raise ConnectionLost(f"{self.peer} has been silent for {silence_s:.0f} s") from error
        except (OSError, BadMessage) as error:
            raise ConnectionLost(f"{self.peer} is gone: {error}") from error

    def close(self) -> None:
        """The other end hears of it; so does whoever receives at this one."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("the line to %s was closed already: %s", self.peer, error)
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("it has closed the line")
            view = view[count:]
        return data


def listen(
    line: Connection, hear: Callable[[Message], None], lost: Callable[[ConnectionLost], None]
) -> threading.Thread:
    """A thread that hands over each message, and at last why there will be no more."""

    def run() -> None:
        try:
            while True:
                hear(line.receive())
        except ConnectionLost as error:
            lost(error)

    return started(run, f"hear {line.peer}")


def beat(tell: Callable[[], None], silence_s: float, ended: threading.Event) -> threading.Thread:
    """A thread that calls `tell` often enough not to be missed, until it cannot or need not."""

    def run() -> None:
        try:
            while not ended.wait(silence_s / BEATS):
                tell()
        except ConnectionLost as error:
            log.debug("the last beat was not heard: %s", error)  # whoever listens will know

    return started(run, "beat")


def started(run: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread that runs already."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread

"""Message connection between two processes of one slice, with heartbeats.

A process that exits closes its sockets, so its peer learns of it immediately. A host that vanishes
or a process that hangs is detected by missing heartbeats.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from workers.engine.array_framing import BadMessage, Message, packed, received

BEATS = 5
"""Heartbeats per timeout, after which a silent peer counts as lost."""

log = logging.getLogger(__name__)


class ConnectionLost(ConnectionError):
    """Error of a peer process of the slice that has exited or is unreachable."""


class Connection:
    """Connection between two processes of a slice, over a connected socket.

    Args:
        peer: name of the other end in messages.
        silence_s: timeout after which a silent peer counts as lost.
    """

    def __init__(self, connection: socket.socket, peer: str, silence_s: float) -> None:
        self.peer = peer
        self._socket = connection
        self._socket.settimeout(silence_s)
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message to the peer process.

        Raises: ConnectionLost.
        """
        self.send_packed(packed(message))

    def send_packed(self, data: bytes) -> None:
        """Send an already serialized message to the peer process. Raises: ConnectionLost."""
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"{self.peer} cannot be reached: {error}") from error

    def receive(self) -> Message:
        """Wait for the next message of the peer process. Raises: ConnectionLost."""
        try:
            return received(self._read)
        except TimeoutError as error:
            silence_s = self._socket.gettimeout()
            raise ConnectionLost(f"{self.peer} has been silent for {silence_s:.0f} s") from error
        except (OSError, BadMessage) as error:
            raise ConnectionLost(f"the connection to {self.peer} is lost: {error}") from error

    def close(self) -> None:
        """Close the connection to the peer process; pending receives of both ends fail."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("the connection to %s was already closed: %s", self.peer, error)
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("it has closed the connection")
            view = view[count:]
        return data


def listen(
    line: Connection,
    on_message: Callable[[Message], None],
    on_lost: Callable[[ConnectionLost], None],
) -> threading.Thread:
    """Start a thread that passes each message of a connection to `on_message`.

    The thread passes the final error to `on_lost`.
    """

    def run() -> None:
        try:
            while True:
                on_message(line.receive())
        except ConnectionLost as error:
            on_lost(error)

    return started(run, f"hear {line.peer}")


def beat(
    send_beat: Callable[[], None], silence_s: float, ended: threading.Event
) -> threading.Thread:
    """Start a thread that calls `send_beat` regularly until it fails or `ended` is set."""

    def run() -> None:
        try:
            while not ended.wait(silence_s / BEATS):
                send_beat()
        except ConnectionLost as error:
            # the receiving thread reports the loss
            log.debug("the last heartbeat could not be sent: %s", error)

    return started(run, "beat")


def started(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread that runs a function, and return it."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread

"""The leader's connections to the other processes of its slice; the loss of one ends all."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from workers.engine.array_framing import Message, packed
from workers.engine.errors import EngineFailed
from workers.multihost.connection import Connection, ConnectionLost, beat, listen
from workers.multihost.exits import CAUSE_S, exit_now, is_local, reason

log = logging.getLogger(__name__)


class Followers:
    """Leader's connections to all followers. Losing one exits this process, or calls `on_loss`."""

    def __init__(self, lines: Sequence[Connection], silence_s: float) -> None:
        self.dropped: deque[int] = deque()
        """Numbers of handles that followers drop at the next message. Any thread may append."""
        self._lines = lines
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._answered = threading.Condition()
        self._answers = 0
        """Number of followers that have answered the last question."""
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._loss: EngineFailed | None = None
        self._on_loss: Callable[[Exception], None] = lambda error: exit_now(1, error)
        self._stop_requests: list[bool] = []
        """Stop requests of followers; True: immediately."""
        self._stop: Mapping[bool, Callable[[], Any]] = {}
        self._listening = [
            listen(line, partial(self._receive, line.peer), self._on_lost_connection)
            for line in lines
        ]
        self._beating = beat(lambda: self._send("beat", {}, {}), silence_s, self._ended)

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Register a callback for a lost follower, called in any thread in place of an exit."""
        with self._lock:
            self._on_loss = callback
        if self._loss is not None:
            callback(self._loss)

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Register callbacks for signals that a follower receives: drain or stop now."""
        self._stop = {False: drain, True: stop_now}
        for immediately in self._stop_requests:
            self._stop[immediately]()

    def send(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Send a message to each follower process. Raises: EngineFailed: one is lost."""
        try:
            self._send(kind, fields, arrays or {})
        except ConnectionLost as error:
            self._lost.wait(CAUSE_S)  # its "failed" message may still arrive
            raise self.end_slice(str(error)) from error

    def request(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Send a message to each follower, and wait for all answers. One thread at a time.

        Raises: EngineFailed: one is lost.
        """
        self._answers = 0  # no answer can arrive before the question
        self.send(kind, fields, arrays)
        with self._answered:
            self._answered.wait_for(
                lambda: self._answers == len(self._lines) or self._loss is not None
            )
        if self._loss is not None:
            raise self._loss

    def fail(self, error: Exception) -> EngineFailed:
        """Call `end_slice` for an error here, which another lost process may have caused."""
        if not is_local(error):
            self._lost.wait(CAUSE_S)
        return self.end_slice(f"the first process failed: {reason(error)}")

    def end_slice(self, why: str) -> EngineFailed:
        """End the slice and inform all followers, once; return the error to raise."""
        with self._lock:
            is_first, callback = self._loss is None, self._on_loss
            if self._loss is None:
                self._loss = EngineFailed(f"the slice ends: {why}")
        self._lost.set()
        with self._answered:
            self._answered.notify_all()
        if is_first and not self._ended.is_set():
            log.error("%s", self._loss)
            self._send_failure(why)
            callback(self._loss)
        return self._loss

    def _send_failure(self, why: str) -> None:
        for line in self._lines:
            with suppress(ConnectionLost):
                line.send(Message("failed", {"why": why}))

    def close(self) -> None:
        """Make all followers exit in order. A loss meanwhile exits this process at once."""
        self._ended.set()
        if self._loss is not None:
            exit_now(1, self._loss)
        self.send("leave", {})
        for thread in self._listening:
            thread.join(self._silence_s)
        for line in self._lines:
            line.close()

    def _send(self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        dropped: list[int] = []
        with suppress(IndexError):  # concurrent senders share the list
            while True:
                dropped.append(self.dropped.popleft())
        data = packed(Message(kind, {**fields, "drop": dropped}, arrays))
        for line in self._lines:
            line.send_packed(data)

    def _on_lost_connection(self, error: ConnectionLost) -> None:
        self.end_slice(str(error))

    def _receive(self, peer: str, message: Message) -> None:
        if message.kind == "failed":
            self.end_slice(f"{peer} failed: {message.fields['why']}")
        if message.kind == "answer":
            with self._answered:
                self._answers += 1
                self._answered.notify_all()
        if message.kind == "stop":
            immediately = bool(message.fields["now"])
            self._stop_requests.append(immediately)
            self._stop.get(immediately, lambda: None)()

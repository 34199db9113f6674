"""The other processes of a slice, as the first one has them: told all, or lost together."""

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
from workers.engine.errors import EngineDied
from workers.multihost.connection import Connection, ConnectionLost, beat, listen
from workers.multihost.exits import leave
from workers.multihost.failure_reason import CAUSE_S, is_own, reason

log = logging.getLogger(__name__)


class Followers:
    """Connections to all followers; the loss of any ends the slice: at once, or by `on_loss`."""

    def __init__(self, lines: Sequence[Connection], silence_s: float) -> None:
        self.dropped: deque[int] = deque()
        """Numbers that the next message lets the others forget. To be appended to by anyone."""
        self._lines = lines
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._answered = threading.Condition()
        self._answers = 0
        """Followers that have answered what was asked last."""
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._loss: EngineDied | None = None
        self._tell_loss: Callable[[Exception], None] = lambda error: leave(1, error)
        self._asked: list[bool] = []
        """Requests of followers to end, each whether at once."""
        self._stop: Mapping[bool, Callable[[], Any]] = {}
        self._listening = [
            listen(line, partial(self._hear, line.peer), self._miss) for line in lines
        ]
        self._beating = beat(lambda: self._send("beat", {}, {}), silence_s, self._ended)

    def on_loss(self, tell: Callable[[Exception], None]) -> None:
        """Report a loss to this callback, in any thread, instead of leaving at once."""
        with self._lock:
            self._tell_loss = tell
        if self._loss is not None:
            tell(self._loss)

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Call these, in any thread, when a follower is asked to end: soon, or at once."""
        self._stop = {False: drain, True: stop_now}
        for now in self._asked:
            self._stop[now]()

    def tell(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """A message to each. Raises: EngineDied: one of them is lost."""
        try:
            self._send(kind, fields, arrays or {})
        except ConnectionLost as error:
            self._lost.wait(CAUSE_S)  # for what it has said before it went
            raise self.lose(str(error)) from error

    def ask(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Tell each, and wait until all have answered. For one thread at a time.

        Raises: EngineDied: one of them is lost.
        """
        self._answers = 0  # nobody answers what has not been asked
        self.tell(kind, fields, arrays)
        with self._answered:
            self._answered.wait_for(
                lambda: self._answers == len(self._lines) or self._loss is not None
            )
        if self._loss is not None:
            raise self._loss

    def fail(self, error: Exception) -> EngineDied:
        """Call `lose` for an error in this process; it may be that of another that is gone."""
        if not is_own(error):
            self._lost.wait(CAUSE_S)
        return self.lose(f"the first process failed: {reason(error)}")

    def lose(self, why: str) -> EngineDied:
        """End the slice; return what to raise then. All are told, the first time."""
        with self._lock:
            is_first, tell = self._loss is None, self._tell_loss
            if self._loss is None:
                self._loss = EngineDied(f"the slice ends: {why}")
        self._lost.set()
        with self._answered:
            self._answered.notify_all()
        if is_first and not self._ended.is_set():
            log.error("%s", self._loss)
            self._tell_all(why)
            tell(self._loss)
        return self._loss

    def _tell_all(self, why: str) -> None:
        for line in self._lines:
            with suppress(ConnectionLost):
                line.send(Message("failed", {"why": why}))

    def close(self) -> None:
        """Let all leave in order. A loss meanwhile ends this process, without a return."""
        self._ended.set()
        if self._loss is not None:
            leave(1, self._loss)
        self.tell("leave", {})
        for thread in self._listening:
            thread.join(self._silence_s)
        for line in self._lines:
            line.close()

    def _send(self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        dropped: list[int] = []
        with suppress(IndexError):  # other threads send, too, and take their share
            while True:
                dropped.append(self.dropped.popleft())
        data = packed(Message(kind, {**fields, "drop": dropped}, arrays))
        for line in self._lines:
            line.send_packed(data)

    def _miss(self, error: ConnectionLost) -> None:
        self.lose(str(error))

    def _hear(self, peer: str, message: Message) -> None:
        if message.kind == "failed":
            self.lose(f"{peer} failed: {message.fields['why']}")
        if message.kind == "answer":
            with self._answered:
                self._answers += 1
                self._answered.notify_all()
        if message.kind == "stop":
            now = bool(message.fields["now"])
            self._asked.append(now)
            self._stop.get(now, lambda: None)()

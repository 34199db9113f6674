"""A follower's end of its line to the first process, and its life by it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

import jax

from models.interface.pipeline import PyTree
from service.settings.section import ConfigError
from workers.engine.array_framing import Message
from workers.multihost.connection import Connection, ConnectionLost, beat, listen, started
from workers.multihost.exits import leave, watch_exits
from workers.multihost.failure_reason import CAUSE_S, is_own, reason
from workers.multihost.follower import Follower

log = logging.getLogger(__name__)


class LeaderLink:
    """Ends this process at once when the first one is lost, whatever is being done."""

    def __init__(self, line: Connection, silence_s: float) -> None:
        self._line = line
        self._commands: SimpleQueue[Message] = SimpleQueue()
        self._leaving = threading.Event()
        self._signals: SimpleQueue[int | None] = SimpleQueue()
        """Signals received; None when the leader has said to leave."""
        listen(line, self._hear, self._lost)
        beat(lambda: line.send(Message("beat")), silence_s, self._leaving)

    def first(self, kind: str) -> Message:
        """The next message of that kind, whatever beats come before."""
        while (message := self._commands.get()).kind != kind:
            log.debug("%s before %s", message.kind, kind)
        return message

    def fail(self, error: Exception) -> None:
        """Tell the first process why this one ends, unless it is told of another that is gone."""
        if not is_own(error):
            threading.Event().wait(CAUSE_S)
        self._leaving.set()
        with suppress(ConnectionLost):
            self._line.send(Message("failed", {"why": reason(error)}))

    def follow(self, follower: Follower) -> None:
        """Follow the leader until it says to leave. In the main thread.

        A signal to end is passed on: the first process ends what is begun, and tells all.
        """
        watch_exits(self._on_signal)
        started(lambda: self._obey(follower), "follow")
        started(lambda: self._see_to_ends(follower.launched), "ends")
        while (number := self._signals.get()) is not None:
            self._line.send(Message("stop", {"now": number == signal.SIGINT}))
        follower.close()

    def close(self) -> None:
        """Leave, and close the connection."""
        self._leaving.set()
        self._line.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.put(number)

    def _hear(self, message: Message) -> None:
        if message.kind == "failed" and not self._leaving.is_set():
            leave(1, message.fields["why"])
        if message.kind == "leave":
            self._leaving.set()
        self._commands.put(message)

    def _lost(self, error: ConnectionLost) -> None:
        if not self._leaving.is_set():
            leave(1, error)

    def _obey(self, follower: Follower) -> None:
        try:
            while (message := self._commands.get()).kind != "leave":
                if answer := follower.handle(message):
                    self._line.send(answer)
        except ConnectionLost as error:  # in the answer
            self._lost(error)
        except ConfigError as error:
            self._fail(os.EX_CONFIG, error)
        except Exception as error:
            log.exception("what the first process asked for cannot be done here")
            self._fail(1, error)
        self._signals.put(None)

    def _see_to_ends(self, launched: SimpleQueue[PyTree]) -> None:
        """A program that fails here has failed everywhere, or keeps the others waiting."""
        try:
            while True:
                jax.block_until_ready(launched.get())
        except Exception as error:
            self._fail(1, error)

    def _fail(self, code: int, error: Exception) -> NoReturn:
        self.fail(error)
        leave(code, reason(error))

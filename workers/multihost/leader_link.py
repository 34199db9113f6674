"""A follower's connection to the leader, and the life cycle of the follower's process."""

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
from workers.multihost.exits import CAUSE_S, exit_now, is_local, reason, watch_exits
from workers.multihost.follower import Follower

log = logging.getLogger(__name__)


class LeaderLink:
    """Follower's connection to the leader; its loss exits this process immediately."""

    def __init__(self, line: Connection, silence_s: float) -> None:
        self._line = line
        self._commands: SimpleQueue[Message] = SimpleQueue()
        self._leaving = threading.Event()
        self._signals: SimpleQueue[int | None] = SimpleQueue()
        """Received signals; None after the leader's "leave"."""
        listen(line, self._receive, self._lost)
        beat(lambda: line.send(Message("beat")), silence_s, self._leaving)

    def first(self, kind: str) -> Message:
        """Return the leader's next message of that kind; skip others."""
        while (message := self._commands.get()).kind != kind:
            log.debug("%s before %s", message.kind, kind)
        return message

    def fail(self, error: Exception) -> None:
        """Send the leader this process's error, unless another lost process has caused it."""
        if not is_local(error):
            threading.Event().wait(CAUSE_S)
        self._leaving.set()
        with suppress(ConnectionLost):
            self._line.send(Message("failed", {"why": reason(error)}))

    def follow(self, follower: Follower) -> None:
        """Execute the leader's commands until it sends "leave". Call it in the main thread.

        Signals are forwarded: the leader finishes running jobs and ends all processes.
        """
        watch_exits(self._on_signal)
        started(lambda: self._execute_commands(follower), "follow")
        started(lambda: self._watch_results(follower.launched), "ends")
        while (number := self._signals.get()) is not None:
            self._line.send(Message("stop", {"now": number == signal.SIGINT}))
        follower.close()

    def close(self) -> None:
        """Mark this process as leaving the slice, and close the connection."""
        self._leaving.set()
        self._line.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.put(number)

    def _receive(self, message: Message) -> None:
        if message.kind == "failed" and not self._leaving.is_set():
            exit_now(1, message.fields["why"])
        if message.kind == "leave":
            self._leaving.set()
        self._commands.put(message)

    def _lost(self, error: ConnectionLost) -> None:
        if not self._leaving.is_set():
            exit_now(1, error)

    def _execute_commands(self, follower: Follower) -> None:
        try:
            while (message := self._commands.get()).kind != "leave":
                if answer := follower.handle(message):
                    self._line.send(answer)
        except ConnectionLost as error:  # while sending the answer
            self._lost(error)
        except ConfigError as error:
            self._fail(os.EX_CONFIG, error)
        except Exception as error:
            log.exception("a command of the first process failed here")
            self._fail(1, error)
        self._signals.put(None)

    def _watch_results(self, launched: SimpleQueue[PyTree]) -> None:
        """Exit on the error of a launch; it has failed in every process, or blocks the others."""
        try:
            while True:
                jax.block_until_ready(launched.get())
        except Exception as error:
            self._fail(1, error)

    def _fail(self, code: int, error: Exception) -> NoReturn:
        self.fail(error)
        exit_now(code, reason(error))

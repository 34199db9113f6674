"""Safety hook in this process: a Python function of the operator's."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from service.safety.question import Question
from service.safety.verdict import SafetyAbsent, Verdict, verdict_of
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError

log = logging.getLogger("atelier")

WHERE = "its module must be installed, or lie in a folder of PYTHONPATH, written out in full"
"""Places that a module is looked for in; the working directory is none."""

SafetyFunction = Callable[[dict[str, Any]], object]


def load_function(name: str) -> SafetyFunction:
    """Import `package.module:function`. Raises: ConfigError: there is no such function."""
    module, _, attribute = name.partition(":")
    try:
        found: SafetyFunction = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        said = f"{name!r} cannot be imported: {error}; {WHERE}"
        raise ConfigError(f"safety.check: {said}") from error
    if not callable(found):
        raise ConfigError(f"safety.check: {name!r} is no function")
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"safety.check: {name!r} is async; name a plain function")
    return found


class FunctionHook:
    """Calls the function in threads of its own, so that one that hangs takes nobody else's.

    A call cannot be stopped: it keeps its place until it returns, whoever waits for it.
    """

    def __init__(self, settings: SafetySettings) -> None:
        """Raises: ConfigError."""
        assert settings.check
        self._function = load_function(settings.check)
        self._most = settings.max_checks
        self._running = 0

    async def ask(self, question: Question) -> Verdict:
        """Ask once. Raises: SafetyAbsent."""
        if self._running >= self._most:
            raise SafetyAbsent(f"all {self._most} calls of the function are still running")
        return verdict_of(await self._in_thread(question.members()))

    async def close(self) -> None:
        """Close nothing: its threads do not keep the process."""

    async def _in_thread(self, question: dict[str, Any]) -> object:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()

        def end(answer: object) -> None:
            self._running -= 1
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            answer = self._call(question)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, answer)

        self._running += 1
        threading.Thread(target=run, name="safety", daemon=True).start()
        answer = await answered
        if isinstance(answer, SafetyAbsent):
            raise answer
        return answer

    def _call(self, question: dict[str, Any]) -> object:
        try:
            return self._function(question)
        except Exception as error:
            log.warning("the safety function failed", exc_info=error)
            return SafetyAbsent(f"it failed with {type(error).__name__}")

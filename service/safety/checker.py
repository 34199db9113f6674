"""Checks by the safety hook: clients by turns, in limited time, by policy without a verdict."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from service.http.fair_limiter import FairLimiter
from service.jobs.model.safety_metrics import SafetyMetrics
from service.safety.function_hook import FunctionHook
from service.safety.http_hook import HttpHook
from service.safety.question import Question
from service.safety.verdict import SafetyAbsent, SafetyBusy, SafetyRefused, Verdict
from service.settings.safety import SafetySettings

log = logging.getLogger("atelier")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Pauses between two tries of one check: doubled from the first to the longest."""
TRIES_TO_ALLOW = 3
"""Tries where an absent verdict allows: nobody has to wait long for what is let through anyway."""


class SafetyHook(Protocol):
    """One of the hooks."""

    async def ask(self, question: Question) -> Verdict:
        """Ask once. Raises: SafetyAbsent."""

    async def close(self) -> None:
        """Let go of what it holds."""


def hook_of(settings: SafetySettings) -> SafetyHook:
    """Return the hook that the settings name. Raises: ConfigError: there is no such function."""
    return HttpHook(settings) if settings.url else FunctionHook(settings)


class SafetyChecker:
    """Checks of one process.

    Args:
        place_s: the longest wait for a place; None: any, where something else bounds who waits.
    """

    def __init__(
        self, settings: SafetySettings, metrics: SafetyMetrics, place_s: float | None = None
    ) -> None:
        """Raises: ConfigError."""
        self._settings = settings
        self._hook = hook_of(settings)
        self._metrics = metrics
        self._place_s = place_s
        self._places = FairLimiter(settings.max_checks, max(1, settings.max_checks // 2))

    async def check(self, question: Question, client: str) -> None:
        """Return if the hook allows it, or gives no verdict and the policy allows that.

        Args:
            client: whose turn it takes.

        Raises:
            SafetyRefused: the hook refuses.
            SafetyAbsent: there is no verdict, and the policy refuses.
            SafetyBusy: too many checks of this client wait.
        """
        async with self._place(client):
            began = time.perf_counter()
            try:
                verdict = await self._ask(question)
            except SafetyAbsent as absent:
                self._record(question, "absent", began)
                log.warning("%s; policy: %s", absent, self._settings.when_absent)
                if self._settings.when_absent == "refuse":
                    raise
                return
            self._record(question, "allowed" if verdict.allow else "refused", began)
        if not verdict.allow:
            raise SafetyRefused(verdict.reason)

    async def close(self) -> None:
        """Let go of the hook."""
        await self._hook.close()

    @asynccontextmanager
    async def _place(self, client: str) -> AsyncIterator[None]:
        """Raises: SafetyBusy. A full line never counts as absent: anyone could fill their own."""
        try:
            async with asyncio.timeout(self._place_s):
                place = await self._places.take(client)
        except TimeoutError:
            raise SafetyBusy("too many of your requests wait for their safety check") from None
        with place:
            yield

    async def _ask(self, question: Question) -> Verdict:
        """Ask until there is a verdict. Raises: SafetyAbsent: there is none in time."""
        limit_s, last = self._settings.timeout_s, "it did not answer"
        try:
            async with asyncio.timeout(limit_s):
                for pause_s in self._pauses_s():
                    try:
                        return await self._hook.ask(question)
                    except SafetyAbsent as error:
                        last = str(error)
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            pass
        raise SafetyAbsent(f"the safety hook gave no verdict within {limit_s:g} s: {last}")

    def _pauses_s(self) -> Iterator[float]:
        """Yield the pause behind each try."""
        most = TRIES_TO_ALLOW if self._settings.when_absent == "allow" else None
        pauses = (min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in itertools.count())
        return itertools.islice(pauses, most)

    def _record(self, question: Question, verdict: str, began: float) -> None:
        self._metrics.record(question.when, verdict, time.perf_counter() - began)

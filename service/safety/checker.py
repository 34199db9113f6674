"""Execution of safety checks: fair between clients, with a timeout and a policy for its failure."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from service.http.fair_limiter import FairLimiter
from service.jobs.model.metrics import SafetyMetrics
from service.safety.safety_check import SafetyCheck
from service.safety.verdict import NoVerdict, SafetyBusy, SafetyRefused, Verdict
from service.settings.safety import SafetySettings

log = logging.getLogger("atelier")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Pauses between two attempts of one check, doubled from the first to the longest."""
TRIES_TO_ALLOW = 3
"""Number of attempts if a missing verdict allows the request."""


class SafetyHook(Protocol):
    """Interface of a safety hook."""

    async def verdict(self, safety_check: SafetyCheck) -> Verdict:
        """Request a safety verdict once. Raises: NoVerdict."""

    async def close(self) -> None:
        """Release the safety hook's resources."""


def hook_of(settings: SafetySettings) -> SafetyHook:
    """Create the safety hook that the settings name. Raises: ConfigError: no such function."""
    from service.safety.hooks import FunctionHook, HttpHook  # imports an HTTP client

    return HttpHook(settings) if settings.url else FunctionHook(settings)


class SafetyChecker:
    """Safety checks of requests and outputs in one process.

    Args:
        slot_timeout_s: maximum wait for a slot; None: unlimited, because callers are limited
            elsewhere.
    """

    def __init__(
        self, settings: SafetySettings, metrics: SafetyMetrics, slot_timeout_s: float | None = None
    ) -> None:
        """Create the safety checker of this process. Raises: ConfigError."""
        self._settings = settings
        self._hook = hook_of(settings)
        self._metrics = metrics
        self._place_s = slot_timeout_s
        self._slots = FairLimiter(settings.max_checks, max(1, settings.max_checks // 2))

    async def check(self, safety_check: SafetyCheck, client: str) -> None:
        """Check content by the safety hook; a missing verdict counts as the policy says.

        Args:
            client: client whose concurrency limit applies.

        Raises:
            SafetyRefused: the hook refuses.
            NoVerdict: no verdict, and the policy refuses.
            SafetyBusy: too many checks of this client wait.
        """
        async with self._slot(client):
            began = time.perf_counter()
            try:
                verdict = await self._verdict(safety_check)
            except NoVerdict as absent:
                self._record(safety_check, "absent", began)
                log.warning("%s; policy: %s", absent, self._settings.when_absent)
                if self._settings.when_absent == "refuse":
                    raise
                return
            self._record(safety_check, "allowed" if verdict.allow else "refused", began)
        if not verdict.allow:
            raise SafetyRefused(verdict.reason)

    async def close(self) -> None:
        """Close the safety hook."""
        await self._hook.close()

    @asynccontextmanager
    async def _slot(self, client: str) -> AsyncIterator[None]:
        """Hold a slot for one safety check. Raises: SafetyBusy.

        A timeout here is no missing verdict, or clients could cause one by many requests.
        """
        try:
            async with asyncio.timeout(self._place_s):
                place = await self._slots.acquire(client)
        except TimeoutError:
            raise SafetyBusy("too many of your requests wait for their safety check") from None
        with place:
            yield

    async def _verdict(self, safety_check: SafetyCheck) -> Verdict:
        """Retry the safety hook until a verdict arrives. Raises: NoVerdict: none in time."""
        limit_s, last = self._settings.timeout_s, "no response"
        try:
            async with asyncio.timeout(limit_s):
                for pause_s in self._pauses_s():
                    try:
                        return await self._hook.verdict(safety_check)
                    except NoVerdict as error:
                        last = str(error)
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            pass
        raise NoVerdict(f"the safety hook gave no verdict within {limit_s:g} s: {last}")

    def _pauses_s(self) -> Iterator[float]:
        """Yield the pause after each attempt to call the safety hook."""
        limit = TRIES_TO_ALLOW if self._settings.when_absent == "allow" else None
        pauses = (min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in itertools.count())
        return itertools.islice(pauses, limit)

    def _record(self, safety_check: SafetyCheck, verdict: str, began: float) -> None:
        self._metrics.record(safety_check.when, verdict, time.perf_counter() - began)

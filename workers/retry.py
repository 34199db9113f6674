"""Trying again: what is done about a Redis or a store that is not there for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from redis.exceptions import RedisError

from service.jobs.storage.errors import NotStored, StoreError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

QUEUE_ERRORS = (RedisError, OSError)
"""What a queue raises when Redis cannot be reached."""

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


def pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt: doubled each time, up to a limit."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def until_reached(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the queue until Redis answers.

    What has changed meanwhile, its answer tells: a claim that another pool has taken over is
    refused.
    """
    for pause_s in pauses():
        try:
            return await call(*args, **kwargs)
        except QUEUE_ERRORS as error:
            log.warning("Redis cannot be reached, trying again: %s", error)
            await asyncio.sleep(pause_s)
    raise AssertionError("there is always another attempt")


@dataclass(frozen=True)
class Patience:
    """With a store that fails."""

    seconds: float
    """From the first call on; then another pool, with another way to the store, may try."""

    async def until_stored(
        self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call the store until it does as it is told.

        Raises: StoreError: the last one's; NotStored: at once.
        """
        until = time.monotonic() + self.seconds
        for pause_s in pauses():
            try:
                return await call(*args, **kwargs)
            except NotStored:
                raise
            except StoreError as error:
                if time.monotonic() + pause_s > until:
                    raise
                log.warning("the store failed, trying again: %s", error)
            await asyncio.sleep(pause_s)
        raise AssertionError("there is always another attempt")

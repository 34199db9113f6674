"""Retry policies for calls to Redis and to the object store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from redis.exceptions import RedisError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_before_delay,
    wait_exponential,
)

from service.jobs.storage.errors import NotStored, StoreError

QUEUE_ERRORS = (RedisError, OSError)
"""Errors of queue calls when Redis is unreachable."""
PAUSES_S = wait_exponential(multiplier=0.1, max=2.0)

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


async def until_reached(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Retry a queue call until Redis responds.

    The response reflects changes made meanwhile: for example, a claim taken over by another worker
    is rejected.
    """
    return await AsyncRetrying(
        retry=retry_if_exception_type(QUEUE_ERRORS),
        wait=PAUSES_S,
        before_sleep=_log("Redis cannot be reached"),
    )(call, *args, **kwargs)


@dataclass(frozen=True)
class Patience:
    """Retry policy of calls to a failing object store."""

    seconds: float
    """Seconds from the first call during which it is retried; afterwards another worker may try,
    with another route to the store."""

    async def until_stored(
        self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Retry a store call until it succeeds.

        Raises: StoreError: the last error; NotStored: at once.
        """
        return await AsyncRetrying(
            retry=retry_if_exception_type(StoreError) & retry_if_not_exception_type(NotStored),
            wait=PAUSES_S,
            stop=stop_before_delay(self.seconds),
            before_sleep=_log("the store failed"),
            reraise=True,
        )(call, *args, **kwargs)


def _log(what: str) -> Callable[[RetryCallState], None]:
    def note(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        log.warning("%s, trying again: %s", what, error)

    return note

"""Retries of calls to Redis and to the store, which may be away for a while."""

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
"""Errors of a queue when Redis cannot be reached."""
PAUSES_S = wait_exponential(multiplier=0.1, max=2.0)

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


async def until_reached(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the queue until Redis answers.

    What has changed meanwhile, its answer says: a claim that another worker has taken over is
    refused.
    """
    return await AsyncRetrying(
        retry=retry_if_exception_type(QUEUE_ERRORS),
        wait=PAUSES_S,
        before_sleep=_log("Redis cannot be reached"),
    )(call, *args, **kwargs)


@dataclass(frozen=True)
class Patience:
    """Patience with a store that fails: how long it is tried again."""

    seconds: float
    """Seconds from the first call on; then another worker, with another way to the store, may
    try."""

    async def until_stored(
        self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call the store until it does as it is told.

        Raises: StoreError: the last one's; NotStored: at once.
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

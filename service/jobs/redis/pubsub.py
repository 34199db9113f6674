"""Subscriber: one connection per process that receives all wake-ups and passes them to waiters.

Messages can be lost with a connection, so each new connection wakes all waiters. Waiters therefore
read Redis themselves, before and after waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from service.jobs.redis import keys
from service.jobs.redis.connection import blocking_client
from service.jobs.redis.tasks import cancel

CHANNELS = (keys.WAKE, keys.STOPPED, keys.QUEUED)
PING_AFTER_S = 10.0
"""Silence after which the connection is checked by a ping."""
RECONNECT_S = 0.1
"""First pause between reconnects. Each further one is twice as long, up to `LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S = 5.0

logger = logging.getLogger(__name__)


class Subscriber:
    """Subscription to the queue's Redis channels, started by the first waiter."""

    def __init__(self, redis: Redis) -> None:
        self._redis = blocking_client(redis)
        self._task: asyncio.Task[None] | None = None
        self._wakes: dict[tuple[str, str], set[asyncio.Event]] = defaultdict(set)
        self._feeds: dict[str, set[asyncio.Queue[str | None]]] = defaultdict(set)
        self.closed = False

    @contextmanager
    def waking(self, channel: str, message: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when this message may have been published, and on `close`."""
        wake, waiters = asyncio.Event(), self._wakes[channel, message]
        waiters.add(wake)
        self._start()
        try:
            yield wake
        finally:
            waiters.discard(wake)
            if not waiters:
                self._wakes.pop((channel, message), None)

    @contextmanager
    def feed(self, channel: str) -> Iterator[asyncio.Queue[str | None]]:
        """Yield a queue of the channel's messages from now on; None is the last, on `close`."""
        messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._feeds[channel].add(messages)
        self._start()
        try:
            yield messages
        finally:
            self._feeds[channel].discard(messages)

    def wake(self, channel: str, message: str) -> None:
        """Wake this process's waiters for a Redis message as if it had been published."""
        for wake in self._wakes.get((channel, message), ()):
            wake.set()

    async def close(self) -> None:
        """Stop listening to the channels, and close the connection."""
        self.closed = True
        self._end_waits()
        if self._task:
            await cancel(self._task)
        await self._redis.aclose()

    def _start(self) -> None:
        """Start the task that listens to the channels; after `close`, end the waits instead."""
        if self.closed:
            self._end_waits()
        elif self._task is None:
            self._task = asyncio.create_task(self._run(), name="queue-subscriber")

    async def _run(self) -> None:
        pause_s = RECONNECT_S
        while True:
            try:
                async with self._redis.pubsub() as pubsub:
                    await pubsub.subscribe(*CHANNELS)
                    pause_s = RECONNECT_S
                    await self._listen(pubsub)
            except (RedisError, OSError) as error:
                logger.warning("lost the queue's wake-ups (%s); connecting again", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _listen(self, pubsub: PubSub) -> None:
        silent = False
        while True:
            message = await pubsub.get_message(timeout=PING_AFTER_S)
            if message is not None:
                silent = False
                self._dispatch(message)
            elif silent:
                raise RedisConnectionError(f"no answer for {PING_AFTER_S:.0f} s")
            else:
                silent = True
                await pubsub.ping()

    def _dispatch(self, message: dict[str, Any]) -> None:
        kind, channel, data = message["type"], message["channel"], message["data"]
        if kind == "subscribe":
            self._wake_all()
        elif kind == "message":
            self.wake(channel, data)
            for feed in self._feeds.get(channel, ()):
                feed.put_nowait(data)

    def _wake_all(self) -> None:
        for waiters in self._wakes.values():
            for wake in waiters:
                wake.set()

    def _end_waits(self) -> None:
        self._wake_all()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.put_nowait(None)

"""Copies of data in Redis: read rarely, and once for concurrent requests."""

from __future__ import annotations

import asyncio
import itertools

from service.front_end.cost_cache import TimedCache
from tests.service.eventually import eventually


class Reads:
    """Reader that returns 1, 2, 3, …"""

    def __init__(self, pauses_s: float = 0.0) -> None:
        self._numbers = itertools.count(1)
        self._pauses_s = pauses_s

    async def __call__(self, model: str) -> str:
        await asyncio.sleep(self._pauses_s)  # a slow server
        return f"{model} {next(self._numbers)}"


async def test_concurrent_reads_share_one_query() -> None:
    copies = TimedCache(Reads(), age_s=1000)
    assert set(await asyncio.gather(*(copies.get("a") for _ in range(5)))) == {"a 1"}
    assert [await copies.get("a"), await copies.get("b")] == ["a 1", "b 2"]


async def test_stale_value_is_read_again() -> None:
    copies = TimedCache(Reads(), age_s=0)
    async with asyncio.timeout(10):
        while await copies.get("a") == "a 1":
            pass
    assert copies.last("a") == "a 2"


async def test_expensive_reads_are_cached_longer() -> None:
    """Reading takes a fiftieth of the time at most: 0.05 s are valid for 2.5 s."""
    copies = TimedCache(Reads(pauses_s=0.05), age_s=0)
    assert [await copies.get("a"), await copies.get("a")] == ["a 1", "a 1"]


async def test_stale_copy_is_served_without_waiting() -> None:
    reads = asyncio.Semaphore(1)

    async def read(model: str) -> str:
        await reads.acquire()
        return model

    copies = TimedCache(read, age_s=0, grace_s=1000)
    await copies.get("a")  # the next read blocks
    async with asyncio.timeout(10):
        assert [await copies.get("a") for _ in range(3)] == ["a"] * 3
    assert reads.locked(), "they got the old copy"
    reads.release()


async def _is_read_anew(copies: TimedCache[str]) -> None:
    first = await copies.get("a")

    async def is_new() -> bool:
        return await copies.get("a") != first

    await eventually(is_new)


async def test_stale_copy_is_refreshed_in_the_background() -> None:
    await _is_read_anew(TimedCache(Reads(), age_s=0, grace_s=1000))


async def test_copy_survives_a_failed_read() -> None:
    tries = itertools.count()

    async def read(model: str) -> str:
        if next(tries) == 1:
            raise ConnectionError("away")
        return f"{model} {next(tries)}"

    await _is_read_anew(TimedCache(read, age_s=0, grace_s=1000))


async def test_a_failed_read_is_tried_again() -> None:
    tries = itertools.count()

    async def read(model: str) -> str:
        if next(tries) == 0:
            raise ConnectionError("away")
        return model

    copies = TimedCache(read, age_s=1000)
    try:
        await copies.get("a")
    except ConnectionError:
        assert await copies.get("a") == "a"
    else:
        raise AssertionError("the error was swallowed")

"""Copies of what Redis holds: read seldom, and once for all who ask."""

from __future__ import annotations

import asyncio
import itertools

from service.front_end.cost_cache import Copies
from tests.service.eventually import eventually


class Reads:
    """Gives 1, 2, 3, …"""

    def __init__(self, pauses_s: float = 0.0) -> None:
        self._numbers = itertools.count(1)
        self._pauses_s = pauses_s

    async def __call__(self, model: str) -> str:
        await asyncio.sleep(self._pauses_s)  # as a server that has much to do
        return f"{model} {next(self._numbers)}"


async def test_who_asks_at_once_shares_a_read() -> None:
    copies = Copies(Reads(), age_s=1000)
    assert set(await asyncio.gather(*(copies.get("a") for _ in range(5)))) == {"a 1"}
    assert [await copies.get("a"), await copies.get("b")] == ["a 1", "b 2"]


async def test_what_is_old_is_read_again() -> None:
    copies = Copies(Reads(), age_s=0)
    async with asyncio.timeout(10):
        while await copies.get("a") == "a 1":
            pass
    assert copies.last("a") == "a 2"


async def test_what_is_dear_to_read_may_get_older() -> None:
    """A fiftieth of all time goes into reading: 0.05 s are good for two and a half."""
    copies = Copies(Reads(pauses_s=0.05), age_s=0)
    assert [await copies.get("a"), await copies.get("a")] == ["a 1", "a 1"]


async def test_nobody_waits_for_a_copy_that_has_just_become_old() -> None:
    reads = asyncio.Semaphore(1)

    async def read(model: str) -> str:
        await reads.acquire()
        return model

    copies = Copies(read, age_s=0, grace_s=1000)
    await copies.get("a")  # the next read waits for the test
    async with asyncio.timeout(10):
        assert [await copies.get("a") for _ in range(3)] == ["a"] * 3
    assert reads.locked(), "they had the old copy"
    reads.release()


async def _is_read_anew(copies: Copies[str]) -> None:
    first = await copies.get("a")

    async def is_new() -> bool:
        return await copies.get("a") != first

    await eventually(is_new)


async def test_a_copy_is_read_anew_while_it_is_given_on() -> None:
    await _is_read_anew(Copies(Reads(), age_s=0, grace_s=1000))


async def test_a_copy_outlives_a_reading_that_fails() -> None:
    tries = itertools.count()

    async def read(model: str) -> str:
        if next(tries) == 1:
            raise ConnectionError("away")
        return f"{model} {next(tries)}"

    await _is_read_anew(Copies(read, age_s=0, grace_s=1000))


async def test_a_failed_read_is_tried_again() -> None:
    tries = itertools.count()

    async def read(model: str) -> str:
        if next(tries) == 0:
            raise ConnectionError("away")
        return model

    copies = Copies(read, age_s=1000)
    try:
        await copies.get("a")
    except ConnectionError:
        assert await copies.get("a") == "a"
    else:
        raise AssertionError("the error was swallowed")

"""Checks of a batch's input file: line positions, limits, and blocking of the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from service.batches.endpoint import GENERATE
from service.batches.lines import CHUNK_BYTES, BatchError, LineCheck
from service.errors.problems import FieldError, NotFound
from service.routes.compat.openai.batch_bodies import ENDPOINTS
from service.settings.batches import BatchSettings
from tests.service.batches.test_batches import IMAGES_URL, URL, jsonl, line

LINES = 10_000
CHECK_S = 2.0
"""Limit of the processor time of 10,000 lines, which take 0.2 s."""
LOOP_S = 0.05
"""Limit of the processor time that the event loop spends at once, which is 2 ms."""


async def pieces(data: bytes, size: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [7, 100, CHUNK_BYTES])
async def test_line_offsets_are_independent_of_chunking(size: int) -> None:
    data = jsonl(line(0)) + b"\n  \n" + jsonl(line(1)).rstrip() + b"\r\n" + jsonl(line(2)).rstrip()
    check = LineCheck(GENERATE, BatchSettings())
    places = await check.run(pieces(data, size))
    assert [json.loads(data[place.start : place.end])["custom_id"] for place in places] == [
        "cat-0", "cat-1", "cat-2",
    ]  # fmt: skip
    assert [place.custom_id for place in places] == ["cat-0", "cat-1", "cat-2"]


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ({"max_lines": 2}, "too_many_requests"),
        ({"max_line_bytes": 64}, "line_too_long"),
    ],
)
async def test_bounds_are_kept(bounds: dict[str, int], code: str) -> None:
    data = jsonl(*(line(number) for number in range(3)))
    with pytest.raises(BatchError) as refused:
        await LineCheck(GENERATE, BatchSettings(**bounds)).run(pieces(data))
    assert refused.value.errors[0].code == code


async def test_errors_are_short_however_long_the_lines() -> None:
    """Redis keeps them with the batch, and no quota counts them."""
    names = [f"{number}{'m' * 50_000}" for number in range(4)]
    data = jsonl(*(line(number, model=name) for number, name in enumerate(names)))
    lines = data.replace(URL.encode(), IMAGES_URL.encode())

    def refuse(name: str | None) -> None:
        raise NotFound(f"there is no model {name}", errors=[FieldError(f"model.{name}", "wrong")])

    with pytest.raises(BatchError) as refused:
        await LineCheck(ENDPOINTS[IMAGES_URL], BatchSettings(), refuse).run(pieces(lines))
    assert [error.line for error in refused.value.errors] == [1, 2, 3, 4]
    assert len(json.dumps([error.model_dump() for error in refused.value.errors])) < 6000


async def test_endless_line_is_aborted() -> None:
    reads = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal reads
        while True:
            reads += 1
            yield b" " * 1000

    with pytest.raises(BatchError):
        await LineCheck(GENERATE, BatchSettings(max_line_bytes=10_000)).run(endless())
    assert reads < 20


async def test_checking_ten_thousand_lines_keeps_the_loop_responsive() -> None:
    data = jsonl(*(line(number) for number in range(LINES)))
    began, last, longest = time.process_time(), time.thread_time(), 0.0
    check = LineCheck(GENERATE, BatchSettings(max_lines=LINES))
    checking = asyncio.create_task(check.run(pieces(data)))
    while not checking.done():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        last, longest = now, max(longest, now - last)
    assert len(checking.result()) == LINES
    took = time.process_time() - began
    print(f"{took:.2f} s, longest stall {1000 * longest:.0f} ms")
    assert took < CHECK_S
    assert longest < LOOP_S

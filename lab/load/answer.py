"""Cost of returning a finished job's response: `python -m lab.load.answer`.

Like `lab.load.accept`, but clients wait (`Prefer: wait`) for jobs whose steps and ends a pool in
this process reports. Prints the front end's processor time of a request, and the time from sending
a job's end to receiving the response.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from lab.load.accept import FOR_AN_HOUR, POOL, ROOT, Side, connected, cpu_s, front_end, prepare
from lab.load.accept import quartiles as quartiles_of
from service.jobs.model.job import Usage
from service.jobs.queue import Claim, Queue, StageReport
from service.jobs.redis.tasks import cancel
from tests.service.standin import SPEC

STEPS = 4
WAIT = b"Prefer: wait=60\r\nContent-Type:"


async def serve(queue: Queue, ended_at: dict[str, float]) -> None:
    """Claim and finish jobs in sequence; record when each end is sent."""
    while True:
        for claim in await queue.claim(POOL, SPEC.name, 1, wait_s=1.0):
            await _run(queue, claim)
            ended_at[claim.job.id] = time.perf_counter()
            await queue.finish(claim, [], Usage(steps=STEPS, device_seconds=0.1))


async def _run(queue: Queue, claim: Claim) -> None:
    for step in range(1, STEPS + 1):
        await queue.progress(claim, step, STEPS, None, StageReport("denoising"), None)


async def turn(side: Side, seconds: float) -> list[float]:
    """Request jobs in sequence; return the milliseconds from each end to its response."""
    queue, ended_at, delays_ms = await Queue.connect(side.redis_url, FOR_AN_HOUR), {}, []
    pool = asyncio.create_task(serve(queue, ended_at))
    before_s, deadline = cpu_s(side.process_id), time.perf_counter() + seconds
    async with connected(side) as connection:
        while time.perf_counter() < deadline:
            job = json.loads(await connection.exchange(b" 200 "))
            delays_ms.append(1000 * (time.perf_counter() - ended_at[job["id"]]))
    side.each_ms.append(1000 * (cpu_s(side.process_id) - before_s) / len(delays_ms))
    await cancel(pool)
    await queue.close()
    return delays_ms


async def measure(sides: Sequence[Side], turns: int, seconds: float) -> None:
    for side in sides:
        await prepare(side, has_keys=False, queued=0)
        side.request = side.request.replace(b"Content-Type:", WAIT, 1)
        await turn(side, 1.0)  # warm-up
        side.each_ms.clear()
    delays_ms: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(turns):
        for side in sides if number % 2 else reversed(sides):
            delays_ms[side.name] += await turn(side, seconds)
    for side in sides:
        low, middle, high = quartiles_of(delays_ms[side.name])
        print(
            f"{side.name}: {len(delays_ms[side.name])} answers, {middle:.2f} ms after the end"
            f" ({low:.2f} to {high:.2f}); {statistics.median(side.each_ms):.3f} ms of the front"
            " end's processor each"
        )
    if len(sides) == 2:
        ratios = [
            our_ms / their_ms
            for our_ms, their_ms in zip(*(side_.each_ms for side_ in sides), strict=True)
        ]
        low, middle, high = quartiles_of(ratios)
        print(f"processor time, ours to theirs: {middle:.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3, help="of a turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    args = parser.parse_args()
    checkouts = {"ours": ROOT} | ({"theirs": args.against.resolve()} if args.against else {})
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(front_end(name, checkout, False, False))
            for name, checkout in checkouts.items()
        ]
        asyncio.run(measure(sides, args.turns, args.seconds))


if __name__ == "__main__":
    main()

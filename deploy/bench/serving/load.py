"""Open-loop load: requests are sent at their planned times, independent of responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from deploy.bench.serving.request_outcome import SUCCEEDED, UNFINISHED, RequestOutcome
from deploy.bench.serving.server import Server
from deploy.bench.serving.timed_request import TimedRequest

CANCEL_S = 10.0
"""Time limit for canceling unfinished jobs when the load stops."""


@dataclass(frozen=True)
class Alone:
    """Median times of requests of one shape on the unloaded server."""

    whole_s: float
    accept_s: float
    queue_s: float | None
    run_s: float | None
    device_s: float | None
    added_s: float | None
    fetch_s: float | None
    samples: int


class NotMeasured(Exception):
    """Error of a shape whose request failed on the unloaded server; states why."""


async def measure_alone(
    server: Server,
    entries: Sequence[TimedRequest],
    count: int,
    say: Callable[[str], None],
    patience_s: float,
) -> dict[str, Alone]:
    """Measure each shape of a load on the unloaded server, one request at a time.

    The first request of a shape, which compiles, is not counted.

    Args:
        patience_s: time limit of each request, including server outages.

    Raises: NotMeasured.
    """
    medians: dict[str, Alone] = {}
    first: dict[str, TimedRequest] = {}
    for entry in entries:
        first.setdefault(entry.shape, entry)
    for entry in first.values():
        say(f"alone: {entry.shape}")
        answers = [await _one_alone(server, entry, patience_s) for _ in range(1 + count)]
        medians[entry.shape] = alone_of(answers[1:])
    return medians


async def _one_alone(server: Server, entry: TimedRequest, patience_s: float) -> RequestOutcome:
    """Send a request without a deadline, which a server that must compile would refuse.

    Its files are not reused, neither for it nor for a request of the load.
    """
    request = {name: value for name, value in entry.request.items() if name != "deadline_s"}
    request["reuse"] = False
    if isinstance(seed := request.get("seed"), int):
        request["seed"] = abs(seed - 1)
    answer = RequestOutcome(entry.model_copy(update={"request": request}))
    try:
        async with asyncio.timeout(patience_s):
            await server.execute(answer)
    except TimeoutError:
        message = f"{entry.shape}: not done after {patience_s:g} s; increase --patience"
        raise NotMeasured(message) from None
    finally:
        await _call_off(server, [answer])
    if answer.outcome != SUCCEEDED:
        why = ": ".join(filter(None, (answer.reason, answer.detail))) or "no reason given"
        raise NotMeasured(f"{entry.shape}: {answer.outcome}, {why}")
    return answer


def alone_of(answers: Sequence[RequestOutcome]) -> Alone:
    """Return the median times of single requests on the unloaded server."""

    def middle(name: str) -> float | None:
        values = [getattr(answer, name) for answer in answers]
        return None if None in values else median(values)

    names = ("whole_s", "accept_s", "queue_s", "run_s", "device_s", "added_s", "fetch_s")
    return Alone(**{name: middle(name) for name in names}, samples=len(answers))  # type: ignore[arg-type]


async def send(
    server: Server,
    entries: Sequence[TimedRequest],
    alone: Mapping[str, Alone],
    stop: asyncio.Event,
    patience_s: float,
) -> list[RequestOutcome]:
    """Send requests on schedule; return the outcomes of all that were sent, in order.

    Args:
        entries: requests, sorted by time.
        stop: when set, sending and waiting end, and unfinished jobs are canceled.
        patience_s: time limit of waiting after the last request.
    """
    answers: list[RequestOutcome] = []
    tasks: list[asyncio.Task[None]] = []
    began = time.perf_counter()
    for entry in entries:
        if await _stopped_before(stop, began + entry.at_s):
            break
        answers.append(RequestOutcome(entry))
        tasks.append(asyncio.create_task(_send(server, answers[-1], alone, began)))
    if tasks and not stop.is_set():
        await _all_or_stopped(tasks, stop, patience_s)
    await _give_up(server, tasks, answers)
    for task in tasks:
        if not task.cancelled():
            task.result()  # server errors are outcomes; an exception is a bug here
    return answers


async def _send(
    server: Server, answer: RequestOutcome, alone: Mapping[str, Alone], began: float
) -> None:
    unloaded = alone.get(answer.timed_request.shape)
    answer.deadline_s = answer.timed_request.deadline_s(unloaded.whole_s if unloaded else None)
    answer.late_s = max(0.0, time.perf_counter() - began - answer.timed_request.at_s)
    await server.execute(answer)
    answer.ended_at_s = time.perf_counter() - began


async def _stopped_before(stop: asyncio.Event, instant: float) -> bool:
    wait_s = instant - time.perf_counter()
    if wait_s > 0:
        try:
            async with asyncio.timeout(wait_s):
                await stop.wait()
        except TimeoutError:
            pass
    else:
        await asyncio.sleep(0)  # let responses be read even if sending is late
    return stop.is_set()


async def _all_or_stopped(
    tasks: Sequence[asyncio.Task[None]], stop: asyncio.Event, patience_s: float
) -> None:
    stopped = asyncio.create_task(stop.wait())
    every = asyncio.create_task(asyncio.wait(tasks))
    await asyncio.wait({every, stopped}, timeout=patience_s, return_when="FIRST_COMPLETED")
    stopped.cancel()
    every.cancel()


async def _give_up(
    server: Server, tasks: Sequence[asyncio.Task[None]], answers: Sequence[RequestOutcome]
) -> None:
    """Cancel unfinished requests, so that no jobs remain on the server."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _call_off(server, answers)


async def _call_off(server: Server, answers: Sequence[RequestOutcome]) -> None:
    """Cancel the jobs of a load that the server still has."""
    left = [
        unfinished
        for unfinished in answers
        if unfinished.outcome == UNFINISHED and unfinished.job_id
    ]
    try:
        async with asyncio.timeout(CANCEL_S):
            await asyncio.gather(*(server.cancel(answer) for answer in left))
    except TimeoutError:
        pass

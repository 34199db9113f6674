"""Open loop: requests leave on their planned instants, whatever the answers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from deploy.bench.serving.answer import SUCCEEDED, UNFINISHED, Answer
from deploy.bench.serving.ask import TimedRequest
from deploy.bench.serving.server import Server

CANCEL_S = 10.0
"""Time for calling off what is not done when the load is given up."""


@dataclass(frozen=True)
class Alone:
    """Times of requests of one shape on a server with nothing else to do: medians."""

    whole_s: float
    accept_s: float
    queue_s: float | None
    run_s: float | None
    device_s: float | None
    added_s: float | None
    fetch_s: float | None
    samples: int


class NotMeasured(Exception):
    """A request of a shape did not succeed, alone on the server; says why."""


async def measure_alone(
    server: Server,
    asks: Sequence[TimedRequest],
    count: int,
    say: Callable[[str], None],
    patience_s: float,
) -> dict[str, Alone]:
    """Measure each shape of a load by itself, one request at a time. The first one compiles.

    Args:
        patience_s: for each request, across a server that is away.

    Raises: NotMeasured.
    """
    found: dict[str, Alone] = {}
    first: dict[str, TimedRequest] = {}
    for ask in asks:
        first.setdefault(ask.shape, ask)
    for ask in first.values():
        say(f"alone: {ask.shape}")
        answers = [await _one_alone(server, ask, patience_s) for _ in range(1 + count)]
        found[ask.shape] = alone_of(answers[1:])
    return found


async def _one_alone(server: Server, ask: TimedRequest, patience_s: float) -> Answer:
    """Send a request without a deadline, which a server that has to compile would refuse."""
    request = {name: value for name, value in ask.request.items() if name != "deadline_s"}
    answer = Answer(ask.model_copy(update={"request": request}))
    try:
        async with asyncio.timeout(patience_s):
            await server.ask(answer)
    except TimeoutError:
        said = f"{ask.shape}: not done after {patience_s:g} s; give it more (--patience)"
        raise NotMeasured(said) from None
    finally:
        await _call_off(server, [answer])
    if answer.outcome != SUCCEEDED:
        why = ": ".join(filter(None, (answer.reason, answer.detail))) or "no reason given"
        raise NotMeasured(f"{ask.shape}: {answer.outcome}, {why}")
    return answer


def alone_of(answers: Sequence[Answer]) -> Alone:
    """The middle of some single requests."""

    def middle(name: str) -> float | None:
        values = [getattr(answer, name) for answer in answers]
        return None if None in values else median(values)

    names = ("whole_s", "accept_s", "queue_s", "run_s", "device_s", "added_s", "fetch_s")
    return Alone(**{name: middle(name) for name in names}, samples=len(answers))  # type: ignore[arg-type]


async def send(
    server: Server,
    asks: Sequence[TimedRequest],
    alone: Mapping[str, Alone],
    stop: asyncio.Event,
    patience_s: float,
) -> list[Answer]:
    """Send requests; return the answers of all that were sent, in that order.

    Args:
        asks: by their instants.
        stop: set it to send no more and to wait no longer; what is not done is canceled.
        patience_s: how long after the last request answers are waited for.
    """
    answers: list[Answer] = []
    tasks: list[asyncio.Task[None]] = []
    began = time.perf_counter()
    for ask in asks:
        if await _stopped_before(stop, began + ask.at_s):
            break
        answers.append(Answer(ask))
        tasks.append(asyncio.create_task(_one(server, answers[-1], alone, began)))
    if tasks and not stop.is_set():
        await _all_or_stopped(tasks, stop, patience_s)
    await _give_up(server, tasks, answers)
    for task in tasks:
        if not task.cancelled():
            task.result()  # whatever a server does ends in its answer: an error is ours
    return answers


async def _one(server: Server, answer: Answer, alone: Mapping[str, Alone], began: float) -> None:
    known = alone.get(answer.ask.shape)
    answer.deadline_s = answer.ask.deadline_s(known.whole_s if known else None)
    answer.late_s = max(0.0, time.perf_counter() - began - answer.ask.at_s)
    await server.ask(answer)
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
        await asyncio.sleep(0)  # a backlog of late ones must not keep the answers from being read
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
    server: Server, tasks: Sequence[asyncio.Task[None]], answers: Sequence[Answer]
) -> None:
    """Call off what is still under way: a load leaves no work behind."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _call_off(server, answers)


async def _call_off(server: Server, answers: Sequence[Answer]) -> None:
    """Cancel those that the server still has."""
    left = [one for one in answers if one.outcome == UNFINISHED and one.job_id]
    try:
        async with asyncio.timeout(CANCEL_S):
            await asyncio.gather(*(server.cancel(answer) for answer in left))
    except TimeoutError:
        pass

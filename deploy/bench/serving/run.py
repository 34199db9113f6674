"""Run of a server's benchmark, from the first look at it to its last answer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from deploy.bench.serving.answer import Answer
from deploy.bench.serving.ask import TimedRequest
from deploy.bench.serving.load import Alone, measure_alone, send
from deploy.bench.serving.server import Server
from deploy.exit_codes import UsageError
from service.client import ApiError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Plan:
    """Plan of how a load is measured."""

    window_s: float
    """Time in which its requests come; 0: all at once."""
    alone: int
    """Single requests of each shape before it."""
    known: Mapping[str, Alone]
    """Shapes that need none."""
    patience_s: float
    """Time limit for answers, after the last request, and for each request alone."""


@dataclass(frozen=True)
class Run:
    """Load, sent."""

    server: str
    began_at: str
    """ISO 8601."""
    planned: int
    """Requests of the load."""
    window_s: float
    """Time in which requests came: as long as planned, or until it was broken off."""
    interrupted: bool
    answers: Sequence[Answer]
    alone: Mapping[str, Alone]
    lost_connections: int
    followed_late: int


async def models_of(server: Server, keys: Iterable[str | None]) -> Mapping[str, bool]:
    """Names of its models → whether a pool serves them now, if it knows all these tenants' keys.

    Raises: UsageError: it does not, or has no models; Problem, Unreachable.
    """
    for tenant in keys:
        try:
            await server.models(tenant)
        except ApiError as problem:
            whose = "the API key" if tenant is None else f"the API key of tenant {tenant!r}"
            raise UsageError(f"the server does not take {whose}: {problem}") from None
    models = await server.models(next(iter(keys), None))
    if not models:
        raise UsageError("no model is registered at the server; wait until a pool has started")
    return models


def check_models(asks: Iterable[TimedRequest], models: Mapping[str, bool]) -> None:
    """Check that the server has the models.

    Raises: UsageError: names what the server has.
    """
    there_is = "the server has " + ", ".join(sorted(models))
    for model in {ask.model for ask in asks}:
        if not model and len(models) > 1:
            raise UsageError(f"a request names no model; {there_is}")
        if model and model not in models:
            raise UsageError(f"there is no model {model!r}; {there_is}")


async def measure(
    server: Server, url: str, asks: Sequence[TimedRequest], plan: Plan, say: Callable[[str], None]
) -> Run:
    """Measure each shape alone, then the load. A signal ends the load, a second one all of it.

    Raises: UsageError: deadlines are multiples of what is not measured; NotMeasured.
    """
    alone = dict(plan.known)
    new = [ask for ask in asks if ask.shape not in alone]
    if not plan.alone and any(ask.deadline_scale for ask in new):
        raise UsageError(
            "deadlines are multiples of what requests take alone: measure that (--alone), or take"
            " it from an earlier report (--alone-from)"
        )
    if plan.alone and new:
        alone |= await measure_alone(server, new, plan.alone, say, plan.patience_s)
    say(f"sending {len(asks)} requests within {asks[-1].at_s:.0f} s")
    began_at, began = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    with _stopping() as stop:
        answers = await send(server, asks, alone, stop, plan.patience_s)
    took_s = time.perf_counter() - began
    last_s = max((answer.ended_at_s or 0.0 for answer in answers), default=0.0)
    window_s = plan.window_s or last_s or took_s
    return Run(
        server=url,
        began_at=began_at,
        planned=len(asks),
        window_s=took_s if stop.is_set() else window_s,
        interrupted=stop.is_set(),
        answers=answers,
        alone=alone,
        lost_connections=server.lost,
        followed_late=server.followed_late,
    )


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; the next one does what it does elsewhere."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first() -> None:
        stop.set()
        restore()

    def restore() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, first)
    try:
        yield stop
    finally:
        restore()

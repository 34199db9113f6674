"""Run of a server's benchmark: preparation, unloaded measurements and the load."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from deploy.bench.serving.load import Alone, measure_alone, send
from deploy.bench.serving.request_outcome import RequestOutcome
from deploy.bench.serving.server import Server
from deploy.bench.serving.timed_request import TimedRequest
from deploy.exit_codes import UsageError
from service.client import ApiError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Plan:
    """Options of a load benchmark."""

    window_s: float
    """Duration of the load; 0: all requests at once."""
    alone: int
    """Single requests of each shape to measure before the load."""
    unloaded_times: Mapping[str, Alone]
    """Known unloaded times, which are not measured."""
    patience_s: float
    """Time limit for each unloaded request, and for responses after the load's last request."""


@dataclass(frozen=True)
class Run:
    """Results of a load benchmark: outcomes and unloaded times."""

    server: str
    began_at: str
    """ISO 8601."""
    planned: int
    """Number of planned requests."""
    window_s: float
    """Duration of the load: as planned, or until it was interrupted."""
    interrupted: bool
    answers: Sequence[RequestOutcome]
    alone: Mapping[str, Alone]
    lost_connections: int
    followed_late: int


async def models_of(server: Server, keys: Iterable[str | None]) -> Mapping[str, bool]:
    """Return the server's models, and whether a worker serves each; verifies all keys.

    Raises: UsageError: a key is rejected, or there are no models; ApiError, ServiceUnreachable.
    """
    for tenant in keys:
        try:
            await server.models(tenant)
        except ApiError as problem:
            whose = "the API key" if tenant is None else f"the API key of tenant {tenant!r}"
            raise UsageError(f"the server rejects {whose}: {problem}") from None
    models = await server.models(next(iter(keys), None))
    if not models:
        raise UsageError("no model is registered at the server; wait until a pool has started")
    return models


def check_models(entries: Iterable[TimedRequest], models: Mapping[str, bool]) -> None:
    """Verify that the server has the requested models.

    Raises: UsageError: names the server's models.
    """
    there_is = "the server has " + ", ".join(sorted(models))
    for model in {entry.model for entry in entries}:
        if not model and len(models) > 1:
            raise UsageError(f"a request names no model; {there_is}")
        if model and model not in models:
            raise UsageError(f"there is no model {model!r}; {there_is}")


async def measure(
    server: Server,
    url: str,
    entries: Sequence[TimedRequest],
    plan: Plan,
    say: Callable[[str], None],
) -> Run:
    """Measure each shape on the unloaded server, then the load.

    A signal stops the load, a second one the process.

    Raises: UsageError: deadlines need unloaded times; NotMeasured.
    """
    alone = dict(plan.unloaded_times)
    new = [entry for entry in entries if entry.shape not in alone]
    if not plan.alone and any(entry.deadline_scale for entry in new):
        raise UsageError(
            "deadlines are multiples of unloaded times: measure them (--alone), or read"
            " them from an earlier report (--alone-from)"
        )
    if plan.alone and new:
        alone |= await measure_alone(server, new, plan.alone, say, plan.patience_s)
    say(f"sending {len(entries)} requests within {entries[-1].at_s:.0f} s")
    began_at, began = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    with _stopping() as stop:
        answers = await send(server, entries, alone, stop, plan.patience_s)
    took_s = time.perf_counter() - began
    last_s = max((answer.ended_at_s or 0.0 for answer in answers), default=0.0)
    window_s = plan.window_s or last_s or took_s
    return Run(
        server=url,
        began_at=began_at,
        planned=len(entries),
        window_s=took_s if stop.is_set() else window_s,
        interrupted=stop.is_set(),
        answers=answers,
        alone=alone,
        lost_connections=server.lost,
        followed_late=server.followed_late,
    )


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets; further signals have their default effect."""
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

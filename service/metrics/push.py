"""Push of metrics to a collector, if the settings name one.

A separate thread pushes, so an unreachable collector delays neither requests nor steps.
OpenTelemetry is imported only if metrics are pushed (`otlp.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from service.settings.installation import how_to_install
from service.settings.section import ConfigError
from service.settings.telemetry import MetricsSettings
from service.tracing.spans import NONE, Attributes

REFRESH_S = 5.0
"""Timeout for refreshing values before a push."""
SHUTDOWN_TIMEOUT_S = 3.0
"""Time for the last push of an exiting process."""

log = logging.getLogger(__name__)

Refresh = Callable[[], "Future[Any] | None"]


class MetricsSender(Protocol):
    """Interface of a sender that pushes metrics to a collector."""

    def send(self) -> None:
        """Send the current values of the metrics."""

    def close(self) -> None:
        """Close the connection to the metrics collector."""


class Pusher:
    """Background thread that pushes metrics until it is ended."""

    def __init__(self, sender: MetricsSender, every_s: float, refresh: Refresh) -> None:
        self._sender = sender
        self._every_s = every_s
        self._refresh = refresh
        self._stop: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Push the metrics for the last time, and stop. Waits a few seconds at most."""
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join(SHUTDOWN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.done():
            wait([self._stop], self._every_s)
            try:
                self._push()
            except Exception:
                log.exception("metrics could not be pushed")
        self._sender.close()

    def _push(self) -> None:
        if not self._stop.done() and (refreshed := self._refresh()) is not None:
            wait([self._stop, refreshed], REFRESH_S, FIRST_COMPLETED)
        self._sender.send()


_pusher: Pusher | None = None


@contextmanager
def pushing(
    settings: MetricsSettings,
    registry: CollectorRegistry,
    service: str,
    attributes: Attributes = NONE,
    refresh: Refresh = lambda: None,
) -> Iterator[None]:
    """Push a registry's metrics every `push_every_s`, and once more at the end.

    Args:
        service: role of this process, for its resource attributes.
        refresh: called before each push but the last, to update values that need a read.

    Raises: ConfigError: OpenTelemetry is not installed, or rejects its variables.
    """
    global _pusher
    if settings.otlp_endpoint is None:
        yield
        return
    sender = _sender(settings, registry, service, attributes)
    _pusher = Pusher(sender, settings.push_every_s, refresh)
    try:
        yield
    finally:
        pusher, _pusher = _pusher, None
        pusher.end()


def end() -> None:
    """Push this process's metrics for the last time, within a few seconds.

    Call it before an exit that might skip cleanup.
    """
    if _pusher is not None:
        _pusher.end()


def _sender(
    settings: MetricsSettings, registry: CollectorRegistry, service: str, attributes: Attributes
) -> MetricsSender:
    try:
        from service.metrics.otlp import Sender
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics.otlp_endpoint is set, but {error.name} is missing: {how_to_install('otel')},"
            " or leave the endpoint out"
        ) from None
    try:
        return Sender(settings, registry, service, attributes)
    except ValueError as error:
        raise ConfigError(f"metrics: OpenTelemetry's own variables (OTEL_…): {error}") from None

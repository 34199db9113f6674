"""Front-end process: runs uvicorn, and ends open streams when it shuts down."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import uvicorn
import uvloop
from fastapi import FastAPI

from service.app import create_app
from service.auth.authenticator import check_first_key
from service.auth.exposure import listening_at, reached_at
from service.front_end.front_end import FrontEnd
from service.front_end.readiness import refresh_gauges
from service.http.connection_limits import (
    BoundedProtocol,
    ConnectionLimits,
    Connections,
    raise_descriptor_limit,
)
from service.jobs.queue import Queue
from service.jobs.redis import connection
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.metrics.front_end import Telemetry
from service.metrics.push import pushing
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.tracing import spans

log = logging.getLogger(__name__)

SERVICE = "atelier-frontend"
"""Name of front ends in traces and metrics."""
TICK_S = 0.1
"""Interval of uvicorn's `on_tick`, in seconds."""
SWEEP_TICKS = 10

NEW_OBJECTS = 10_000
"""Threshold of the garbage collector's youngest generation: the objects of a few requests."""

_MMAP_THRESHOLD = -3
"""Option of mallopt(3)."""
LARGE_BYTES = 2**17
"""Size from which buffers are returned to the operating system when they are freed."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HttpServer(uvicorn.Server):
    """Uvicorn server that ends open responses at shutdown, instead of waiting.

    Args:
        connections: client connections, swept every second.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.connections = connections

    async def on_tick(self, counter: int) -> bool:
        """Close overdue connections, every `SWEEP_TICKS` ticks."""
        if counter % SWEEP_TICKS == 0:
            self.connections.sweep(asyncio.get_running_loop().time(), SWEEP_TICKS * TICK_S)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open responses, then shut down the server."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.front.stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without uvicorn's raising them again, which would prevent exit code 0."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


def make_server(app: FastAPI, settings: Settings) -> HttpServer:
    """Create a server for `create_app`'s app; its `serve` returns after SIGTERM or SIGINT.

    It uses the process's existing loggers.
    """
    server = settings.server
    telemetry: Telemetry = app.state.front.telemetry
    connections = Connections(ConnectionLimits.of(settings), telemetry.connections_closed)
    telemetry.connections.set_function(lambda: len(connections.open))
    return HttpServer(
        uvicorn.Config(
            app,
            host=server.host,
            port=server.port,
            http=partial(BoundedProtocol, shared=connections),  # type: ignore[arg-type]
            ws="none",
            proxy_headers=bool(server.trusted_proxies),
            forwarded_allow_ips=[str(network) for network in server.trusted_proxies],
            log_config=None,
            log_level=settings.log_level,
            access_log=False,  # the app logs requests itself: URLs may contain private data
            timeout_graceful_shutdown=math.ceil(server.shutdown_grace_s),
            timeout_keep_alive=math.ceil(server.idle_s),
            server_header=False,
        ),
        connections,
    )


def serve(settings: Settings, *, fd: int | None = None) -> int:
    """Serve one front end until a signal ends it; return the exit code.

    Args:
        fd: file descriptor of a listening socket; without it, the settings define one.

    Raises: ConfigError: it cannot start with these settings.
    """
    raise_descriptor_limit()
    return_large_buffers()
    with (
        spans.exporting(settings.tracing, SERVICE),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_serve(settings, fd))


async def _serve(settings: Settings, fd: int | None) -> int:
    listener = None if fd is None else socket.socket(fileno=fd)
    address = reached_at(settings.server, listener)
    store = Store(settings.store_url)
    queue = Queue.unchecked(settings)
    try:
        is_checked = await _is_checked(queue, settings, address)
        final_settings = listening_at(settings, address)
        server = make_server(app := create_app(final_settings, queue, store), final_settings)
        _freeze_startup_objects()
        with _pushing(app.state.front):
            checking = asyncio.create_task(_check(server, queue, settings, address, is_checked))
            await server.serve(sockets=[listener] if listener else None)
            if checking.done():
                checking.result()
            await cancel(checking)
    finally:
        await queue.close()
    return 0 if server.started else 1


def return_large_buffers() -> None:
    """Make the C library return freed large buffers (files, results) to the operating system.

    By default, glibc raises this threshold to the sizes that it frees, up to 32 MiB, and each
    thread's heap keeps such buffers. After 450 batch lines with images of 1 MB, a front end had
    228 MB (at most 347 MB); it has 133 MB (at most 198 MB), and 127 MB at its start.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # glibc
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def _freeze_startup_objects() -> None:
    """Exempt objects that live as long as the process from garbage collection.

    Modules, schemas and routes are nearly all objects; scanning them again would delay requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def _pushing(front: FrontEnd) -> AbstractContextManager[None]:
    """Push the front end's metrics, if a collector is configured. Call it in the event loop."""
    loop = asyncio.get_running_loop()

    def refresh() -> Future[None]:
        return asyncio.run_coroutine_threadsafe(refresh_gauges(front), loop)

    registry = front.telemetry.registry
    return pushing(front.settings.metrics, registry, SERVICE, refresh=refresh)


async def _is_checked(queue: Queue, settings: Settings, address: str) -> bool:
    """Return whether Redis is reachable. Raises: ConfigError: Redis is unsuitable or has no key."""
    try:
        await queue.check(settings)
        await check_first_key(settings, address)
    except connection.RedisUnreachable as error:
        log.warning("requests get 503 until Redis is reachable: %s", error)
        return False
    return True


async def _check(
    server: HttpServer, queue: Queue, settings: Settings, address: str, is_checked: bool
) -> None:
    """Check Redis once it is reachable, if it was not at startup; stop the server if unsuitable.

    Raises: ConfigError: as `_is_checked`.
    """
    try:
        while not is_checked:
            await queue.check_when_reached(settings)
            is_checked = await _is_checked(queue, settings, address)
    except ConfigError:
        server.should_exit = True
        raise

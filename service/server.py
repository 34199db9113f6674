"""The front end as a process: uvicorn, told to let go of open streams when it is to stop."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop
from fastapi import FastAPI

from service.app import create_app
from service.callers import check_first_key
from service.jobs import spans
from service.jobs.outputs import Store
from service.jobs.queue import Queue
from service.listening import listening_at, reached_at
from service.settings import Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn waits for every open answer before it exits; ours end when they are asked to."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.front.stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again when all is done, and so never exits with 0."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


def make_server(app: FastAPI, settings: Settings) -> Server:
    """A server for `create_app`'s app; its `serve` returns after SIGTERM or SIGINT.

    It logs through the loggers that the process has.
    """
    server = settings.server
    return Server(
        uvicorn.Config(
            app,
            host=server.host,
            port=server.port,
            http="httptools",
            log_config=None,
            log_level=settings.log_level,
            access_log=False,  # the app has its own: addresses may hold what is nobody's business
            timeout_graceful_shutdown=math.ceil(server.shutdown_grace_s),
            timeout_keep_alive=math.ceil(server.idle_s),
            server_header=False,
        )
    )


def serve(settings: Settings, *, fd: int | None = None) -> int:
    """One front end, until a signal ends it; the exit code.

    Args:
        fd: a socket that listens already; without it, one is opened as the settings say.

    Raises: ConfigError: it cannot start with these settings.
    """
    with (
        spans.exporting(settings.tracing, "atelier-frontend"),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_serve(settings, fd))


async def _serve(settings: Settings, fd: int | None) -> int:
    listener = None if fd is None else socket.socket(fileno=fd)
    address = reached_at(settings.server, listener)
    store = Store(settings.store_url)
    queue = await Queue.open(settings)
    try:
        await check_first_key(settings, address)
        settings = listening_at(settings, address)
        server = make_server(create_app(settings, queue, store), settings)
        await server.serve(sockets=[listener] if listener else None)
    finally:
        await queue.close()
    return 0 if server.started else 1

"""A pool's page: /healthz, /readyz and /metrics for those who watch it.

It has threads of its own, so that it answers while the model is loaded and whatever the pool's
event loop does.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import REGISTRY

from service.metrics import exposition
from service.settings.section import ConfigError
from workers.health.liveness import Liveness

MAX_OPEN = 32
"""Connections: of more the oldest is closed, so that nobody keeps others out."""
PATIENCE_S = 5.0
"""Time limit for a client that says nothing."""
RETRY_AFTER_S = 2

log = logging.getLogger(__name__)


class HealthPage(ThreadingHTTPServer):
    """Serves from `serve_forever`'s thread and one for each connection.

    Args:
        port: 0: any free one.

    Raises: OSError: the port cannot be had.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, liveness: Liveness) -> None:
        super().__init__(("", port), Handler)
        self.liveness = liveness
        self.refresh: Callable[[], None] = lambda: None
        """Called before the metrics are told: what is only to be had by asking."""
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection; the oldest one is closed where too many are open."""
        with self._lock:
            self._open.append(request)
            oldest = self._open[0] if len(self._open) > MAX_OPEN else None
        if oldest is not None:
            hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and forget it."""
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke."""
        log.debug("a look at the pool's page broke off", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Handler that answers GET on one connection."""

    server: HealthPage
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Args are in the path: what follows a question mark is ignored."""
        match self.path.partition("?")[0]:
            case "/healthz":
                self._tell(self.server.liveness.illness)
            case "/readyz":
                self._tell(self.server.liveness.unready)
            case "/metrics":
                self.server.refresh()
                accept = ",".join(self.headers.get_all("Accept", ()))
                body, content_type = exposition.page(REGISTRY, accept)
                self._answer(HTTPStatus.OK, content_type, body)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there is /healthz, /readyz and /metrics")

    do_HEAD = do_GET

    def _tell(self, reason: str | None) -> None:
        if reason is None:
            self._answer(HTTPStatus.OK, "application/json", b'{"status":"ok"}')
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        said = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
        self._answer(status, "application/problem+json", json.dumps(said).encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", str(RETRY_AFTER_S))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event, and an address is the client's own text."""


def hang_up(connection: socket.socket) -> None:
    """Close a connection in both directions."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection to the pool's page was closed already")


@contextmanager
def shown(pool: str, port: int | None, liveness: Liveness) -> Iterator[HealthPage | None]:
    """The page while this lasts; None: the pool has none.

    Raises: ConfigError: the port cannot be had.
    """
    if port is None:
        yield None
        return
    try:
        page = HealthPage(port, liveness)
    except OSError as error:
        said = f"pools.{pool}.metrics_port: {port} cannot be listened on: {error.strerror}"
        raise ConfigError(said) from None
    with page:
        thread = threading.Thread(target=page.serve_forever, name="page", daemon=True)
        thread.start()
        log.info("health and metrics are told on port %d", page.server_address[1])
        try:
            yield page
        finally:
            page.shutdown()
            thread.join()

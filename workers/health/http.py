"""HTTP server of a worker: /healthz, /readyz and /metrics.

It runs on separate threads, so it answers while the model loads and while the event loop is
blocked.
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
"""Maximum number of open connections. Above it the oldest is closed, so that no client blocks
others."""
PATIENCE_S = 5.0
"""Time limit for a client that sends nothing."""
RETRY_AFTER_S = 2

log = logging.getLogger(__name__)


class HealthPage(ThreadingHTTPServer):
    """HTTP server of a worker's health and metrics, with one thread per connection.

    Args:
        port: 0: any free port.

    Raises: OSError: the port is not available.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, liveness: Liveness) -> None:
        super().__init__(("", port), Handler)
        self.liveness = liveness
        self.refresh: Callable[[], None] = lambda: None
        """Called before the metrics are rendered, to update values that are only computed on
        demand."""
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection; close the oldest if too many are open."""
        with self._lock:
            self._open.append(request)
            oldest = self._open[0] if len(self._open) > MAX_OPEN else None
        if oldest is not None:
            hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a health connection and remove it from the open ones."""
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection to the health server."""
        log.debug("a connection to the health server broke", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD requests for health and metrics, on one connection."""

    server: HealthPage
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Answer a GET request for health or metrics; the query string is ignored."""
        match self.path.partition("?")[0]:
            case "/healthz":
                self._report(self.server.liveness.failure_reason)
            case "/readyz":
                self._report(self.server.liveness.not_ready_reason)
            case "/metrics":
                self.server.refresh()
                accept = ",".join(self.headers.get_all("Accept", ()))
                body, content_type = exposition.page(REGISTRY, accept)
                self._answer(HTTPStatus.OK, content_type, body)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there is /healthz, /readyz and /metrics")

    do_HEAD = do_GET

    def _report(self, reason: str | None) -> None:
        if reason is None:
            self._answer(HTTPStatus.OK, "application/json", b'{"status":"ok"}')
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        problem = {
            "type": "about:blank",
            "title": status.phrase,
            "status": status,
            "detail": detail,
        }
        self._answer(status, "application/problem+json", json.dumps(problem).encode())

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
        """Log nothing: scrapes are frequent, and paths are text supplied by clients."""


def hang_up(connection: socket.socket) -> None:
    """Close a health connection in both directions."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection to the pool's page was closed already")


@contextmanager
def health_server(pool: str, port: int | None, liveness: Liveness) -> Iterator[HealthPage | None]:
    """Serve health and metrics while the context is open; yield None if the pool has no port.

    Raises: ConfigError: the port is not available.
    """
    if port is None:
        yield None
        return
    try:
        page = HealthPage(port, liveness)
    except OSError as error:
        message = f"pools.{pool}.metrics_port: {port} cannot be listened on: {error.strerror}"
        raise ConfigError(message) from None
    with page:
        thread = threading.Thread(target=page.serve_forever, name="page", daemon=True)
        thread.start()
        log.info("health and metrics are served on port %d", page.server_address[1])
        try:
            yield page
        finally:
            page.shutdown()
            thread.join()

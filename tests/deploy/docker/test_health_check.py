"""Health check of the containers."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from deploy.docker.health_check import WORDS, main

REASON = "no worker is ready: " + "x" * WORDS


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        healthy = self.path == "/healthz"
        self.send_response(200 if healthy else 503)
        self.end_headers()
        self.wfile.write(b"ok" if healthy else REASON.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_healthy_endpoint_exits_with_zero(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must be ignored
    assert main([f"{url}/healthz"]) == 0


def test_failed_check_prints_the_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{url}/readyz"]) == 1
    assert capsys.readouterr().out == f"503: {REASON[:WORDS]}\n"


def test_refused_connection_exits_with_an_error(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        port = server.server_port
    assert main([f"http://127.0.0.1:{port}/healthz"]) == 1
    assert "refused" in capsys.readouterr().out

"""Local object stores: moto's S3 server, which also serves obstore's GCS client.

Google's XML API has the paths, methods and errors of S3. Its client also sends a bearer token,
which this module compares with the valid one and removes. It also checks S3 key ids, which moto
would not. Signatures are not checked.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

BUCKET = "bucket"
KEY_ID, TOKEN = "AKIDEXAMPLE", "ya29.right"
DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>'
    b"<Message>The credentials are not known here.</Message></Error>"
)


class Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


Fault = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes] | None]
"""Answers a request instead of the server, or returns None to pass it on."""


class Server:
    """Object store server. Its contents survive a stop."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer | None = None
        self.port = 0
        self.received: list[str] = []
        """Methods and paths of all requests, in order."""
        self.fault: Fault | None = None

    def start(self) -> None:
        self._server = make_server(
            "127.0.0.1", self.port, self._answer, threaded=True, request_handler=Quiet
        )
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.received.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if self.fault and (answer := self.fault(environ, start)) is not None:
            return answer
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        signed = "X-Amz-Credential=" in environ.get("QUERY_STRING", "")
        if authorization and not (KEY_ID in authorization or authorization == f"Bearer {TOKEN}"):
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [DENIED]
        if authorization.startswith("Bearer") or not (authorization or signed):
            environ["HTTP_AUTHORIZATION"] = f"AWS {KEY_ID}:signature"
        return self._app(environ, start)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def use_s3(monkeypatch: pytest.MonkeyPatch, server: Server, key_id: str = KEY_ID) -> None:
    """Set environment variables so that S3 clients use this server."""
    variables = {
        "ACCESS_KEY_ID": key_id,
        "SECRET_ACCESS_KEY": "secret",
        "REGION": "us-east-1",
        "ENDPOINT": server.url,
        "ALLOW_HTTP": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def use_gcs(monkeypatch: pytest.MonkeyPatch, server: Server, token: str = TOKEN) -> None:
    """Set environment variables so that GCS clients use this server."""
    monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", token)
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")


def account(folder: Path, server: Server) -> Path:
    """Write the file of a service account that can sign URLs."""
    key = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    content = {
        "gcs_base_url": server.url,
        "disable_oauth": False,
        "client_email": "atelier@example.com",
        "private_key": key,
        "private_key_id": "1",
    }
    file = folder / "account.json"
    file.write_text(json.dumps(content))
    return file

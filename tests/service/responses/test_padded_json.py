"""White space before JSON: errors that no route raises, and what was rejected in its favour."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from service.responses.padded_json import Head, padded_json

HEAD = Head({"X-Job-Id": "job_1"})
SOON_S = 0.001
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

Work = Callable[[], Coroutine[Any, Any, Response]]


async def answered(app: FastAPI, work: Work, every_s: float) -> httpx.Response:
    """Response of a new route of the app that waits for `work`."""

    @app.get("/waits")
    async def waits(request: Request) -> Response:
        return await padded_json(request, work(), HEAD, every_s)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get("/waits")


async def test_exception_after_padding_is_logged_and_returned(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> Response:
        await asyncio.sleep(20 * SOON_S)
        raise ZeroDivisionError

    answer = await answered(app, fail, SOON_S)
    assert answer.status_code == 200 and answer.headers["X-Job-Id"] == "job_1"
    assert answer.content.startswith(b" ") and answer.json()["status"] == 500
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info and record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("every_s", [0, 300])
async def test_a_result_in_time_is_unchanged(app: FastAPI, every_s: float) -> None:
    async def work() -> Response:
        await asyncio.sleep(0)
        return Response(b"[]", 202)

    answer = await answered(app, work, every_s)
    assert answer.status_code == 202 and answer.content == b"[]"
    assert "X-Job-Id" not in answer.headers


def test_python_s_client_takes_an_interim_response_for_the_final_one() -> None:
    """Why white space is sent instead of 102: `requests` uses this client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(INTERIM)

        thread = threading.Thread(target=serve)
        thread.start()
        client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1])
        client.request("GET", "/")
        assert client.getresponse().status == http.HTTPStatus.PROCESSING
        client.close()
        thread.join()

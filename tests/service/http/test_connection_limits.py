"""Connection limits of a real server, tested by raw bytes: malformed, too large, too slow, too many
requests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.service.attacked import ERRORS, Attacked, attacked, is_closed, received, status_of

MIB = 2**20
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"wrong": 1}'


@pytest.fixture(scope="module")
def server(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    settings = limits(300) | {"ATELIER_SERVER__HOSTS": '["atelier.example"]'}
    with attacked(redis_url, tmp_path_factory.mktemp("server"), **settings) as server:
        yield server


def limits(seconds: int) -> dict[str, str]:
    """Settings of the time that clients get for each phase of a request."""
    return {f"ATELIER_SERVER__{name}_S": str(seconds) for name in ("HEADER", "BODY", "IDLE")}


def chunked(head: bytes, *chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    lines = (b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(lines) + end


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    "a line without end": (b"GET /" + b"a" * 100_000, 414),
    "many headers": (GET + b"A: b\r\n" * 101 + b"\r\n", 431),
    "a long header": (GET + b"A: " + b"b" * 40_000 + b"\r\n\r\n", 431),
    "a header without end": (GET + b"A: " + b"b" * 400_000, 431),
    "a name without end": (GET + b"a" * 400_000, 431),
    "only line ends": (b"\r\n" * 50_000, 431),
    "a folded header": (GET + b"A: b\r\n c\r\n\r\n", 400),
    "a NUL in a header": (GET + b"A: b\0c\r\n\r\n", 400),
    "a blank before the colon": (GET + b"Content-Length : 3\r\n\r\nabc", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: localhost\r\n\r\n", 400),
    "an empty host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    "a host with a path": (b"GET / HTTP/1.1\r\nHost: localhost/x\r\n\r\n", 400),
    "a foreign host": (b"GET /v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    "a foreign host's page": (b"GET / HTTP/1.1\r\nHost: localhost.evil.example:8000\r\n\r\n", 421),
    "another host in the target": (
        b"GET http://evil.example/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        400,
    ),
    "a tunnel": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 400),
    "chunks of an old client": (chunked(POST.replace(b"/1.1", b"/1.0"), BODY), 400),
    "a length and chunks": (chunked(POST + b"Content-Length: 5\r\n", BODY), 400),
    "two lengths": (sized(POST + b"Content-Length: 5\r\n", BODY), 400),
    "a signed length": (POST + b"Content-Length: +12\r\n\r\n" + BODY, 400),
    "chunks that are not the last coding": (
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + BODY,
        400,
    ),
    "a strange coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY, 400),
    "chunks in capitals twice": (
        chunked(POST + b"Transfer-Encoding: CHUNKED\r\n", BODY),
        400,
    ),
    "a chunk of a strange size": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n0\r\n\r\n",
        400,
    ),
    "a long extension": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * 2 * MIB,
        400,
    ),
    "tiny chunks": (chunked(POST, *[b" "] * 400_000), 400),
    "many trailers": (chunked(POST, BODY, end=b"0\r\n" + b"A: b\r\n" * 200 + b"\r\n"), 431),
    "an unknown parameter": (b"GET /healthz?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 422),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_bytes_that_are_refused(server: Attacked, data: bytes, status: int) -> None:
    answer = server.send(data)
    assert status_of(answer) == status, answer[:300]
    assert b"application/problem+json" in answer and b"default-src 'none'" in answer


TAKEN = {
    "an address": GET.replace(b"localhost", b"192.0.2.7:8000") + b"\r\n",
    "an address of IPv6": GET.replace(b"localhost", b"[2001:db8::1]:8000") + b"\r\n",
    "a probe by any name": GET.replace(b"localhost", b"pod-3.example") + b"\r\n",
    "an empty port": GET.replace(b"localhost", b"localhost:") + b"\r\n",
    "an old probe": b"GET /readyz HTTP/1.0\r\n\r\n",
    "a listed name": b"GET / HTTP/1.1\r\nHost: Atelier.example:8000\r\n\r\n",
    "this machine": b"GET / HTTP/1.1\r\nHost: app.localhost:8000\r\n\r\n",
    "a whole target": b"GET http://localhost:80/ HTTP/1.1\r\nHost: localhost:80\r\n\r\n",
    "another protocol": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a repeated header": GET + b"A: b\r\n" * 90 + b"\r\n",
}


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN.keys())
def test_harmless_bytes_are_accepted(server: Attacked, data: bytes) -> None:
    assert status_of(server.send(data)) in (200, 503)


def test_trailer_is_not_a_header(server: Attacked) -> None:
    head = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\n"
    end = b"0\r\nContent-Type: application/json\r\n\r\n"
    with server.connect() as client:
        client.sendall(chunked(head, BODY, end=end))
        assert status_of(received(client)) == 415


@pytest.mark.parametrize("begins", [1, 60, 400])
def test_body_is_counted_despite_an_upgrade_header(server: Attacked, begins: int) -> None:
    """`curl --http2` and Java's client send this upgrade header."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    body = b'{"wrong": 1, "image": "%s"}' % (b"A" * 100_000)
    for framed in (sized(POST + upgrade, body), chunked(POST + upgrade, body[:9], body[9:])):
        with server.connect() as client:
            client.sendall(framed[:begins])
            client.sendall(framed[begins:])
            answer = received(client)
            assert status_of(answer) == 422 and b'"field": "wrong"' in answer
            assert b"connection: close" in answer and is_closed(client)


def test_data_after_an_upgrade_is_not_served(server: Attacked) -> None:
    answer = server.send(TAKEN["another protocol"] + GET + b"\r\n", until_closed=True)
    assert answer.count(b"HTTP/1.1") == 1 and b"connection: close" in answer.lower()


def test_pipelined_requests_are_answered_up_to_a_bound(server: Attacked) -> None:
    with server.connect() as client:
        client.sendall((GET + b"\r\n") * 4 + GET + b"Connection: close\r\n\r\n")
        assert received(client, until_closed=True).count(b"HTTP/1.1 200") == 5
    assert server.send((GET + b"\r\n") * 5000, until_closed=True).count(b"HTTP/1.1 200") < 1000
    assert server.send(GET + b"Connection: close\r\n\r\n", until_closed=True)
    assert "Exception in ASGI application" not in (server.folder / ERRORS).read_text()


def endless(server: Attacked, head: bytes, data: bytes, times: int) -> None:
    """Send data repeatedly, at most `times` times, until the server closes the connection."""
    with server.connect() as client, suppress(ConnectionError):
        client.sendall(head)
        for _ in range(times):
            client.sendall(data)


ENDLESS = {
    "headers": (GET + b"A: ", b"b" * MIB),
    "small headers": (GET, b"A: b\r\n" * 170_000),
    "a target": (b"GET /", b"a" * MIB),
    "requests": (b"", (GET + b"\r\n") * 20_000),
    "trailers": (chunked(POST, BODY, end=b"0\r\n"), b"A: b\r\n" * 170_000),
    "a chunk's extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n5;", b"a" * MIB),
}


@pytest.mark.parametrize(("head", "data"), ENDLESS.values(), ids=ENDLESS.keys())
def test_endless_requests_do_not_block_others(server: Attacked, head: bytes, data: bytes) -> None:
    server.stays_well(lambda: endless(server, head, data, 100), grows=32 * MIB)


SLOW = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half of the headers": GET + b"A: b",
    "half a body": sized(POST, BODY)[:-1],
    "half a chunk": chunked(POST, BODY)[:-8],
    "a body after its answer": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 1000000\r\n\r\n",
    "nothing after an answer": GET + b"\r\n",
}


def test_silent_connections_end(redis_url: str, tmp_path: Path) -> None:
    """Silent connections are closed. All of them are tested at the same time, since each takes a
    second or more."""
    with attacked(redis_url, tmp_path, **limits(1)) as server, ExitStack() as stack:
        clients = {name: stack.enter_context(server.connect()) for name in SLOW}
        for name, client in clients.items():
            client.sendall(SLOW[name])
        assert [name for name, client in clients.items() if not is_closed(client)] == []
        assert server.logs("connections were closed")


def test_connection_is_reused_after_a_response(server: Attacked) -> None:
    with server.connect() as client:
        for _ in range(3):
            client.sendall(GET + b"\r\n")
            assert status_of(received(client)) == 200


def test_silent_connections_do_not_lock_others_out(redis_url: str, tmp_path: Path) -> None:
    with attacked(redis_url, tmp_path, descriptors=256) as server, ExitStack() as stack:

        def occupy() -> None:
            for number in range(300):
                client = stack.enter_context(socket.socket())
                client.connect(("127.0.0.1", server.port))
                client.sendall((b"", b"GET", sized(POST, BODY)[:-1])[number % 3])

        server.stays_well(occupy, grows=32 * MIB)
        assert server.logs("evicted")

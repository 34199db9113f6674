"""Minimum rate of a request's body, by a clock that the test sets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI

from service.http.connection_limits import BoundedProtocol
from service.server import make_server
from service.settings.server import ServerSettings
from service.settings.settings import Settings

BODY_S, RATE, STEP_S = 1.0, 20_000, 0.25
BODY_BYTES = 100_000
HEAD = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Clock:
    """The running event loop with a settable time."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)


async def sent_at(app: FastAPI, rate: float) -> tuple[int, list[bytes]]:
    """Send a body at a constant rate; return the number of bytes sent and the response."""
    limits = ServerSettings(body_s=BODY_S, min_bytes_per_s=RATE)
    config = make_server(app, Settings(server=limits)).config
    config.load()
    clock, server = Clock(), Mock(connections=set(), tasks=set())
    connection: BoundedProtocol = config.http_protocol_class(  # type: ignore[call-arg]
        config, server, {}, clock
    )
    transport = Mock(**{"is_closing.return_value": False, "get_extra_info.return_value": None})
    connection.connection_made(transport)
    connection.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % BODY_BYTES)
    sent, part = 0, b" " * int(rate * STEP_S)
    while sent < BODY_BYTES - len(part) and not transport.write.called:
        clock.now += STEP_S
        connection.check(clock.now, STEP_S)
        connection.data_received(part)
        sent += len(part)
    connection.connection_lost(None)
    await asyncio.gather(*server.tasks)
    return sent, [call.args[0] for call in transport.write.call_args_list]


async def test_slow_body_above_the_minimum_rate_is_accepted(app: FastAPI) -> None:
    sent, answers = await sent_at(app, RATE)
    assert sent > 4 * BODY_S * RATE and answers == []


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 1), (0.8, 3, 6)])
async def test_a_body_below_its_rate_is_refused(
    app: FastAPI, share: float, least: float, most: float
) -> None:
    """The limit is `body_s` plus the time of the received bytes at the minimum rate."""
    sent, answers = await sent_at(app, share * RATE)
    assert len(answers) == 1 and answers[0].startswith(b"HTTP/1.1 408")
    assert least * BODY_S * RATE <= sent <= most * BODY_S * RATE

"""The front end as a process of its own: it starts, drains and exits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.jobs.queue import Queue
from tests.service.eventually import eventually
from tests.service.sse import messages
from tests.service.standin import MODEL, SPEC, StandIn

CAT = {"prompt": "a cat", "model": MODEL}
GRACE_S = 30.0
"""Far more than a clean exit takes."""


@asynccontextmanager
async def process(
    redis_url: str, state: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`atelier serve` on a socket that listens already, and its address."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    environment |= {
        "ATELIER_REDIS__URL": redis_url,
        "ATELIER_STATE_DIR": str(state),
        "ATELIER_SERVER__SHUTDOWN_GRACE_S": str(GRACE_S),
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.fileno()
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "atelier", "serve", "--fd", str(fd)),
            env=environment,
            pass_fds=[fd],
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield server, address
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def test_sigterm_ends_streams_and_waits_and_exits(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    async def all_are_there() -> bool:
        return len(await queue.list(limit=10)) == 3

    await queue.register("cold", SPEC, ready=False)
    async with (
        process(redis_url, tmp_path) as (server, address),
        httpx.AsyncClient(base_url=address, timeout=GRACE_S, trust_env=False) as http,
    ):
        job_id = (await http.post("/v1/generate", json=CAT)).json()["id"]
        async with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            events = messages(stream)
            assert (await anext(events)).name == "queued"
            waits = [
                asyncio.create_task(http.post("/v1/generate", json=CAT, headers=headers))
                for headers in ({"Prefer": "wait"}, {"Accept": "image/png"})
            ]
            await eventually(all_are_there)
            server.send_signal(signal.SIGTERM)
            async with asyncio.timeout(GRACE_S / 2):
                assert [event.name async for event in events] == []
                waited, picture = await asyncio.gather(*waits)
                assert await server.wait() == 0
    assert waited.status_code == 202 and waited.json()["state"] == "queued"
    assert picture.status_code == 504
    assert await all_are_there()


async def test_it_serves_a_picture(redis_url: str, pool: StandIn, tmp_path: Path) -> None:
    async with (
        process(redis_url, tmp_path) as (_, address),
        httpx.AsyncClient(base_url=address, timeout=GRACE_S, trust_env=False) as http,
    ):
        answer = await http.post("/v1/generate", json=CAT, headers={"Accept": "image/png"})
    assert answer.status_code == 200 and answer.content.startswith(b"\x89PNG")
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "redis.url"),
        ({"ATELIER_REDIS__URL": "unix:///nowhere/redis.sock"}, "redis.url"),
        ({"ATELIER_REDIS__URL": "http://x"}, "redis.url"),
        ({"ATELIER_SERVR": "1"}, "servr: unknown key"),
    ],
)
async def test_what_it_cannot_start_with_is_named(
    variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atelier", "serve", "--state", str(tmp_path)),
        env=environment | variables,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await server.communicate()
    assert server.returncode not in (0, None)
    assert said in errors.decode() and "Traceback" not in errors.decode()

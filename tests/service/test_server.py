"""The front end as a separate process: start, drain and exit."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from service.auth.api_keys import ApiKeys
from service.client import Client
from service.jobs.queue import Queue
from service.server import make_server
from service.settings.queue import QueueSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.deploy import load_balancers
from tests.service.eventually import eventually
from tests.service.sse import messages
from tests.service.standin import MODEL, SPEC, StandIn

CAT = {"prompt": "a cat", "model": MODEL}
GRACE_S = 30.0
"""Far longer than a clean exit takes."""
PATIENCE_S = 300.0
"""Timeout of requests, since a new server shares busy cores."""


@asynccontextmanager
async def process(
    redis_url: str, state: Path, host: str = "127.0.0.1", **variables: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `atelier serve` on an open socket; yield the process and its URL."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    environment |= {
        "ATELIER_REDIS__URL": redis_url,
        "ATELIER_STATE_DIR": str(state),
        "ATELIER_SERVER__SHUTDOWN_GRACE_S": str(GRACE_S),
    } | variables
    with socket.create_server((host, 0)) as listener:
        fd = listener.fileno()
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "atelier", "serve", "--fd", str(fd)),
            env=environment,
            pass_fds=[fd],
            stderr=asyncio.subprocess.PIPE,
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
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http,
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


LARGE_BUFFER = """
import ctypes
from service.server import return_large_buffers

class Memory(ctypes.Structure):
    _fields_ = [(str(number), ctypes.c_size_t) for number in range(10)]  # struct mallinfo2

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Memory
return_large_buffers()
buffer = bytes(3 * 2**23)
del buffer
before = getattr(libc.mallinfo2(), "4")  # hblkhd: bytes in mappings of their own
buffer = bytes(2**24)  # more than the heap has free after imports
assert getattr(libc.mallinfo2(), "4") >= before + 2**24
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps large buffers")
def test_large_buffers_are_mapped_after_larger_ones_were_freed() -> None:
    subprocess.run([sys.executable, "-c", LARGE_BUFFER], check=True)


async def test_server_waits_for_an_unavailable_redis(tmp_path: Path) -> None:
    async def says(status: int, words: str) -> bool:
        answer = await http.get("/readyz")
        return answer.status_code == status and words in answer.text

    url = f"unix://{tmp_path}/redis/redis.sock"
    async with (
        process(url, tmp_path) as (server, address),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        assert await says(503, "Redis cannot be reached")
        with embedded(tmp_path):
            queue = await Queue.connect(url, QueueSettings())
            await queue.register("warm", SPEC, ready=True)
            await eventually(lambda: says(200, "ok"))
            await queue.close()
        server.terminate()
        assert await server.wait() == 0


async def test_server_exits_if_redis_is_unsuitable(tmp_path: Path) -> None:
    async with process(f"unix://{tmp_path}/redis/redis.sock", tmp_path, "0.0.0.0") as (server, url):
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
            assert (await http.get(f"{url}/healthz")).status_code == 200
        with embedded(tmp_path):
            _, errors = await server.communicate()
    assert server.returncode == 78
    waiting = "requests get 503 until Redis is reachable: redis.url: no Redis answers"
    assert waiting in errors.decode()
    assert "server.keys" in errors.decode() and "atelier keys create" in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_public_address_requires_an_existing_key(
    redis_url: str, pool: StandIn, tmp_path: Path
) -> None:
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    _, key = await keys.create("acme")
    await keys.close()
    async with (
        process(redis_url, tmp_path, "0.0.0.0") as (_, address),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http,
    ):
        assert (await http.get("/v1/models")).status_code == 401
        answer = await http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        with Client(address, key) as client:
            assert (await asyncio.to_thread(client.submit, CAT))["state"] == "queued"


async def test_public_address_without_keys_if_configured(
    redis_url: str, pool: StandIn, tmp_path: Path
) -> None:
    variables = {"ATELIER_SERVER__KEYS": "false"}
    async with (
        process(redis_url, tmp_path, "0.0.0.0", **variables) as (_, address),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http,
    ):
        assert (await http.get("/v1/models")).status_code == 200
        answer = await http.post("/v1/generate", json=CAT, headers={"Accept": "image/png"})
    assert answer.status_code == 200 and answer.content.startswith(b"\x89PNG")
    assert "server" not in answer.headers


async def test_startup_error_is_named(tmp_path: Path) -> None:
    await assert_exits({}, "redis.url", tmp_path)


async def assert_exits(variables: dict[str, str], said: str, tmp_path: Path) -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atelier", "serve", "--state", str(tmp_path)),
        env=environment | variables,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await server.communicate()
    assert server.returncode not in (0, None)
    assert said in errors.decode() and "Traceback" not in errors.decode()


async def test_unreadable_keys_are_reported(
    redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    await empty_redis.acl_setuser(
        "blind", enabled=True, passwords=["+secret"], keys=["other:*"], commands=["+@all"]
    )
    variables = {
        "ATELIER_REDIS__URL": redis_url,
        "ATELIER_REDIS__USERNAME": "blind",
        "ATELIER_REDIS__PASSWORD": "secret",
        "ATELIER_SERVER__HOST": "0.0.0.0",
    }
    try:
        await assert_exits(variables, "the rights in its ACL", tmp_path)
    finally:
        await empty_redis.acl_deluser("blind")


def test_idle_timeout_exceeds_load_balancers(app: FastAPI) -> None:
    assert make_server(app, Settings()).config.timeout_keep_alive > load_balancers.IDLE_S
    settings = Settings(server=ServerSettings(idle_s=600.5))
    assert make_server(app, settings).config.timeout_keep_alive == 601

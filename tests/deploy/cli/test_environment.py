"""Command lines that are not UTF-8, and proxies of the environment."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import atelier
from deploy.exit_codes import EXIT_UNREACHABLE, EXIT_USAGE
from service.app import create_app
from service.client import Client, ServiceUnreachable, without_proxy
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.deploy.cli.conftest import Run
from tests.service.conftest import served
from tests.service.standin import MODEL, StandIn, picture

ROOT = Path(__file__).parents[3]
LATIN_1 = os.fsdecode(b"caf\xe9")
"""Argument of a terminal that is not UTF-8, as Python decodes it."""


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store_url)


@contextmanager
def closed_port() -> Iterator[str]:
    """Address of a port that accepts no connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", LATIN_1],
        ["generate", "a cat", "--metadata", f"name={LATIN_1}"],
        ["jobs", "list", "--model", LATIN_1],
    ],
)
async def test_a_text_that_is_not_utf_8_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    code, out, err = await run(*arguments)
    assert (code, out) == (EXIT_USAGE, "")
    assert "an argument is not UTF-8 after" in err and "caf" in err


async def test_a_path_that_is_not_utf_8_works(
    settings: Settings, queue: Queue, store: Store, tmp_path: Path
) -> None:
    image, output = tmp_path / f"{LATIN_1}.png", tmp_path / f"out {LATIN_1}.png"
    image.write_bytes(picture(size=(64, 64)))
    async with (
        served(create_app(settings, queue, store), settings) as address,
        StandIn(queue, store),
    ):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "atelier", "generate", "a cat", "--model", MODEL),
            *("--image", image, "-o", output, "--server", address),
            stdout=PIPE,
            env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
            cwd=ROOT,
        )
        printed, _ = await process.communicate()
    assert (process.returncode, printed) == (0, os.fsencode(output) + b"\n")
    assert output.read_bytes() == picture()


async def test_loopback_is_reached_without_the_environment_s_proxy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        code, _, err = await run("jobs", "list")
    assert code == 0, err


def test_other_servers_are_reached_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with Client("http://atelier.example") as client, pytest.raises(ServiceUnreachable):
            client.models()
        assert atelier.main(["jobs", "list", "--server", "http://atelier.example"]) == (
            EXIT_UNREACHABLE
        )


@pytest.mark.parametrize(
    ("server", "patterns"),
    [
        ("http://127.0.0.1:8000", ["all://127.0.0.1"]),
        ("http://127.1.2.3", ["all://127.1.2.3"]),
        ("http://localhost:8000", ["all://localhost"]),
        ("https://a.localhost", ["all://a.localhost"]),
        ("http://[::1]:8000", ["all://[::1]"]),
        ("http://10.0.0.1", []),
        ("http://localhost.example", []),
    ],
)
def test_loopback_addresses(server: str, patterns: list[str]) -> None:
    mounts = without_proxy(server)
    assert [*mounts] == patterns
    httpx.Client(mounts=mounts).close()

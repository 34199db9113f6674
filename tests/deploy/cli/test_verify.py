"""`atelier verify` against a real front end and a stand-in pool that makes images."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import atelier
from deploy.exit_codes import EXIT_UNREACHABLE, EXIT_USAGE
from service.app import create_app
from service.client import Client
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.recipes import xmp
from service.recipes.files import read_recipe
from service.settings.settings import Settings
from tests.deploy.cli.conftest import Run
from tests.service.conftest import served
from tests.service.painter import Painter
from tests.service.recipes.examples import FILES, bare
from tests.service.standin import picture


@pytest.fixture
async def pool(settings: Settings, queue: Queue) -> AsyncIterator[Painter]:
    async with Painter(queue, Store(settings.store_url)) as pool:
        yield pool


async def made(run: Run, file: Path, *more: object) -> Path:
    code, _, err = await run("generate", "a cat", "-o", file, *more)
    assert code == 0, err
    return file


async def test_verdicts_and_exit_codes(run: Run, pool: Painter, tmp_path: Path) -> None:
    first = await made(run, tmp_path / "a.png", "--seed", 1)
    code, out, err = await run("verify", first)
    assert (code, out) == (0, f"{first}: identical, bit for bit: the whole file\n")
    other = tmp_path / "b.png"
    other.write_bytes(picture() + xmp.packet(read_recipe(first.read_bytes())))
    bare_file = tmp_path / "c.png"
    bare_file.write_bytes(picture())
    code, out, err = await run("verify", bare_file, first)
    assert code == 2 and "it cannot be verified" in out
    assert err.startswith("atelier: 1 identical, 0 different, 1 unknown, in ")
    code, out, err = await run("verify", "--json", "--at-once", 3, other, bare_file, first)
    assert code == 1
    results = [json.loads(line) for line in out.splitlines()]
    assert [result["target"] for result in results] == [str(other), str(bare_file), str(first)]
    assert [result["verdict"] for result in results] == ["different", "unknown", "identical"]


async def test_outputs_of_jobs(run: Run, pool: Painter, tmp_path: Path) -> None:
    await made(run, tmp_path / "a.png", "--num-images", 2)
    job = pool.received[-1]
    code, out, _ = await run("verify", job.id, f"{job.id}/1")
    assert code == 0
    assert out.splitlines()[1] == (
        f"{job.id}/1: identical, bit for bit: the whole file; generated again by the same worker"
    )
    assert pool.received[-1].request["seed"] == job.request["seed"] + 1
    code, out, _ = await run("verify", f"{job.id}/2")
    assert code == 2 and "has 2 outputs; number 2 does not exist" in out


async def test_pending_verification_is_polled(
    run: Run, pool: Painter, tmp_path: Path, settings: Settings, queue: Queue
) -> None:
    file = await made(run, tmp_path / "a.png")
    async with served(create_app(settings, queue, pool.store), settings) as address:
        with Client(address) as client:
            verify = partial(client.verify, file.read_bytes(), "image/png", wait_s=0)
            assert (await asyncio.to_thread(verify))["verdict"] == "identical"
    assert len(pool.received) == 2, "asked again, it is the same job"


@pytest.mark.parametrize("content_type", [*FILES])
def test_every_kind_of_file_is_known(
    tmp_path: Path, content_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a"
    file.write_bytes(bare(content_type))
    command: list[Any] = ["verify", str(file), "--server", "http://127.0.0.1:9"]
    assert atelier.main(command) == EXIT_UNREACHABLE


def test_wrong_file_type_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"text")
    for target, text in ((file, "is not a PNG"), (tmp_path / "b.png", "can't read")):
        assert atelier.main(["verify", str(target)]) == EXIT_USAGE
        assert text in capsys.readouterr().err

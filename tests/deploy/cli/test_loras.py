"""`atelier loras` and `generate --lora` against a real front end with a stand-in pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atelier import EXIT_FAILED, EXIT_USAGE
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.deploy.cli.conftest import Run
from tests.service.adapters import TAKING, adapter
from tests.service.standin import MODEL, StandIn, picture


@pytest.fixture
async def pool(settings: Settings, queue: Queue) -> AsyncIterator[StandIn]:
    async with StandIn(queue, Store(settings.store_url), TAKING) as pool:
        yield pool


async def test_adapter_is_added_used_and_deleted(
    run: Run,
    pool: StandIn,
    tmp_path: Path,
) -> None:
    file, preview = tmp_path / "a.safetensors", tmp_path / "a.png"
    file.write_bytes(adapter())
    preview.write_bytes(picture())
    more = ("--trigger", "my style", "--model", MODEL, "--preview", preview)
    code, _, err = await run("loras", "add", "mine", file, *more)
    assert (code, err) == (0, "uploaded mine: rank 4, for flux-demo\n")
    code, out, _ = await run("loras", "list")
    lines = out.splitlines()
    assert code == 0
    assert [line.split() for line in lines if line.startswith("mine")] == [
        ["mine", MODEL, "rank", "4", "my", "style"]
    ]
    assert any(line.endswith("cannot be used: NaN in blocks.0.q") for line in lines)
    _, out, _ = await run("loras", "list", "--json")
    mine = next(entry for entry in map(json.loads, out.splitlines()) if entry["name"] == "mine")
    assert mine["preview"] == "/v1/loras/mine/preview"
    image = tmp_path / "out.png"
    command = ("generate", "a star", "--lora", "mine:0.5", "--lora", "ink", "-o", image)
    code, _, err = await run(*command)
    assert code == 0, err
    assert [(entry.name, entry.scales[0].scale) for entry in pool.received[0].loras] == [
        ("mine", 0.5),
        ("ink", 1.0),
    ]
    assert await run("loras", "remove", "mine") == (0, "", "deleted mine\n")
    code, _, err = await run(*command)
    assert code == EXIT_FAILED and "loras.0.name: the model 'flux-demo' has no adapter" in err


async def test_unreadable_or_missing_adapter_is_reported(
    run: Run,
    pool: StandIn,
    tmp_path: Path,
) -> None:
    code, _, err = await run("loras", "add", "mine", tmp_path / "none.safetensors")
    assert code == EXIT_USAGE and "can't read" in err and "No such file" in err
    code, _, err = await run("loras", "remove", "ink")
    assert code == EXIT_FAILED and "belongs to the operator" in err

"""Unmodified npm package `openai` against the real front end."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import output
from tests.service.standin import MODEL, StandIn, picture

FOLDER = Path(__file__).with_name("node")
NODE = shutil.which("node")
Call = Callable[[str], Awaitable[Any]]
pytestmark = pytest.mark.skipif(
    not NODE or not (FOLDER / "node_modules" / "openai").exists(),
    reason="node or its package openai is not here; make clients brings the package",
)


@pytest.fixture
def call(address: str, key: str, tmp_path: Path) -> Call:
    """Function that makes one of the client's calls and returns the result."""
    file = tmp_path / "picture.png"
    file.write_bytes(picture(size=(64, 64)))

    async def make(name: str) -> Any:
        variables = {"ATELIER_URL": f"{address}/v1", "ATELIER_KEY": key, "PICTURE": str(file)}
        return await output(str(NODE), FOLDER / "calls.mjs", name, **variables)

    return make


async def test_generate(call: Call, pool: StandIn) -> None:
    assert len(await call("generate")) == 2
    (job,) = pool.received
    assert job.tenant == "acme"
    expected = {"prompt": "a red circle", "num_images": 2, "width": 64, "height": 64, "seed": 7}
    assert expected.items() <= job.request.items()


async def test_a_stream_has_partial_images_and_the_image(call: Call, pool: StandIn) -> None:
    *partial, last = await call("stream")
    assert last[0] == "image_generation.completed" and last[1] > 0
    assert partial and {kind for kind, _ in partial} == {"image_generation.partial_image"}


async def test_a_link_needs_no_key(call: Call, pool: StandIn) -> None:
    assert await call("url") == {"status": 200, "type": "image/png"}


async def test_edit(call: Call, pool: StandIn) -> None:
    assert len(await call("edit")) == 1
    assert pool.received[0].request["image"]


async def test_models_are_listed(call: Call, pool: StandIn) -> None:
    assert await call("models") == [[MODEL, "model"]]


async def test_a_refusal_is_the_packages_own_error(call: Call, pool: StandIn) -> None:
    error = await call("refused")
    assert error == {"is": True, "type": "invalid_request_error", "param": "size"}


async def test_a_wrong_key_is_the_packages_own_error(call: Call, pool: StandIn) -> None:
    assert await call("keyless") == {"is": True}


async def test_videos(call: Call, video_pool: StandIn) -> None:
    result = await call("video")
    assert result.pop("bytes") > 0
    assert result == {"status": "completed", "type": "video/mp4", "remixed": True, "listed": 2}

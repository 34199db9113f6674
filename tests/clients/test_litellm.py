"""Unmodified LiteLLM in its own environment against the real front end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import ROOT, output
from tests.service.standin import StandIn, picture

PYTHON = ROOT / ".venv-litellm" / "bin" / "python"
CALLS = Path(__file__).with_name("litellm_calls.py")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make clients brings LiteLLM")
Call = Callable[[str], Awaitable[Any]]


@pytest.fixture
def call(address: str, key: str, tmp_path: Path) -> Call:
    """Function that makes one of LiteLLM's calls and returns the result."""
    file = tmp_path / "picture.png"
    file.write_bytes(picture(size=(64, 64)))

    async def make(name: str) -> Any:
        options = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise it downloads prices
        variables = {"ATELIER_URL": f"{address}/v1", "ATELIER_KEY": key, "PICTURE": str(file)}
        return await output(PYTHON, CALLS, name, **options, **variables)

    return make


async def test_image_generation(call: Call, pool: StandIn) -> None:
    assert len(await call("image_generation")) == 2
    (job,) = pool.received
    assert job.tenant == "acme"
    expected = {"prompt": "a red circle", "num_images": 2, "width": 64, "height": 64, "seed": 7}
    assert expected.items() <= job.request.items()


async def test_image_edit(call: Call, pool: StandIn) -> None:
    assert len(await call("image_edit")) == 1
    (job,) = pool.received
    assert job.request["prompt"] == "a blue circle" and job.request["image"]


async def test_the_gateways_recipe(call: Call, pool: StandIn) -> None:
    assert len(await call("gateway")) == 1
    assert [job.model for job in pool.received] == ["flux-demo"]


async def test_unsupported_size_is_a_bad_request(call: Call, pool: StandIn) -> None:
    assert "multiple of 16" in await call("refused")
    assert not pool.received


async def test_a_wrong_key_is_an_authentication_error(call: Call, pool: StandIn) -> None:
    assert "key" in await call("keyless")
    assert not pool.received


async def test_videos(call: Call, video_pool: StandIn) -> None:
    result = await call("video")
    assert result["status"] == "completed"
    assert result["remix"] in ("queued", "in_progress", "completed")
    assert result["listed"] == 2
    first, second = video_pool.received
    assert (first.request["prompt"], second.request["prompt"]) == ("a red circle", "a blue circle")
    assert first.request["seed"] == second.request["seed"]

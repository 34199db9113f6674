"""MCP server, tested by the MCP SDK's client over real sockets."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from PIL import Image

from service.auth.api_keys import ApiKeys
from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.eventually import eventually
from tests.service.routes.compat.keyed import Keyed
from tests.service.standin import MODEL, SIZE_PX, SPEC, VIDEO, StandIn, picture

PNG = base64.b64encode(picture()).decode()
CALL_REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "list_models", "arguments": {}},
}


@asynccontextmanager
async def agent(
    wire: httpx.AsyncClient, mode: str = "auto", key: str | None = None
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(f"{wire.base_url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def texts(result: Any) -> list[str]:
    return [content.text for content in result.content if isinstance(content, types.TextContent)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_with_their_arguments(wire: httpx.AsyncClient, mode: str) -> None:
    async with agent(wire, mode) as client:
        listed = (await client.list_tools()).tools
    names = [tool.name for tool in listed]
    assert names == ["generate_image", "edit_image", "generate_video", "list_models"]
    schema = listed[1].input_schema
    assert {*schema["required"]} == {"prompt", "image"}
    assert all(field.get("description") for field in schema["properties"].values())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_image_is_made_with_progress_and_a_link(
    wire: httpx.AsyncClient, pool: StandIn, mode: str
) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def report(
        progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        reports.append((progress, total, message))

    arguments = {"prompt": "a cat", "seed": 7, "num_images": 2, "num_inference_steps": 4}
    async with agent(wire, mode) as client:
        result = await client.call_tool("generate_image", arguments, progress_callback=report)
    (job,) = pool.received
    assert not result.is_error, texts(result)
    assert (job.request["seed"], job.request["prompt"], job.images) == (7, "a cat", 2)
    images = [item for item in result.content if isinstance(item, types.ImageContent)]
    for item in images:
        file = Image.open(io.BytesIO(base64.b64decode(item.data)))
        assert (item.mime_type, file.size) == ("image/png", (SIZE_PX, SIZE_PX))
    links = [item for item in result.content if isinstance(item, types.ResourceLink)]
    assert len(images) == len(links) == 2
    fetched = await wire.get(str(links[0].uri))
    assert fetched.content == base64.b64decode(images[0].data)
    about = json.loads(texts(result)[0])
    assert about == result.structured_content and about["job"] == job.id
    assert [item["seed"] for item in about["outputs"]] == [7, 8]
    assert [done for done, _, _ in reports] == sorted({done for done, _, _ in reports}) != []
    assert reports[-1][:2] == (job.steps, job.steps)


async def test_an_image_is_edited_by_its_jobs_id_or_as_a_file(
    wire: httpx.AsyncClient, queue: Queue, store: Store, pool: StandIn
) -> None:
    async with agent(wire) as client:
        first = await client.call_tool("generate_image", {"prompt": "a", "num_images": 2})
        job_id = (first.structured_content or {})["job"]
        arguments = {"prompt": "b", "strength": 0.5, "width": 64, "height": 64}
        for image in (f"{job_id}/1", job_id, base64.b64encode(picture()).decode()):
            result = await client.call_tool("edit_image", arguments | {"image": image})
            assert not result.is_error, texts(result)
            sent = await store.get(pool.received[-1].request["image"])
            assert Image.open(io.BytesIO(sent)).size == (SIZE_PX, SIZE_PX)
        missing = await client.call_tool("edit_image", arguments | {"image": f"{job_id}/7"})
    assert missing.is_error and "has 2 outputs" in texts(missing)[0]


async def test_a_video_is_a_link(wire: httpx.AsyncClient, queue: Queue, store: Store) -> None:
    async with StandIn(queue, store, VIDEO), agent(wire) as client:
        result = await client.call_tool("generate_video", {"prompt": "a", "num_frames": 5})
    assert not result.is_error, texts(result)
    (link,) = [content for content in result.content if isinstance(content, types.ResourceLink)]
    assert link.mime_type == "video/mp4"
    assert not [content for content in result.content if isinstance(content, types.ImageContent)]


async def test_mcp_lists_models_and_selects_one_for_the_task(
    wire: httpx.AsyncClient, queue: Queue, store: Store, pool: StandIn
) -> None:
    async with StandIn(queue, store, VIDEO), agent(wire) as client:
        listed = await client.call_tool("list_models", {})
        result = await client.call_tool("generate_image", {"prompt": "a"})
        wrong = await client.call_tool("generate_image", {"prompt": "a", "model": VIDEO.name})
    assert wrong.is_error and f"models for generate_image: {MODEL}" in texts(wrong)[0]
    models = (listed.structured_content or {})["models"]
    assert [model["name"] for model in models] == [MODEL, VIDEO.name]
    assert not result.is_error and pool.received[0].model == MODEL


async def test_the_images_of_a_request_decide_which_model_fits(
    wire: httpx.AsyncClient, queue: Queue, store: Store, pool: StandIn
) -> None:
    animates = VIDEO.model_copy(update={"name": "animates", "tasks": ("image-to-video",)})
    fills = SPEC.model_copy(
        update={
            "name": "fills",
            "tasks": ("inpainting",),
            "fields": SPEC.fields | {"mask_image"},
            "task_defaults": {},
        }
    )
    masked = {"prompt": "a", "image": PNG, "mask_image": PNG}
    async with (
        StandIn(queue, store, VIDEO) as videos,
        StandIn(queue, store, animates) as animated,
        StandIn(queue, store, fills) as filled,
        agent(wire) as client,
    ):
        for name, arguments, worker in (
            ("generate_video", {"prompt": "a"}, videos),
            ("generate_video", {"prompt": "a", "image": PNG, "model": "animates"}, animated),
            ("edit_image", {"prompt": "a", "image": PNG}, pool),
            ("edit_image", masked, filled),
        ):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, texts(result)
            assert len(worker.received) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("generate_image", {"prompt": "a", "width": 10}, "width: "),
        ("generate_image", {"prompt": "a", "format": "bmp"}, "format: "),
        ("generate_image", {"prompt": "a", "steps": 4}, "did you mean num_inference_steps?"),
        ("generate_image", {}, "prompt: "),
        ("generate_image", {"prompt": "a", "model": "x"}, f"available: {MODEL}"),
        ("generate_video", {"prompt": "a"}, "no model here supports text-to-video"),
        ("generate_video", {"prompt": "a", "model": MODEL}, "models for generate_video: none"),
        ("edit_image", {"prompt": "a", "image": PNG, "mask_image": PNG}, "supports inpainting"),
        ("edit_image", {"prompt": "a", "image": "x"}, "image: "),
        ("edit_image", {"prompt": "a", "image": "job_00"}, "there is no job"),
        ("draw", {}, "available: generate_image"),
    ],
)
async def test_errors_are_readable_tool_results(
    wire: httpx.AsyncClient, pool: StandIn, name: str, arguments: dict[str, Any], said: str
) -> None:
    async with agent(wire) as client:
        result = await client.call_tool(name, arguments)
    assert result.is_error and said in texts(result)[0], texts(result)


async def test_failure_is_a_tool_error(wire: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="it came out as no image")
    async with agent(wire) as client:
        result = await client.call_tool("generate_image", {"prompt": "a"})
    assert result.is_error and texts(result) == ["it came out as no image"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_tool_that_is_canceled_cancels_its_job(
    wire: httpx.AsyncClient, queue: Queue, pool: StandIn, mode: str
) -> None:
    """A client older than 2026-07-28 cancels by closing its connection, because its cancellation
    has no session."""
    pool.may_finish.clear()
    async with agent(wire, mode) as client:
        calling = asyncio.create_task(client.call_tool("generate_image", {"prompt": "a"}))
        await pool.has_claimed.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        if mode == "auto":
            await eventually(partial(_is_canceled, queue, pool))
    await eventually(partial(_is_canceled, queue, pool))
    pool.may_finish.set()


async def _is_canceled(queue: Queue, pool: StandIn) -> bool:
    job = await queue.get(pool.received[0].id)
    return job is not None and job.state is JobState.CANCELED


async def test_pages_of_other_origins_are_refused(wire: httpx.AsyncClient, pool: StandIn) -> None:
    origin = str(wire.base_url).rstrip("/")
    assert (
        await wire.post("/mcp", json=CALL_REQUEST, headers={"Origin": origin})
    ).status_code == 200
    foreign = await wire.post("/mcp", json=CALL_REQUEST, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403 and "evil.example" in foreign.json()["error"]["message"]
    rebound = await wire.post("/mcp", json=CALL_REQUEST, headers={"Host": "evil.example"})
    assert rebound.status_code == 421


@pytest.mark.parametrize(
    ("many", "said"),
    [
        ("[" + "0," * 40_000 + "0]", "30000 names, values and commas"),
        ("[" * 40 + "]" * 40, "nested deeper than 16"),
        ("9" * 1000, "too many digits"),
    ],
)
async def test_a_message_has_the_bounds_of_any_body(
    wire: httpx.AsyncClient, many: str, said: str
) -> None:
    """The SDK's reader has no limits, and valid JSON can need many times its bytes of memory."""
    body = json.dumps(CALL_REQUEST).replace('"list_models"', many)
    answer = await wire.post("/mcp", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


async def test_no_sessions_and_no_event_streams(wire: httpx.AsyncClient) -> None:
    answer = await wire.get("/mcp", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"


async def test_missing_extra_is_reported(
    wire: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    answer = await wire.post("/mcp", json=CALL_REQUEST)
    assert answer.status_code == 404 and "extra `mcp`" in answer.json()["error"]["message"]
    assert (await wire.get("/healthz")).status_code == 200


class TestWithKeys(Keyed):
    async def test_jobs_are_of_the_keys_tenant_and_closed_to_others(
        self, wire: httpx.AsyncClient, keys: ApiKeys, pool: StandIn
    ) -> None:
        owner, other = (await keys.create("acme"))[1], (await keys.create("zoo"))[1]
        async with agent(wire, key=owner) as client:
            made = await client.call_tool("generate_image", {"prompt": "a"})
        assert pool.received[0].tenant == "acme"
        job_id = (made.structured_content or {})["job"]
        arguments = {"prompt": "a", "image": job_id, "width": 64, "height": 64}
        async with agent(wire, key=other) as client:
            refused = await client.call_tool("edit_image", arguments)
        assert refused.is_error and "there is no job" in texts(refused)[0]

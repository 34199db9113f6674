"""Duration of a job by each compatible endpoint, compared with `POST /v1/generate`. Not a test.

    python -m lab.bench.endpoints [--rounds 200]

Uses a real front end process, a real Redis, and a pool that only stores a small file, so that HTTP,
admission and the queue remain. Every round calls each endpoint once, in random order, so
differences have the same conditions; the table has their medians and quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from deploy.cli.options import count
from deploy.local.embedded_redis import embedded
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.service.attacked import attacked
from tests.service.standin import MODEL, VIDEO, StandIn

WARM_UP = 20
PROMPT = "a red circle on a blue background"
BYTES, JSON = "/v1/generate, the file", "/v1/generate, JSON"
INLINE = "/v1/generate, JSON with the file"
QUEUED = "/v1/generate, a video that is queued"
VIDEO_INLINE = "/v1/generate, JSON with a video"
MCP = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2025-06-18",
}
INLINED = {"output": {"inline": True}}
Send = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


def posting(path: str, body: Callable[[int], dict[str, Any]], **headers: str) -> Send:
    """Make a function that requests an image with a seed; the response is, contains or links the
    file."""

    async def send(http: httpx.AsyncClient, seed: int) -> httpx.Response:
        return await http.post(path, json=body(seed), headers=headers)

    return send


def native_body(seed: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "seed": seed}


def video_body(seed: int) -> dict[str, Any]:
    return {"model": VIDEO.name, "prompt": PROMPT, "seed": seed}


def mcp_call(seed: int) -> dict[str, Any]:
    """Body of an MCP tool call."""
    params = {"name": "generate_image", "arguments": native_body(seed)}
    return {"jsonrpc": "2.0", "id": seed, "method": "tools/call", "params": params}


def given(seed: int) -> dict[str, Any]:
    """Return the body for an endpoint whose path or settings select the model."""
    return {"prompt": PROMPT, "seed": seed}


def inline(seed: int) -> dict[str, Any]:
    return native_body(seed) | INLINED


def openai(answer: str) -> Callable[[int], dict[str, Any]]:
    return lambda seed: native_body(seed) | {"response_format": answer}


REQUESTS: dict[str, tuple[Send, str]] = {
    BYTES: (posting("/v1/generate", native_body, accept="image/png"), BYTES),
    JSON: (posting("/v1/generate", native_body, prefer="wait"), JSON),
    INLINE: (posting("/v1/generate", inline, prefer="wait"), INLINE),
    "the same again": (posting("/v1/generate", native_body, accept="image/png"), BYTES),
    "Hugging Face": (
        posting(f"/hf/{MODEL}", lambda seed: {"inputs": PROMPT, "parameters": {"seed": seed}}),
        BYTES,
    ),
    "OpenAI, b64_json": (posting("/v1/images/generations", openai("b64_json")), INLINE),
    "OpenAI, url": (posting("/v1/images/generations", openai("url")), JSON),
    "AUTOMATIC1111": (posting("/sdapi/v1/txt2img", given), INLINE),
    "Replicate, Prefer: wait": (
        posting(
            "/v1/predictions",
            lambda seed: {"version": f"atelier/{MODEL}", "input": given(seed)},
            prefer="wait",
        ),
        JSON,
    ),
    "fal, run": (posting(f"/fal/run/{MODEL}", given), JSON),
    "MCP, a tool's call": (posting("/mcp", mcp_call, **MCP), INLINE),
    QUEUED: (posting("/v1/generate", video_body), QUEUED),
    "OpenAI, a video that is queued": (posting("/v1/videos", video_body), QUEUED),
    VIDEO_INLINE: (
        posting("/v1/generate", lambda seed: video_body(seed) | INLINED, prefer="wait"),
        VIDEO_INLINE,
    ),
    "MLPerf, a video": (
        posting(
            "/v1/videos/generations",
            lambda seed: video_body(seed) | {"response_format": "video_bytes"},
        ),
        VIDEO_INLINE,
    ),
}
"""Requests by name, with the `/v1/generate` request whose response has the same content."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=200)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded(Path(folder, "redis")) as url,
        attacked(url, Path(folder)) as server,
    ):
        store = Store(str(server.folder / "outputs"))
        times_s = asyncio.run(measured(url, store, server.url, rounds))
    for line in table(times_s):
        print(line)


async def measured(
    redis_url: str, store: Store, url: str, rounds: int
) -> Mapping[str, list[float]]:
    """Seconds of each request by name, in order of the rounds."""
    times_s: dict[str, list[float]] = {name: [] for name in REQUESTS}
    queue = await Queue.connect(redis_url, QueueSettings())
    async with (
        StandIn(queue, store),
        StandIn(queue, store, VIDEO),
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        for number in range(WARM_UP + rounds):
            for name in random.sample([*REQUESTS], len(REQUESTS)):
                started = time.perf_counter()
                response = await REQUESTS[name][0](http, number)
                elapsed_s = time.perf_counter() - started
                response.raise_for_status()
                if number >= WARM_UP:
                    times_s[name].append(elapsed_s)
    await queue.close()
    return times_s


def table(times_s: Mapping[str, list[float]]) -> list[str]:
    """Rows of a Markdown table, in milliseconds."""
    rows = [
        "| door | ms: median (quartiles) | added to ours: median (quartiles) |",
        "|---|---|---|",
    ]
    for name, seconds in times_s.items():
        reference = times_s[REQUESTS[name][1]]
        added = [
            time_s - reference_s for time_s, reference_s in zip(seconds, reference, strict=True)
        ]
        rows.append(f"| {name} | {_spread(seconds)} | {_spread(added)} |")
    return rows


def _spread(seconds: list[float]) -> str:
    low, middle, high = (1000 * value for value in quantiles(seconds, n=4))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()

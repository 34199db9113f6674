"""How long a job takes by each door, beside the same job by `POST /v1/generate`. No test.

    python -m tests.bench.doors [--rounds 200]

A real front end process, a real Redis, and a pool that only stores a small file: what is left is
HTTP, admission and the queue. Every round asks once by each door, in another order, so that the
differences are of one time; the table has their medians and quartiles.
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
Ask = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


def posting(path: str, body: Callable[[int], dict[str, Any]], **headers: str) -> Ask:
    """A way to ask for one image with a seed, whose answer is, has, or names the file."""

    async def ask(http: httpx.AsyncClient, seed: int) -> httpx.Response:
        return await http.post(path, json=body(seed), headers=headers)

    return ask


def ours(seed: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "seed": seed}


def film(seed: int) -> dict[str, Any]:
    return {"model": VIDEO.name, "prompt": PROMPT, "seed": seed}


def called(seed: int) -> dict[str, Any]:
    """A call of an agent's tool, as its client sends it."""
    params = {"name": "generate_image", "arguments": ours(seed)}
    return {"jsonrpc": "2.0", "id": seed, "method": "tools/call", "params": params}


def given(seed: int) -> dict[str, Any]:
    """Return the body of a door whose path or setting has the model."""
    return {"prompt": PROMPT, "seed": seed}


def inline(seed: int) -> dict[str, Any]:
    return ours(seed) | INLINED


def openai(answer: str) -> Callable[[int], dict[str, Any]]:
    return lambda seed: ours(seed) | {"response_format": answer}


WAYS: dict[str, tuple[Ask, str]] = {
    BYTES: (posting("/v1/generate", ours, accept="image/png"), BYTES),
    JSON: (posting("/v1/generate", ours, prefer="wait"), JSON),
    INLINE: (posting("/v1/generate", inline, prefer="wait"), INLINE),
    "the same again": (posting("/v1/generate", ours, accept="image/png"), BYTES),
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
    "MCP, a tool's call": (posting("/mcp", called, **MCP), INLINE),
    QUEUED: (posting("/v1/generate", film), QUEUED),
    "OpenAI, a video that is queued": (posting("/v1/videos", film), QUEUED),
    VIDEO_INLINE: (
        posting("/v1/generate", lambda seed: film(seed) | INLINED, prefer="wait"),
        VIDEO_INLINE,
    ),
    "MLPerf, a video": (
        posting(
            "/v1/videos/generations",
            lambda seed: film(seed) | {"response_format": "video_bytes"},
        ),
        VIDEO_INLINE,
    ),
}
"""Ways by name: how it asks, and the way of ours whose answer has the same in it."""


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
        found = asyncio.run(measured(url, store, server.url, rounds))
    for line in table(found):
        print(line)


async def measured(
    redis_url: str, store: Store, url: str, rounds: int
) -> Mapping[str, list[float]]:
    """Seconds of each way, round by round."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    queue = await Queue.connect(redis_url, QueueSettings())
    async with (
        StandIn(queue, store),
        StandIn(queue, store, VIDEO),
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        for number in range(WARM_UP + rounds):
            for name in random.sample([*WAYS], len(WAYS)):
                began = time.perf_counter()
                answer = await WAYS[name][0](http, number)
                took = time.perf_counter() - began
                answer.raise_for_status()
                if number >= WARM_UP:
                    found[name].append(took)
    await queue.close()
    return found


def table(found: Mapping[str, list[float]]) -> list[str]:
    """Rows of a Markdown table, in milliseconds."""
    rows = [
        "| door | ms: median (quartiles) | added to ours: median (quartiles) |",
        "|---|---|---|",
    ]
    for name, seconds in found.items():
        ours = found[WAYS[name][1]]
        added = [one - other for one, other in zip(seconds, ours, strict=True)]
        rows.append(f"| {name} | {_spread(seconds)} | {_spread(added)} |")
    return rows


def _spread(seconds: list[float]) -> str:
    low, middle, high = (1000 * value for value in quantiles(seconds, n=4))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()

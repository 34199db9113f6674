"""Whether a running system serves its models yet, as its clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx

LOOK_EVERY_S = 0.2


async def becoming_ready(url: str, models: set[str]) -> AsyncIterator[str]:
    """Each of these models when it has a pool that is warm; ends when all of them have."""
    waiting = set(models)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        while waiting:
            for model in sorted(waiting & await _ready_models(http)):
                waiting.remove(model)
                yield model
            if waiting:
                await asyncio.sleep(LOOK_EVERY_S)


async def _ready_models(http: httpx.AsyncClient) -> set[str]:
    try:
        response = await http.get("/v1/models")
    except httpx.TransportError:  # the front end starts, or starts again
        return set()
    if response.is_error:
        return set()
    return {model["name"] for model in response.json()["data"] if model["ready"]}

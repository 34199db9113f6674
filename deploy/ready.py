"""Whether a running system serves its models yet, as its clients see it."""

from __future__ import annotations

import asyncio

import httpx

LOOK_EVERY_S = 0.2


async def until_ready(url: str, models: set[str]) -> None:
    """Return when each of these models has a pool that is warm."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        while True:
            if models <= await _ready_models(http):
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _ready_models(http: httpx.AsyncClient) -> set[str]:
    try:
        response = await http.get("/v1/models")
    except httpx.TransportError:  # the front end starts, or starts again
        return set()
    if response.is_error:
        return set()
    return {model["name"] for model in response.json()["data"] if model["ready"]}

"""Readiness of a system's models, by its front end's metrics: those need no key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

LOOK_EVERY_S = 0.2
READY = "atelier_model_ready"


async def becoming_ready(url: str, models: set[str]) -> AsyncIterator[str]:
    """Yield each of these models when it has a warm pool; end when all of them have."""
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
        response = await http.get("/metrics")
    except httpx.TransportError:  # the front end starts, or starts again
        return set()
    if response.is_error:
        return set()
    return {
        sample.labels["model"]
        for family in text_string_to_metric_families(response.text)
        if family.name == READY
        for sample in family.samples
        if sample.value
    }

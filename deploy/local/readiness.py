"""Readiness of models, polled from the front end's metrics, which need no key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

CHECK_EVERY_S = 0.5
READY = "atelier_model_ready"


async def becoming_ready(url: str, models: set[str]) -> AsyncIterator[str]:
    """Yield each of these models when a worker serves it; return after the last."""
    waiting = set(models)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        while waiting:
            for model in sorted(waiting & await _ready_models(http)):
                waiting.remove(model)
                yield model
            if waiting:
                await asyncio.sleep(CHECK_EVERY_S)


async def _ready_models(http: httpx.AsyncClient) -> set[str]:
    try:
        response = await http.get("/metrics")
    except httpx.TransportError:  # the front end starts or restarts
        return set()
    if response.is_error:
        return set()
    lines = response.text.splitlines()
    samples = "\n".join(line for line in lines if line.startswith(READY))  # of hundreds
    return {
        sample.labels["model"]
        for family in text_string_to_metric_families(samples)
        for sample in family.samples
        if sample.value
    }

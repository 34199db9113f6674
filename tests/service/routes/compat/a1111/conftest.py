"""Fixtures: a stand-in worker of a model with samplers, and AUTOMATIC1111's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from webuiapi import WebUIApi

from models.spec.option import Option
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import SPEC, StandIn

SPACING = {
    "timestep_spacing": Option(kind="text", choices=("leading", "linspace", "trailing")),
}
SIGMAS = {
    **SPACING,
    **{f"use_{name}_sigmas": Option(kind="boolean") for name in ("karras", "exponential", "beta")},
}
SDXL = SPEC.model_copy(
    update={
        "name": "sdxl-demo",
        "family": "sdxl",
        "tasks": ("text-to-image", "image-to-image", "inpainting"),
        "fields": SPEC.fields | {"mask_image", "scheduler", "eta", "prompt_syntax"},
        "schedulers": {
            "euler": SIGMAS,
            "euler_ancestral": SPACING,
            "ddim": SPACING,
            "dpmpp_2m": SIGMAS,
            "dpmpp_2m_sde": SIGMAS,
            "EulerDiscreteScheduler": SIGMAS,
        },
        "scheduler": "EulerDiscreteScheduler",
        "fingerprint": "0123456789abcdef",
    }
)


@pytest.fixture
async def sdxl(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, SDXL) as pool:
        yield pool


@pytest.fixture
async def api(wire: httpx.AsyncClient) -> WebUIApi:
    address = f"{wire.base_url}/sdapi/v1"
    return await asyncio.to_thread(WebUIApi, baseurl=address, sampler="Euler", steps=3)

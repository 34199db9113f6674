"""Fixtures: the OpenAI SDK's client against the real front end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from openai import AsyncOpenAI

from models.spec.model_spec import ModelSpec
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.openai_clients import openai_client
from tests.service.standin import SPEC, StandIn

INPAINTING: ModelSpec = SPEC.model_copy(
    update={
        "tasks": (*SPEC.tasks, "inpainting"),
        "fields": SPEC.fields | {"mask_image", "quality"},
    }
)


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    """Stand-in worker of a model that also accepts masks."""
    async with StandIn(queue, store, INPAINTING) as pool:
        yield pool


@pytest.fixture
async def client(wire: httpx.AsyncClient) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(str(wire.base_url)) as client:
        yield client

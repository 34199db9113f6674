"""Embeddings: uploaded like adapters, listed, named by prompts, and part of a result's identity."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.settings.settings import Settings
from tests.service.adapters import INK, TAKING, adapter, file_of
from tests.service.standin import MODEL, SPEC
from tests.service.test_keys import client, with_keys

SIZES = {"clip": 8, "clip_2": 12}
MOOD = INK.model_copy(update={"name": "mood", "vectors": 4, "rank": 0, "digest": "33" * 32})
READING = SPEC.model_copy(update={"embedding_sizes": SIZES, "loras": {"mood": MOOD}})
"""Model that reads embeddings and takes no adapters."""


def embedding(vectors: int = 2, hidden: int = 8) -> bytes:
    draw = np.random.default_rng(vectors).standard_normal
    arrays = {"clip_l": draw((vectors, hidden)), "clip_g": draw((vectors, 12))}
    return file_of({name: array.astype(np.float32) for name, array in arrays.items()})


FILE = embedding()
DIGEST = hashlib.sha256(FILE).hexdigest()


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    return with_keys(settings, redis_url)


@pytest.fixture
async def http(
    app: FastAPI, queue: Queue, redis_url: str, empty_redis: Redis
) -> AsyncIterator[httpx.AsyncClient]:
    await queue.register("pool", READING, ready=True)
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    async with await client(app, keys, "acme") as http:
        yield http
    await keys.close()


async def upload(http: httpx.AsyncClient, file: bytes, name: str = "mine") -> httpx.Response:
    return await http.post("/v1/loras", data={"name": name}, files={"file": ("x", file)})


async def test_an_upload_is_listed_and_named_by_prompts(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    answer = await upload(http, FILE)
    assert answer.status_code == 201, answer.text
    view = answer.json()
    assert (view["vectors"], view["rank"], view["networks"]) == (2, 0, ["clip", "clip_2"])
    body = {"prompt": "a cat, mine", "negative_prompt": "embedding:none"}
    answer = await http.post("/v1/generate", json=body)
    assert answer.status_code == 202, answer.text
    (warning,) = [entry for entry in answer.json()["warnings"] if "none" in entry["message"]]
    assert warning["field"] == "negative_prompt" and "available: mine, mood" in warning["message"]
    job = await queue.get(answer.json()["id"])
    assert job is not None
    assert [(entry.name, entry.digest, entry.vectors) for entry in job.loras] == [
        ("mine", DIGEST, 2)
    ]
    assert "loras" not in job.request
    listed = (await http.get("/sdapi/v1/embeddings")).json()["loaded"]
    assert {name: entry["vectors"] for name, entry in listed.items()} == {"mine": 2, "mood": 4}
    assert (await http.get("/sdapi/v1/loras")).json() == []


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (embedding(hidden=9), "vectors of 8 numbers: the embedding was made for another model"),
        (embedding(76), "has 76 vectors"),
        (adapter(), "accepts no adapters"),
        (file_of({"emb_params": np.ones((1, 8), np.float32)}), "of a single encoder"),
        (FILE[:-1], "not a whole safetensors file"),
    ],
)
async def test_other_files_are_refused(http: httpx.AsyncClient, file: bytes, message: str) -> None:
    answer = await upload(http, file)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["field"] == "file" and message in error["message"]


async def test_models_without_embeddings_reject_them(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("pool", TAKING, ready=True)
    answer = await http.post(
        "/v1/loras", data={"name": "mine", "model": MODEL}, files={"file": ("x", FILE)}
    )
    assert answer.status_code == 422 and "reads no embeddings" not in answer.text
    assert "which this model does not read" in answer.text

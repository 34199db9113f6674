"""Versions of a model as specifications of stand-in workers, and aliases of the versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from models.spec.model_spec import ModelSpec
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.queue import Queue
from tests.service.eventually import eventually
from tests.service.standin import SPEC

ALIAS = "flux-dev"
R1, R2 = "flux-dev@r1", "flux-dev@r2"


def version(name: str, **changed: Any) -> ModelSpec:
    return SPEC.model_copy(update={"name": name, "fingerprint": f"weights of {name}", **changed})


async def set_alias(queue: Queue, weights: Mapping[str, float], **options: Any) -> None:
    alias = Alias(weights=weights, **options)
    await AliasRecords(queue.redis).change(lambda records: records | {ALIAS: alias})


async def generate(http: httpx.AsyncClient, model: str = ALIAS, **options: Any) -> dict[str, Any]:
    """Submit a job and return it."""
    headers = options.pop("headers", {})
    body = {"prompt": "a cat", "model": model, **options}
    answer = await http.post("/v1/generate", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def ended(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """Wait until the job has succeeded, and return it."""
    job: dict[str, Any] = {}

    async def has_ended() -> bool:
        nonlocal job
        job = (await http.get(f"/v1/jobs/{job_id}")).json()
        return job["finished_at"] is not None

    await eventually(has_ended)
    assert job["state"] == "succeeded", job
    return job

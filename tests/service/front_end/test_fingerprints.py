"""The checkpoint's fingerprint in every final job, event, ledger record and metric of a model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.settings.settings import Settings
from service.webhooks.sender import payload
from tests.service.standin import MODEL, SPEC, StandIn
from tests.service.versions import generate

CAT = {"prompt": "a cat", "model": MODEL, "seed": 7}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    queue = settings.queue.model_copy(update={"reuse": True})
    return settings.model_copy(update={"queue": queue})


async def finished(http: httpx.AsyncClient, **options: Any) -> dict[str, Any]:
    """Run a job to its end, and return it."""
    answer = await http.post("/v1/generate", json=CAT | options, headers={"Prefer": "wait"})
    job: dict[str, Any] = (await http.get("/v1/jobs")).json()["data"][0]
    assert job["finished_at"], answer.text
    return job


async def end_in_every_state(http: httpx.AsyncClient, queue: Queue, pool: StandIn) -> None:
    """End jobs in every final state: on a worker, without one, and by a copy."""
    job = await finished(http)
    assert (await finished(http))["reuses"] == job["id"]
    draft = await finished(http, stop_at_step=2)
    await http.post(f"/v1/jobs/{draft['id']}/continue", json={})
    pool.failure = JobError(code="internal", message="no")
    await finished(http, seed=8)
    pool.may_finish.clear()
    pool.has_claimed.clear()
    running = await generate(http, **CAT | {"seed": 9})
    await pool.has_claimed.wait()
    waiting, late = [await generate(http, **CAT | {"seed": seed}) for seed in (10, 11)]
    for canceled in (waiting, running):
        await http.post(f"/v1/jobs/{canceled['id']}/cancel")
    await queue.redis.hset(keys.job(late["id"]), "deadline_at", 1)
    await queue.redis.zadd(f"{keys.PREFIX}deadlines", {late["id"]: 1})
    await queue.reap()


async def test_every_job_record_and_metric_names_its_checkpoint(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    await end_in_every_state(http, queue, pool)
    jobs = (await http.get("/v1/jobs")).json()["data"]
    assert {job["state"] for job in jobs} == {state.value for state in JobState if state.ended}
    assert {job["model_fingerprint"] for job in jobs} == {SPEC.fingerprint}
    for job in jobs:
        events = (await http.get(f"/v1/jobs/{job['id']}/events")).text
        final = json.loads(events.rstrip().rpartition("data: ")[2])
        announced = await queue.get(job["id"])
        assert announced is not None
        message = json.loads(payload(announced, 60))
        assert final == job, "the final event has the whole job"
        assert message["data"]["model_fingerprint"] == SPEC.fingerprint
    entries = [json.loads(entry["record"]) for _, entry in await queue.redis.xrange(keys.LEDGER)]
    assert {entry["job"] for entry in entries} == {job["id"] for job in jobs}
    assert {entry.get("checkpoint") for entry in entries} == {SPEC.fingerprint}
    page = (await http.get("/metrics")).text
    families = [*text_string_to_metric_families(page)]
    models = {
        family.name: {sample.labels["model"] for sample in family.samples} - {""}
        for family in families
        if any("model" in sample.labels for sample in family.samples)
    }
    assert len(models) > 20
    (info,) = [family for family in families if family.name == "atelier_model_info"]
    prints = {sample.labels["model"]: sample.labels["fingerprint"] for sample in info.samples}
    assert prints == {MODEL: SPEC.fingerprint}
    assert {name for name, named in models.items() if named - prints.keys()} == set()

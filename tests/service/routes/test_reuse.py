"""Reuse of earlier results: an identical request gets the same files, at no cost, unless it opts
out."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from redis.exceptions import RedisError

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.model.job import Job
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.standin import MODEL, SPEC, StandIn, picture
from tests.service.test_keys import client, with_keys

CAT = {"prompt": "a cat", "model": MODEL, "seed": 7}
WAIT = {"Prefer": "wait"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    queue = settings.queue.model_copy(update={"reuse": True})
    return settings.model_copy(update={"queue": queue})


async def run(http: httpx.AsyncClient, **body: Any) -> tuple[dict[str, Any], str | None]:
    """Run a request; return the ended job and the response's cache header."""
    answer = await http.post("/v1/generate", json={**CAT, **body}, headers=WAIT)
    assert answer.is_success, answer.text
    job: dict[str, Any] = answer.json()
    assert job["state"] == "succeeded"
    return job, answer.headers.get("x-atelier-cache")


async def test_equal_request_is_not_generated_again(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    first, cache = await run(http)
    assert cache is None and first["reuses"] is None
    again, cache = await run(http, metadata={"take": "2"}, priority="high")
    assert (cache, again["reuses"]) == ("hit", first["id"])
    assert again["id"] != first["id"] and again["metadata"] == {"take": "2"}
    assert again["usage"]["device_seconds"] == 0 and len(pool.received) == 1
    assert again["outputs"][0]["sha256"] == first["outputs"][0]["sha256"]
    await http.delete(f"/v1/jobs/{first['id']}")
    file = await http.get(again["outputs"][0]["url"])
    assert file.content == picture(), "a copy that belongs to the job"
    metrics = (await http.get("/metrics")).text
    assert f'atelier_jobs_reused_total{{model="{MODEL}"}} 1.0' in metrics
    assert f'atelier_reused_device_seconds_total{{model="{MODEL}"}} 0.1' in metrics
    _, cache = await run(http)
    assert cache is None and len(pool.received) == 2, "the original and its files are deleted"


async def test_failed_count_does_not_fail_the_response(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of Redis right after the job was accepted does not fail the response."""
    first, _ = await run(http)

    async def away(self: Queue, job: Job) -> Job:
        raise RedisError("away")

    monkeypatch.setattr(Queue, "original_job", away)
    again, cache = await run(http)
    assert (cache, again["reuses"]) == ("hit", first["id"])


async def test_a_hit_is_the_file_itself_or_its_events(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    await run(http)
    file = await http.post("/v1/generate", json=CAT, headers={"Accept": "image/png"})
    assert (file.headers["x-atelier-cache"], file.content) == ("hit", picture())
    events = await http.post("/v1/generate", json=CAT, headers={"Accept": "text/event-stream"})
    names = [line for line in events.text.splitlines() if line.startswith("event:")]
    assert names == ["event: queued", "event: succeeded"]
    assert len(pool.received) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"prompt": "a dog"},
        {"num_inference_steps": 5},
        {"num_images": 2},
        {"output": {"format": "webp"}},
        {"reuse": False},
        {"image": base64.b64encode(picture(size=(96, 64))).decode()},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_different_request_is_generated(
    http: httpx.AsyncClient, pool: StandIn, other: dict[str, Any]
) -> None:
    await run(http)
    _, cache = await run(http, **other)
    assert cache is None and len(pool.received) == 2


async def test_request_of_another_tenant_is_generated(
    settings: Settings, redis_url: str, queue: Queue, store: Store, pool: StandIn, keys: ApiKeys
) -> None:
    """An equal request of another tenant gets files of its own, and the first tenant's again."""
    app = create_app(with_keys(settings, redis_url), queue, store)
    async with (
        app.router.lifespan_context(app),
        await client(app, keys, "acme") as acme,
        await client(app, keys, "zoo") as zoo,
    ):
        first, _ = await run(acme)
        other, cache = await run(zoo)
        assert (cache, other["reuses"], len(pool.received)) == (None, None, 2)
        assert other["usage"]["device_seconds"] > 0
        assert (await run(acme))[0]["reuses"] == first["id"]
        assert (await run(zoo))[0]["reuses"] == other["id"]


async def test_reuse_matches_requests_with_equal_images(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    image = {"image": base64.b64encode(picture(size=(96, 64))).decode()}
    await run(http, **image)
    assert (await run(http, **image))[1] == "hit"


async def test_random_seed_prevents_reuse(http: httpx.AsyncClient, pool: StandIn) -> None:
    for _ in range(2):
        body = {"prompt": "a cat", "model": MODEL}
        answer = await http.post("/v1/generate", json=body, headers=WAIT)
        assert "x-atelier-cache" not in answer.headers


async def test_other_weights_prevent_reuse(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    await run(http)
    pool.spec = SPEC.model_copy(update={"fingerprint": "newer"})
    await queue.register("stand-in", pool.spec, ready=True)
    _, cache = await run(http)
    assert cache is None and len(pool.received) == 2


@pytest.mark.changes_files
async def test_damaged_files_prevent_reuse(
    http: httpx.AsyncClient, pool: StandIn, store: Store, queue: Queue
) -> None:
    first, _ = await run(http)
    job = await queue.get(first["id"])
    assert job
    await store.put(job.outputs[0].key, b"other bytes", "image/png")
    _, cache = await run(http)
    assert cache is None and len(pool.received) == 2


async def test_canceled_job_is_not_reused(http: httpx.AsyncClient, pool: StandIn) -> None:
    pool.may_finish.clear()
    job = (await http.post("/v1/generate", json=CAT)).json()
    await http.post(f"/v1/jobs/{job['id']}/cancel")
    pool.may_finish.set()
    _, cache = await run(http)
    assert cache is None


async def test_idempotency_key_takes_precedence(http: httpx.AsyncClient, pool: StandIn) -> None:
    headers = {"Idempotency-Key": "once", **WAIT}
    first = (await http.post("/v1/generate", json=CAT, headers=headers)).json()
    again = await http.post("/v1/generate", json=CAT, headers=headers)
    assert again.json()["id"] == first["id"] and "x-atelier-cache" not in again.headers


async def test_request_in_flight_is_awaited(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    asked_for = [CAT, CAT, {**CAT, "reuse": False}, {**CAT, "seed": 8}]
    first, *others = [
        (await http.post("/v1/generate", json=body)).json()["id"] for body in asked_for
    ]
    jobs = [await queue.get(job_id) for job_id in others]
    assert [job and job.awaits for job in jobs] == [first, None, None]
    last = (await http.post("/v1/generate", json=CAT)).json()["id"]
    job = await queue.get(last)
    assert job and job.awaits == others[1], "the newest identical job"
    pool.may_finish.set()


async def test_lossless_images_are_encoded_in_another_format(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    """A worker encodes them: PNG and lossless WebP have the pixels of all other formats."""

    async def source_of(seed: int, **output: Any) -> str | None:
        job, _ = await run(http, seed=seed, output=output)
        stored = await queue.get(job["id"])
        assert stored and stored.awaits is None
        jobs[job["id"]] = f"{seed} {output['format']}"
        return jobs.get(str(stored.encodes))

    jobs: dict[str, str] = {}
    assert await source_of(1, format="jpeg") is None
    assert await source_of(1, format="png") is None, "a JPEG file lacks the pixels"
    assert await source_of(1, format="webp", quality=60) == "1 png"
    assert await source_of(1, format="jpeg", quality=60) == "1 png"
    assert await source_of(1, format="jpeg", metadata=False) is None
    assert await source_of(2, format="webp", quality=100) is None
    assert await source_of(2, format="png") == "2 webp"
    assert await source_of(3, format="png") is None

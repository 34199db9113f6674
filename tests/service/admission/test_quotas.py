"""Quotas in responses: rate-limit headers, and errors with a time to retry."""

from __future__ import annotations

import base64
import re

import httpx
import pytest

from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.jobs.tenants import TenantRecords
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.eventually import eventually
from tests.service.jobs.examples import a_job
from tests.service.standin import MODEL, SPEC, StandIn, picture

CAT = {"prompt": "a cat", "model": MODEL}
POLICY = '"queued";q=2;qu="concurrent-requests", "device-seconds";q=5;qu="device-seconds";w=3600'


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings with quotas for the default tenant."""
    limits = TenantSettings(max_queued=2, device_seconds_per_hour=5, weight=3)
    return settings.model_copy(update={"tenants": {"default": limits}})


async def allow(queue: Queue, **limits: int) -> None:
    """Replace the quotas of the settings by a record in Redis."""
    await TenantRecords(queue.redis).change(lambda _: {"default": TenantSettings(**limits)})


async def test_responses_have_ratelimit_headers(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    for queued in (1, 2):
        answer = await http.post("/v1/generate", json=CAT)
        assert answer.status_code == 202
        assert answer.headers["ratelimit-policy"] == POLICY
        header = f'"queued";r={2 - queued}, "device-seconds";r={5 - queued};t=3600'
        assert answer.headers["ratelimit"] == header
    job = await queue.get(answer.json()["id"])
    assert job is not None and job.weight == 3
    answer = await http.post("/v1/generate", json=CAT)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "30"
    assert answer.headers["ratelimit-policy"] == POLICY
    assert answer.headers["ratelimit"] == '"queued";r=0, "device-seconds";r=3;t=3600'
    problem = answer.json()
    assert problem["type"] == "urn:atelier:problem:quota_exceeded"
    assert problem["violated-policies"] == ["queued"]
    assert problem["error"]["type"] == "rate_limit_error"
    assert "ratelimit" not in (await http.get("/v1/jobs")).headers


@pytest.mark.parametrize("headers", [{"Prefer": "wait"}, {"Accept": "image/png"}])
async def test_an_hour_that_is_used_up(
    http: httpx.AsyncClient, pool: StandIn, headers: dict[str, str], queue: Queue
) -> None:
    """A device-second quota can be used up: the stand-in worker reports a tenth of a device-second
    per image."""
    limits = TenantSettings(max_queued=2, device_seconds_per_hour=5)
    for number in range(1, 51):
        answer = await http.post("/v1/generate", json=CAT, headers=headers)
        assert answer.status_code == 200
        left = re.search(r'"device-seconds";r=(\d);t=(\d+)', answer.headers["ratelimit"])
        assert left and int(left[1]) == int(5 - number / 10 + 1e-9)
        assert 3599 <= int(left[2]) <= 3660
    answer = await http.post("/v1/generate", json=CAT, headers=headers)
    assert answer.status_code == 429
    wait_s = int(answer.headers["retry-after"])
    assert answer.headers["ratelimit"] == f'"queued";r=2, "device-seconds";r=0;t={wait_s}'
    assert 3599 <= wait_s <= 3660
    assert (await queue.quota_usage("default", limits)).queued == 0


async def busy(queue: Queue) -> None:
    """Register a worker with one slot and two seconds per image, which has just begun a ten-second
    job of tenant `zoo`."""
    await queue.register("busy", SPEC, ready=True, facts=PoolFacts("here", slots=1))
    row = CostRow(step_s=2 / SPEC.defaults["num_inference_steps"], encode_s=0, decode_s=0)
    bucket = SPEC.bucket(SPEC.defaults)
    await queue.measured(MODEL, {CostKey(bucket, "here", 1): row})
    await queue.put(a_job(tenant="zoo", model=MODEL, bucket=bucket, steps=4, cost=10.0, run_s=10.0))
    assert len(await queue.claim("busy", MODEL, 1)) == 1


async def test_quota_slot_is_free_at_the_next_turn(http: httpx.AsyncClient, queue: Queue) -> None:
    """The quota has room when the tenant's next job starts, after the running job."""
    await busy(queue)
    for _ in range(2):
        assert (await http.post("/v1/generate", json=CAT)).status_code == 202

    async def waits_for_the_pool() -> bool:  # once the estimate includes those jobs
        answer = await http.post("/v1/generate", json=CAT)
        assert answer.status_code == 429 and "quota of queued jobs" in answer.json()["detail"]
        assert f"try again in {answer.headers['retry-after']} s" in answer.json()["detail"]
        return answer.headers["retry-after"] == "10"

    await eventually(waits_for_the_pool)


REFUSED: list[tuple[int, dict[str, str], dict[str, object]]] = [
    (422, {}, {"prompt": 1}),
    (404, {}, {"model": "none"}),
    (400, {"Idempotency-Key": ""}, {}),
    (406, {"Accept": "text/html"}, {}),
    (409, {"Idempotency-Key": "k"}, {"prompt": "a dog"}),
    (415, {"Content-Type": "text/plain"}, {}),
    (504, {"Accept": "image/png", "Prefer": "wait=0"}, {}),
]


@pytest.mark.parametrize(("status", "headers", "body"), REFUSED)
async def test_refused_requests_have_ratelimit_headers(
    http: httpx.AsyncClient,
    queue: Queue,
    status: int,
    headers: dict[str, str],
    body: dict[str, object],
) -> None:
    await queue.register("cold", SPEC, ready=False)
    first = await http.post("/v1/generate", json=CAT, headers={"Idempotency-Key": "k"})
    assert first.status_code == 202
    answer = await http.post("/v1/generate", json=CAT | body, headers=headers)
    assert answer.status_code == status, answer.text
    left = 2 - len(await queue.list(limit=9))
    assert answer.headers["ratelimit-policy"] == POLICY
    assert answer.headers["ratelimit"].startswith(f'"queued";r={left}, "device-seconds"')


async def test_refused_deadline_has_ratelimit_headers(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await busy(queue)
    answer = await http.post("/v1/generate", json=CAT | {"deadline_s": 1})
    assert answer.json()["error"]["code"] == "deadline_too_soon"
    assert answer.headers["ratelimit"] == '"queued";r=2, "device-seconds";r=5;t=3600'


async def test_events_too(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await http.post("/v1/generate", json=CAT, headers={"Accept": "text/event-stream"})
    assert answer.headers["ratelimit-policy"] == POLICY


async def test_stored_bytes_that_are_used_up(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    """The uploaded and the generated image both count; deleting the job frees them."""
    sent, made = len(picture()), len(picture())
    body = CAT | {"image": base64.b64encode(picture()).decode()}
    most = sent + made
    await allow(queue, stored_bytes=most)
    answer = await http.post("/v1/generate", json=body, headers={"Prefer": "wait"})
    assert answer.headers["ratelimit-policy"] == f'"stored-bytes";q={most};qu="stored-bytes"'
    assert re.fullmatch(r'"stored-bytes";r=0;t=86\d{3}', answer.headers["ratelimit"])
    job_id = answer.json()["id"]
    answer = await http.post("/v1/generate", json=body)
    assert answer.status_code == 429 and 86_000 < int(answer.headers["retry-after"]) <= 86_400
    problem = answer.json()
    assert problem["violated-policies"] == ["stored-bytes"]
    assert "stored bytes is used up; delete jobs" in problem["detail"]
    assert (await http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    answer = await http.post("/v1/generate", json=body)
    assert answer.status_code == 202
    assert answer.headers["ratelimit"] == f'"stored-bytes";r={made};t=86400'


async def test_image_above_the_quota_is_unprocessable(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    sent = picture()
    body = CAT | {"image": base64.b64encode(sent).decode()}
    for most, status in ((len(sent) - 1, 422), (len(sent), 202)):
        await allow(queue, stored_bytes=most)
        answer = await http.post("/v1/generate", json=body)
        assert answer.status_code == status
        if status == 422:
            (error,) = answer.json()["errors"]
            assert error["field"] == "image" and "send smaller files" in error["message"]
            assert "retry-after" not in answer.headers

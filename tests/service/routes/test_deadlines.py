"""Admission of jobs with deadlines, and wait estimates in responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.jobs.model.job import Job, Usage
from service.jobs.model.preemption import FullPool, Preemptible
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.redis.keys import cost_trial as tried_key
from service.jobs.scheduling.cost_model import MIN_VALID_S, CostKey, CostRow, PoolFacts
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.settings import Settings
from tests.service.adapters import TAKING
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC

CAT = {"prompt": "a cat", "model": MODEL}
STEPS = SPEC.defaults["num_inference_steps"]
RUN_S = 2.0
POOL = "cold"


@pytest.fixture
async def queue(redis_url: str, empty_redis: Any) -> AsyncIterator[Queue]:
    """Queue whose leases do not end, so that its worker registers once."""
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=1e6))
    yield queue
    await queue.close()


@pytest.fixture(autouse=True)
async def known_costs(queue: Queue) -> None:
    """Register a ready worker with one slot and two seconds per image: 0.1 for the text, 0.3 for
    decoding. It runs no jobs."""
    facts = PoolFacts("here", slots=1)
    await queue.register(POOL, SPEC, ready=True, facts=facts)
    row = CostRow(step_s=(RUN_S - 0.4) / STEPS, encode_s=0.1, decode_s=0.3)
    await queue.measured(MODEL, {CostKey(SPEC.bucket(SPEC.defaults), "here", 1): row})


async def submit(http: httpx.AsyncClient, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await http.post("/v1/generate", json=CAT | body, headers=headers)


async def stored(queue: Queue, answer: httpx.Response) -> Job:
    job = await queue.get(answer.json()["id"])
    assert job is not None
    return job


async def test_job_has_its_predicted_cost(http: httpx.AsyncClient, queue: Queue) -> None:
    single, double = [await stored(queue, await submit(http, num_images=n)) for n in (1, 2)]
    assert (single.cost, single.run_s) == (pytest.approx(RUN_S), pytest.approx(RUN_S))
    assert double.cost == pytest.approx(2 * RUN_S)


async def test_without_costs_no_estimate_and_no_refusal(
    http: httpx.AsyncClient, queue: Queue, empty_redis: Any
) -> None:
    await empty_redis.flushall()
    await queue.register(POOL, SPEC, ready=True)
    answer = await submit(http, deadline_s=0.5)
    assert answer.status_code == 202
    assert answer.json()["queue"] == {"position": 0, "eta_s": None, "eta_basis": None}
    job = await stored(queue, answer)
    assert (job.cost, job.run_s) == (1.0, None)


async def test_estimated_costs_predict_and_are_named(
    http: httpx.AsyncClient, queue: Queue, empty_redis: Any
) -> None:
    """Deadlines are compared with the estimate; one job at a time may prove it wrong."""
    await empty_redis.flushall()
    await queue.register(POOL, SPEC, ready=True, facts=PoolFacts("here", 4))
    key = CostKey(SPEC.bucket(SPEC.defaults), "here", 1)
    row = CostRow(step_s=(RUN_S - 0.4) / STEPS, encode_s=0.1, decode_s=0.3, samples=0)
    await queue.measured(MODEL, {key: row})
    answer = await submit(http)
    place = answer.json()["queue"]
    assert place == {"position": 0, "eta_s": pytest.approx(RUN_S), "eta_basis": "estimated"}
    statuses = [(await submit(http, deadline_s=RUN_S / 2)).status_code for _ in range(2)]
    assert statuses == [202, 422]


async def test_waits_add_up(http: httpx.AsyncClient, queue: Queue) -> None:
    ids = [(await submit(http)).json()["id"] for _ in range(3)]

    async def are_told() -> bool:
        places = [(await http.get(f"/v1/jobs/{job_id}")).json()["queue"] for job_id in ids]
        estimates = [(place["position"], round(place["eta_s"], 3)) for place in places]
        return estimates == [(0, 2.0), (1, 4.0), (2, 6.0)]

    await eventually(are_told)


async def test_running_job_has_its_remaining_time(http: httpx.AsyncClient, queue: Queue) -> None:
    job_id = (await submit(http)).json()["id"]
    (claim,) = await queue.claim(POOL, MODEL, 1)

    async def left_s() -> float:
        view = (await http.get(f"/v1/jobs/{job_id}")).json()
        assert (view["state"], view["queue"]["position"]) == ("running", None)
        return round(float(view["queue"]["eta_s"]), 3)

    for step, seconds in ((0, 2.0), (STEPS // 2, 1.15), (STEPS, 0.3)):  # half of 1.7 s, and 0.3
        await queue.progress(claim, step, STEPS)
        assert await left_s() == seconds


async def test_unreachable_deadline_is_refused_until_it_fits(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    """Fifteen jobs of two seconds fit into thirty; the sixteenth must wait for one to end."""
    soon = {"deadline_s": 30.5}  # half a second for this test's own time
    for _ in range(15):
        assert (await submit(http, **soon)).status_code == 202
    refused = await submit(http, **soon)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "2"
    body = refused.json()
    assert body["type"].endswith("deadline_too_soon")
    assert "32.0 s" in body["detail"]
    assert (await submit(http, deadline_s=40)).status_code == 202, "a later one is met"
    (claim,) = await queue.claim(POOL, MODEL, 1)
    await queue.finish(claim, [], Usage(device_seconds=RUN_S))

    async def is_taken() -> bool:
        return (await submit(http, **soon)).status_code == 202

    await eventually(is_taken)


async def test_job_accepted_for_its_deadline_is_credited(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    assert (await stored(queue, await submit(http, deadline_s=30))).credited
    assert (await stored(queue, await submit(http))).credited is None


async def test_a_full_queue_has_room_when_a_slot_is_free(
    settings: Settings, store: Store, redis_url: str
) -> None:
    bound = settings.model_copy(update={"queue": QueueSettings(max_queued=2)})
    queue = await Queue.connect(redis_url, bound.queue)
    row = CostRow(step_s=40 / STEPS, encode_s=0, decode_s=0)
    await queue.measured(MODEL, {CostKey(SPEC.bucket(SPEC.defaults), "here", 1): row})
    transport = httpx.ASGITransport(create_app(bound, queue, store))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await submit(http)).status_code == 202
        (claim,) = await queue.claim(POOL, MODEL, 1)
        for _ in range(2):
            assert (await submit(http)).status_code == 202

        async def is_told(seconds: int) -> bool:
            answer = await submit(http)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            return int(answer.headers["Retry-After"]) == seconds

        await eventually(lambda: is_told(40))
        await queue.progress(claim, STEPS // 2, STEPS)
        await eventually(lambda: is_told(20))
    await queue.close()


async def test_deadline_overtakes_jobs_without_one(http: httpx.AsyncClient) -> None:
    for _ in range(20):
        assert (await submit(http)).status_code == 202
    assert (await submit(http, deadline_s=5)).status_code == 202


async def test_deadline_relies_on_preemption_of_a_video(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    """The only slot is busy for a minute. The worker may preempt its video for a job of a quarter
    of that time. An image then waits for a second and one step of the video."""
    bucket, steps = SPEC.bucket(SPEC.defaults), 120
    clip = Job(id="job_clip", model=MODEL, bucket=bucket, steps=steps, cost=60, run_s=60)
    await queue.put(clip)
    (claim,) = await queue.claim(POOL, MODEL, 1)
    refused = await submit(http, deadline_s=20)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "42")
    held = [Preemptible(clip.id, claim.fence, left_s=60, image_count=1)]
    full = FullPool(POOL, MODEL, slots=1, free=0, soonest_s=60, held=held)

    async def is_taken() -> bool:
        assert await queue.preempt(full, ratio=4, room_s=30) is None
        return (await submit(http, deadline_s=20)).status_code == 202

    await eventually(is_taken)
    (picture,) = await queue.list(limit=1)

    async def is_told() -> bool:
        assert await queue.preempt(full, ratio=4, room_s=30) == (clip.id, picture.id)
        view = (await http.get(f"/v1/jobs/{picture.id}")).json()["queue"]
        return view == {
            "position": 0,
            "eta_s": pytest.approx(1 + 60 / steps + RUN_S),
            "eta_basis": "measured",
        }

    await eventually(is_told)
    long = {"num_inference_steps": 50, "deadline_s": 30}
    assert (await submit(http, **long)).status_code == 429, (
        "more than a quarter of the remaining minute"
    )


async def measured(queue: Queue, run_s: float, age_s: float = 0.0) -> None:
    """Report costs of an image that were measured `age_s` ago."""
    key = CostKey(SPEC.bucket(SPEC.defaults), "here", 1)
    row = CostRow(step_s=(run_s - 0.4) / STEPS, encode_s=0.1, decode_s=0.3)
    await queue.measured(MODEL, {key: row})
    at = (await queue.costs(MODEL)).at - age_s
    old = row.model_copy(update={"at": at}).model_dump_json()
    # Redis's clock cannot be set
    await queue._redis.hset(f"{PREFIX}costs:{MODEL}", key.wire(), old)


async def submit_until(http: httpx.AsyncClient, status: int, **body: Any) -> httpx.Response:
    """Submit until the response has that status: the front end refreshes costs every second."""
    answers: list[httpx.Response] = []

    async def is_given() -> bool:
        answers.append(await submit(http, **body))
        return answers[-1].status_code == status

    await eventually(is_given)
    return answers[-1]


async def test_outdated_costs_admit_one_trial(http: httpx.AsyncClient, queue: Queue) -> None:
    """The measured two seconds are outdated. Deadlines would reject every job and never measure
    again. Now and then one job is accepted, waits until its deadline, and yields new costs."""
    soon = {"deadline_s": RUN_S / 2}
    assert (await submit(http, **soon)).status_code == 422, "just measured"
    await measured(queue, RUN_S, age_s=MIN_VALID_S + 1)
    tried = await submit_until(http, 202, **soon)
    assert tried.json()["queue"]["eta_s"] == pytest.approx(RUN_S), "by the known costs"
    for _ in range(3):
        assert (await submit(http, **soon)).status_code == 422, "one at a time"
    (claim,) = await queue.claim(POOL, MODEL, 1)
    assert claim.job.id == tried.json()["id"], "the job has not expired"
    await measured(queue, RUN_S / 4)
    await submit_until(http, 202, **soon)
    assert (await submit(http, deadline_s=RUN_S / 8)).status_code == 422, (
        "that limit is not doubtful"
    )


async def test_slow_trial_confirms_the_costs(http: httpx.AsyncClient, queue: Queue) -> None:
    soon = {"deadline_s": RUN_S / 2}
    await measured(queue, RUN_S, age_s=MIN_VALID_S + 1)
    await submit_until(http, 202, **soon)
    await measured(queue, RUN_S)
    await queue._redis.delete(tried_key(MODEL, SPEC.bucket(SPEC.defaults)))  # as after a while
    await submit_until(http, 422, **soon)
    for _ in range(3):
        assert (await submit(http, **soon)).status_code == 422


async def test_no_trial_without_a_ready_pool(http: httpx.AsyncClient, queue: Queue) -> None:
    await measured(queue, RUN_S, age_s=1e6)
    await queue.unregister(POOL, MODEL)
    await submit_until(http, 422, deadline_s=RUN_S / 2)


async def test_repeated_request_returns_its_job_despite_the_deadline(
    http: httpx.AsyncClient,
) -> None:
    first = await submit(http, key="once", deadline_s=4)
    assert first.status_code == 202
    assert (await submit(http, key="other", deadline_s=3)).status_code == 429, (
        "the first job would be late"
    )
    assert (await submit(http, key="other", deadline_s=4.5)).status_code == 202
    assert (await submit(http, key="third", deadline_s=4)).status_code == 429
    again = await submit(http, key="once", deadline_s=4)
    assert again.json()["id"] == first.json()["id"]
    assert (await submit(http, key="once", deadline_s=3.5)).status_code == 409


async def test_refusals_are_counted(http: httpx.AsyncClient) -> None:
    await submit(http, deadline_s=RUN_S / 2)
    page = (await http.get("/metrics")).text
    labels = f'model="{MODEL}",reason="deadline_too_soon",tenant_class="default"'
    assert f"atelier_jobs_refused_total{{{labels}}} 1.0" in page


async def test_impossible_deadline_is_not_retryable(http: httpx.AsyncClient, queue: Queue) -> None:
    """A client that retries after a 429, as libraries do, would retry forever."""
    refused = await submit(http, deadline_s=1.5)
    assert refused.status_code == 422
    assert "retry-after" not in refused.headers
    body = refused.json()
    assert (body["type"], body["errors"][0]["field"]) == (
        "urn:atelier:problem:deadline_too_soon",
        "deadline_s",
    )
    assert body["errors"][0]["message"].startswith(
        "must be 2 or more: alone on the fastest available"
    )


async def test_deadlines_include_compilation(http: httpx.AsyncClient, queue: Queue) -> None:
    facts = PoolFacts("here", 1, (SPEC.bucket({"width": 64}),))
    await queue.register(POOL, SPEC, ready=True, facts=facts)
    row = CostRow(step_s=1.7 / STEPS, encode_s=0, decode_s=0.3, compile_s=38.0)
    await queue.measured(MODEL, {CostKey(SPEC.bucket(SPEC.defaults), "here", 1): row})

    async def is_told() -> bool:
        answer = await submit(http)
        return answer.json()["queue"]["eta_s"] == pytest.approx(40.0)

    await eventually(is_told)
    refused = await submit(http, deadline_s=30)
    assert refused.status_code == 422
    assert "must be 40 or more" in refused.json()["detail"]
    assert "38.0 s of it for compiling" in refused.json()["detail"]
    (job,) = (await queue.list(limit=1),)
    assert (job[0].compile_s, job[0].cost) == (38.0, pytest.approx(40.0))


async def test_a_job_is_charged_for_the_loading_of_its_adapters(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register(POOL, TAKING, ready=True, facts=PoolFacts("here", 1, adapter_s=0.5))
    loras = [{"name": "ink"}]
    first = await stored(queue, await submit(http, loras=loras))
    row = CostRow(step_s=(RUN_S - 0.4) / STEPS, encode_s=0.1, decode_s=0.3)
    await queue.measured(MODEL, {CostKey(first.bucket, "here", 1): row})

    async def costs_are_known() -> bool:
        return (await stored(queue, await submit(http, loras=loras))).run_s is not None

    await eventually(costs_are_known)
    job = await stored(queue, await submit(http, loras=loras))
    assert (job.cost, job.run_s) == (pytest.approx(RUN_S + 0.5), pytest.approx(RUN_S + 0.5))

"""POST /v1/generate: its four kinds of response, defaults, and errors."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import pytest
from PIL import Image
from redis.asyncio import Redis

from models.spec.quality_presets import GuidanceInterval, Measured, Quality
from service.jobs.model.job import JobError
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import MODEL, SIZE_PX, SPEC, StandIn, picture

CAT = {"prompt": "a cat", "model": MODEL}


async def generate(http: httpx.AsyncClient, headers: Any = None, **body: Any) -> httpx.Response:
    return await http.post("/v1/generate", json=CAT | body, headers=headers)


async def test_accepted_job_is_returned(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    answer = await generate(http, seed=7, metadata={"who": "me"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["x-job-id"] == job["id"]
    assert job["object"] == "job" and job["state"] == "queued" and job["model"] == MODEL
    assert job["progress"] == {"step": 0, "steps": 4}
    assert job["queue"] == {"position": 0, "eta_s": None, "eta_basis": None}
    assert job["started_at"] is job["finished_at"] is job["error"] is None
    assert job["created_at"].endswith("Z")
    assert job["outputs"] == [] and job["metadata"] == {"who": "me"}
    assert job["request"] == {
        "model": MODEL,
        "prompt": "a cat",
        "seed": 7,
        "num_images": 1,
        "width": 96,
        "height": 64,
        "num_inference_steps": 4,
        "guidance_scale": 3.5,
        "max_sequence_length": 64,
        "output": {"format": "png", "quality": None, "inline": False, "metadata": True},
        "priority": "normal",
    }


async def test_min_psnr_resolves_to_a_measured_preset(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    measured = Measured(steps=4, images=6, worst_db=30.0, operations=0.4, time=0.5)
    preset = Quality(guidance=GuidanceInterval(stop=0.5), psnr_db=33.0, measured=measured)
    update = {"fields": SPEC.fields | {"quality"}, "qualities": {"mine": preset}}
    await queue.register("cold", SPEC.model_copy(update=update), ready=False)
    job = (await generate(http, quality={"min_psnr_db": 28})).json()
    assert job["request"]["quality"] == "mine"
    view = (await http.get(f"/v1/models/{MODEL}")).json()["qualities"]["mine"]
    assert view["psnr_db"] == 33.0 and view["measured"] == measured.model_dump()
    nearer = (await generate(http, quality={"min_psnr_db": 35})).json()
    assert nearer["request"]["quality"] == "exact"
    for wrong in ({"min_psnr_db": "28"}, {"min_psnr_db": 0}, {"min_db": 28}, 28):
        assert (await generate(http, quality=wrong)).status_code == 422, wrong


async def test_queued_job_has_the_requested_fields(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    pool.may_finish.clear()
    job_id = (await generate(http, priority="high", num_images=3, deadline_s=60)).json()["id"]
    job = await queue.get(job_id)
    assert job is not None and job.deadline_at is not None
    assert (job.priority, job.images, job.steps) == (2, 3, 12)
    assert job.bucket == "width=96,height=64,max_sequence_length=64"
    assert job.deadline_at - job.created_at == pytest.approx(60, abs=5)  # one machine, two clocks


async def test_random_seed_is_returned(http: httpx.AsyncClient, pool: StandIn) -> None:
    seeds = {(await generate(http)).json()["request"]["seed"] for _ in range(3)}
    assert len(seeds) == 3


async def test_model_is_optional_if_only_one_is_served(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    assert (await http.post("/v1/generate", json={"prompt": "a cat"})).status_code == 202


async def test_model_is_required_if_two_are_served(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    await queue.register("other", SPEC.model_copy(update={"name": "other"}), ready=True)
    answer = await http.post("/v1/generate", json={"prompt": "a cat"})
    assert answer.status_code == 404
    assert "flux-demo, other" in answer.json()["detail"]


async def test_unknown_model_lists_available_models(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, model="dall-e")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["errors"] == [{"field": "model", "message": "available: flux-demo"}]


async def test_absent_models_return_retry_after(http: httpx.AsyncClient) -> None:
    answer = await generate(http)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("prefer", ["return=minimal", 'respond-async, RETURN="minimal"'])
async def test_minimal_answer_has_only_id_and_links(
    http: httpx.AsyncClient, pool: StandIn, prefer: str
) -> None:
    answer = await generate(http, {"Prefer": prefer})
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "return=minimal"
    url = answer.headers["location"]
    assert answer.json() == {
        "id": answer.headers["x-job-id"],
        "object": "job.accepted",
        "links": {"job": url, "events": f"{url}/events"},
    }
    assert (await http.get(url)).json()["id"] == answer.json()["id"]


@pytest.mark.parametrize("prefer", ["return=representation", "return=minimal, wait=0", "minimal"])
async def test_other_preferences_give_the_job(
    http: httpx.AsyncClient, pool: StandIn, prefer: str
) -> None:
    answer = await generate(http, {"Prefer": prefer})
    assert answer.json()["object"] == "job"
    assert answer.headers.get("preference-applied") != "return=minimal"


async def test_waiting_gives_the_finished_job(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, {"Prefer": "wait=10"}, seed=5)
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=10"
    job = answer.json()
    assert job["state"] == "succeeded" and job["progress"] == {"step": 4, "steps": 4}
    (output,) = job["outputs"]
    assert output["url"] == f"/v1/jobs/{job['id']}/outputs/0"
    assert (output["content_type"], output["seed"], output["width"]) == ("image/png", 5, SIZE_PX)
    assert "key" not in output and output["base64"] is None
    assert job["usage"]["steps"] == 4


async def test_wait_returns_a_failed_job(http: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="the latents are not finite")
    job = (await generate(http, {"Prefer": "wait"})).json()
    assert job["state"] == "failed"
    assert job["error"] == {
        "code": "non_finite",
        "message": "the latents are not finite",
        "deaths": [],
    }


async def test_expired_wait_returns_the_job(http: httpx.AsyncClient, pool: StandIn) -> None:
    pool.may_finish.clear()
    answer = await generate(http, {"Prefer": "wait=0"})
    assert answer.status_code == 202 and answer.json()["state"] in ("queued", "running")


async def test_inline_adds_the_bytes(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, {"Prefer": "wait"}, num_images=2, output={"inline": True})
    outputs = answer.json()["outputs"]
    assert [base64.b64decode(output["base64"]) for output in outputs] == [picture(), picture()]


async def test_accepting_an_image_returns_the_image(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, {"Accept": "image/webp, image/png;q=0.5"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/webp"
    assert answer.content == picture("WEBP")
    job = (await http.get(f"/v1/jobs/{answer.headers['x-job-id']}")).json()
    assert job["request"]["output"]["format"] == "webp"


@pytest.mark.parametrize(
    ("accept", "output", "status"),
    [
        ("image/*", {"format": "jpeg"}, 200),
        ("image/webp", {"format": "png"}, 406),
        ("video/mp4", {}, 406),
        ("text/html", {}, 406),
        ("image/png;q=0", {}, 406),
    ],
)
async def test_accept_and_format_have_to_agree(
    http: httpx.AsyncClient, pool: StandIn, accept: str, output: Any, status: int
) -> None:
    answer = await generate(http, {"Accept": accept}, output=output)
    assert answer.status_code == status
    assert len(pool.received) == (1 if status == 200 else 0)


async def test_image_response_needs_a_single_image(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, {"Accept": "image/png"}, num_images=2)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "num_images"


async def test_a_failed_job_has_no_bytes(http: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = JobError(code="out_of_memory", message="the device has no room; try it smaller")
    answer = await generate(http, {"Accept": "image/png"})
    assert answer.status_code == 500
    problem = answer.json()
    assert problem["detail"] == "the device has no room; try it smaller"
    assert problem["error"]["code"] == "out_of_memory"
    assert problem["job_id"] == answer.headers["x-job-id"]


async def test_timed_out_image_response_does_not_cancel_the_job(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    answer = await generate(http, {"Accept": "image/png", "Prefer": "wait=0"})
    assert answer.status_code == 504
    job = await queue.get(answer.headers["x-job-id"])
    assert job is not None and not job.state.ended


async def test_a_canceled_job_has_no_bytes(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    key = {"Idempotency-Key": "k"}
    job_id = (await generate(http, key)).json()["id"]
    await queue.cancel(job_id)
    answer = await generate(http, key | {"Accept": "image/png"})
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "job_canceled"


async def test_a_repeat_is_the_same_job(http: httpx.AsyncClient, pool: StandIn) -> None:
    key = {"Idempotency-Key": "k"}
    first = (await generate(http, key)).json()
    again = await http.post(
        "/v1/generate", json={"model": MODEL, "priority": "normal", "prompt": "a cat"}, headers=key
    )
    assert again.status_code == 202
    assert again.json()["id"] == first["id"]
    assert again.json()["request"]["seed"] == first["request"]["seed"]


async def test_a_repeat_with_another_body_is_a_conflict(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    key = {"Idempotency-Key": "k"}
    await generate(http, key)
    answer = await generate(http, key, prompt="a dog")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_conflict"


async def test_input_image_is_stored_and_selects_image_to_image(
    http: httpx.AsyncClient, pool: StandIn, store: Store
) -> None:
    sent = picture("JPEG", (48, 32))
    uri = "data:image/jpeg;base64," + base64.b64encode(sent).decode()
    answer = await generate(http, {"Prefer": "wait"}, image=uri, strength=0.5)
    request = answer.json()["request"]
    assert request["image"] == f"inputs/{answer.json()['id']}/image"
    assert request["strength"] == 0.5 and request["guidance_scale"] == 7.0
    assert answer.json()["progress"]["steps"] == 2
    assert await store.get(request["image"]) == sent


async def test_repeated_request_stores_no_second_image(
    http: httpx.AsyncClient, pool: StandIn, settings: Any, empty_redis: Redis
) -> None:
    image = base64.b64encode(picture()).decode()
    for _ in range(2):
        job = (await generate(http, {"Idempotency-Key": "k"}, image=image)).json()
    stored = list((settings.state_dir / "outputs" / "inputs").rglob("image"))
    assert [path.parent.name for path in stored] == [job["id"]]
    # The reaper removes the accepted job's deposit.
    assert set(await empty_redis.zrange("{atelier}:deposits", 0, -1)) <= {job["id"]}


async def test_input_image_is_deposited_before_it_is_stored(
    http: httpx.AsyncClient, pool: StandIn, settings: Any, empty_redis: Redis
) -> None:
    """Otherwise the image would remain if the front end crashed before it submits the job."""
    wall = settings.state_dir / "outputs" / "inputs"
    wall.write_text("a file where a folder should be")
    answer = await generate(http, image=base64.b64encode(picture()).decode())
    assert answer.status_code == 503
    assert await empty_redis.zcard("{atelier}:deposits") == 1


async def test_full_queue_response_has_retry_after(
    settings: Any, redis_url: str, empty_redis: Any, store: Store
) -> None:
    from service.app import create_app
    from service.settings.queue import QueueSettings

    queue = await Queue.connect(redis_url, QueueSettings(max_queued=1))
    await queue.register("cold", SPEC, ready=False)
    app = create_app(settings, queue, store)
    transport = httpx.ASGITransport(app)
    image = base64.b64encode(picture()).decode()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        assert (await generate(http)).status_code == 202
        answer = await generate(http, image=image)
        page = (await http.get("/metrics")).text
    await queue.close()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "30", "no worker is ready"
    assert "try again in 30 s" in answer.json()["detail"]
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert not list((settings.state_dir / "outputs" / "inputs").rglob("image"))
    labels = 'model="flux-demo",reason="queue_full",tenant_class="default"'
    assert f"atelier_jobs_refused_total{{{labels}}} 1.0" in page
    assert 'atelier_jobs_accepted_total{model="flux-demo",tenant_class="default"} 1.0' in page
    assert 'atelier_queue_jobs{model="flux-demo",state="queued"} 1.0' in page


def transparent() -> str:
    """A PNG whose pixels are transparent, in base64."""
    file = io.BytesIO()
    Image.new("RGBA", (32, 32), (200, 0, 0, 0)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


async def test_transparent_images_are_reported(http: httpx.AsyncClient, pool: StandIn) -> None:
    opaque = base64.b64encode(picture()).decode()
    answer = await generate(http, {"Prefer": "wait"}, reference_images=[opaque, transparent()])
    message = "has transparent pixels, which become white; send an opaque image for another colour"
    assert answer.json()["warnings"] == [{"field": "reference_images.1", "message": message}]
    assert (await generate(http, reference_images=[opaque])).json()["warnings"] == []


async def test_ineffective_seed_bits_are_a_stored_warning(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    body = {"prompt": "a cat", "seed": 2**32 + 7}
    job = (await http.post("/v1/generate", json=body)).json()
    ((field, message),) = [(warning["field"], warning["message"]) for warning in job["warnings"]]
    assert field == "seed" and "the result is that of 7" in message
    view = (await http.get(f"/v1/jobs/{job['id']}")).json()
    assert view["warnings"] == job["warnings"]
    plain = (await http.post("/v1/generate", json={"prompt": "a cat"})).json()
    assert plain["warnings"] == []

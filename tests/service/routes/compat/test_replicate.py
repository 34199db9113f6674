"""Compatible endpoint of Replicate, tested by the `replicate` client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from replicate.client import Client
from replicate.exceptions import ModelError, ReplicateError

from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.responses.warning_header import NAME as WARNINGS
from service.settings.settings import Settings
from tests.service.standin import MODEL, SPEC, StandIn, picture

NAME = f"anybody/{MODEL}"


@pytest.fixture
def client(wire: httpx.AsyncClient) -> Iterator[Client]:
    client = Client(
        api_token="none", base_url=str(wire.base_url), timeout=httpx.Timeout(300), trust_env=False
    )
    client.poll_interval = 0.02
    yield client
    client._client.close()  # the client has no method for it


async def run(client: Client, **settings: Any) -> Any:
    return await asyncio.to_thread(client.run, NAME, input=settings)


async def test_run_waits_for_an_ordinary_job(
    client: Client, wire: httpx.AsyncClient, pool: StandIn
) -> None:
    urls = await run(
        client,
        prompt="a cat",
        num_outputs=2,
        guidance=2.5,
        num_inference_steps=3,
        seed=7,
        width=64,
        height=96,
        output_format="jpg",
        output_quality=80,
    )
    (job,) = pool.received
    assert (job.request["seed"], job.request["guidance_scale"], job.images) == (7, 2.5, 2)
    assert (job.request["width"], job.request["height"], job.steps) == (64, 96, 6)
    output = job.request["output"]
    assert (output["format"], output["quality"]) == ("jpeg", 80)
    for url in urls:
        answer = await wire.get(url)
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/jpeg"


@pytest.mark.parametrize("how", [{}, {"file_encoding_strategy": "base64"}], ids=["", "base64"])
async def test_an_image_is_sent_as_a_file(
    client: Client, pool: StandIn, tmp_path: Path, how: dict[str, Any]
) -> None:
    path = tmp_path / "first.png"
    path.write_bytes(picture(size=(64, 64)))

    def run() -> Any:
        with path.open("rb") as file:
            arguments = {"prompt": "a", "image": file, "prompt_strength": 0.5}
            return client.run(NAME, input=arguments, **how)

    await asyncio.to_thread(run)
    (job,) = pool.received
    assert await pool.store.get(job.request["image"]) == path.read_bytes()
    assert job.request["strength"] == 0.5


async def test_upload_returns_a_data_uri_and_is_not_stored(
    client: Client, wire: httpx.AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "first.png"
    path.write_bytes(picture())
    made = await asyncio.to_thread(client.files.create, path, metadata={"of": "me"})
    assert (made.name, made.content_type, made.size) == ("first.png", "image/png", len(picture()))
    head, _, data = made.urls["get"].partition(",")
    assert head == "data:image/png;base64" and base64.b64decode(data) == picture()
    assert made.metadata == {"of": "me"}
    assert (await wire.get("/v1/files")).json()["data"] == []


async def test_an_upload_that_cannot_be_read_is_refused(
    wire: httpx.AsyncClient, settings: Settings
) -> None:
    large = {"content": bytes(settings.limits.max_body_bytes + 1)}
    assert (await wire.post("/v1/files", files=large)).status_code == 413
    form = {"files": {"content": picture()}, "data": {"metadata": "[1]"}}
    response = await wire.post("/v1/files", **form)
    assert response.status_code == 400 and response.json()["error"]["param"] == "metadata"


async def test_a_prediction_is_created_followed_and_listed(client: Client, pool: StandIn) -> None:
    pool.may_finish.clear()
    made = await asyncio.to_thread(
        client.predictions.create, version=MODEL, input={"prompt": "a", "num_inference_steps": 4}
    )
    assert made.status == "starting" and (made.urls or {})["get"].endswith(made.id)
    await pool.has_claimed.wait()
    running = await asyncio.to_thread(client.predictions.get, made.id)
    assert running.status == "processing" and running.output is None
    pool.may_finish.set()
    await asyncio.to_thread(made.wait)
    assert made.status == "succeeded" and len(made.output) == 1
    assert made.progress is not None and made.progress.percentage == 1.0
    page = await asyncio.to_thread(client.predictions.list)
    assert [prediction.id for prediction in page.results] == [made.id] and page.next is None


async def test_list_has_further_pages(
    client: Client, pool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.routes.compat.replicate.endpoint.PAGE", 1)
    ids = [await _made(client), await _made(client)]
    first = await asyncio.to_thread(client.predictions.list)
    second = await asyncio.to_thread(client.predictions.list, first.next)
    assert [first.results[0].id, second.results[0].id] == ids[::-1]


async def _made(client: Client) -> str:
    made = await asyncio.to_thread(client.predictions.create, version=MODEL, input={"prompt": "a"})
    return str(made.id)


async def test_a_prediction_is_canceled(client: Client, pool: StandIn, queue: Queue) -> None:
    pool.may_finish.clear()
    made = await asyncio.to_thread(
        client.models.predictions.create, model=NAME, input={"prompt": "a"}
    )
    await pool.has_claimed.wait()
    await asyncio.to_thread(made.cancel)
    assert made.status == "canceled"
    job = await queue.get(made.id)
    assert job is not None and job.state is JobState.CANCELED
    pool.may_finish.set()


async def test_a_failure_is_its_models_error(client: Client, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="it came out as no image")
    with pytest.raises(ModelError) as error:
        await run(client, prompt="a")
    assert "it came out as no image" in str(error.value)


async def test_prediction_wait_timeout_returns_an_unfinished_state(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    """The client treats any state except `starting` as the end of a prediction that it waited for.

    The test does not use that client, which allows half a second more than the wait.
    """
    pool.may_finish.clear()
    body = {"version": MODEL, "input": {"prompt": "a"}}
    made = await wire.post("/v1/predictions", json=body, headers={"Prefer": "wait=1"})
    assert made.status_code == 201 and made.json()["status"] == "starting"
    await pool.has_claimed.wait()
    response = await wire.get(made.json()["urls"]["get"])
    assert response.json()["status"] == "processing"
    pool.may_finish.set()


async def test_errors_use_the_sent_field_names(wire: httpx.AsyncClient, pool: StandIn) -> None:
    async def refused(**body: Any) -> str:
        answer = await wire.post("/v1/predictions", json={"version": MODEL} | body)
        assert answer.status_code == 422, answer.text
        return str(answer.json()["detail"])

    for arguments, field in [
        ({"prompt": "a", "num_outputs": 99}, "input.num_outputs"),
        ({"prompt": "a", "width": 10}, "input.width"),
        ({"prompt": "a", "scheduler": "K_EULER"}, "input.scheduler"),
        ({"prompt": "a", "output_format": "bmp"}, "input.output_format"),
        ({"prompt": "a", "aspect_ratio": "wide"}, "input.aspect_ratio"),
        ({"prompt": "a", "aspect_ratio": "1:0"}, "input.aspect_ratio"),
        ({"prompt": "a", "model": "x"}, "input.model"),
        ({"prompt": "a", "num_outputs": 1, "num_images": 1}, "input.num_images"),
        ({}, "input.prompt"),
    ]:
        assert (await refused(input=arguments)).startswith(field), arguments
    assert (await refused(model="other", input={"prompt": "a"})).startswith("version")
    webhook = await refused(webhook="http://a.example", input={"prompt": "a"})
    assert webhook.startswith("webhook: is not supported; input.webhook sends messages")
    nulls = {"webhook": None, "webhook_events_filter": None, "stream": None}
    accepted = {"version": MODEL, "input": {"prompt": "a"}} | nulls
    assert (await wire.post("/v1/predictions", json=accepted)).status_code == 201


async def test_fields_of_hosted_models_are_accepted(wire: httpx.AsyncClient, pool: StandIn) -> None:
    inputs = {
        "prompt": "a",
        "go_fast": True,
        "disable_safety_checker": False,
        "megapixels": "0.015",
        "aspect_ratio": "16:9",
    }
    sizes = []
    of_flux2 = {"megapixels": None, "resolution": "0.015 MP"}
    for more in ({}, of_flux2, {"width": 64, "height": 96}, {"aspect_ratio": "custom"}):
        body = {"version": MODEL, "input": inputs | more}
        answer = await wire.post("/v1/predictions", json=body)
        assert answer.status_code == 201, answer.text
        sizes.append([answer.json()["input"][side] for side in ("width", "height")])
    assert sizes == [
        [160, 80],
        [160, 80],
        [64, 96],
        [SPEC.defaults["width"], SPEC.defaults["height"]],
    ]
    assert "input.go_fast: has no effect" in answer.headers[WARNINGS]
    assert "disable_safety_checker" not in answer.headers[WARNINGS]


async def test_unknown_model_is_reported(
    client: Client, wire: httpx.AsyncClient, pool: StandIn
) -> None:
    body = {"version": "nothing", "input": {"prompt": "a"}}
    answer = await wire.post("/v1/predictions", json=body)
    assert [item["field"] for item in answer.json()["errors"]] == ["version"]
    with pytest.raises(ReplicateError) as error:
        await asyncio.to_thread(client.run, "anybody/nothing", input={"prompt": "a"})
    assert error.value.status == 404 and f"available: {MODEL}" in str(error.value.detail)

"""Compatible endpoint of fal, tested by fal-client through a TLS proxy, since the client supports
HTTPS only."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.model.job import PRIORITIES, JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.responses.warning_header import NAME
from service.settings.settings import Settings
from tests.service.compatible_requests import IMAGE
from tests.service.conftest import served
from tests.service.routes.compat import fal_program
from tests.service.routes.compat.keyed import Keyed
from tests.service.routes.compat.tls_proxy import behind_tls, certificates
from tests.service.standin import MODEL, SIZE_PX, VIDEO, StandIn, picture

APP = f"fal-ai/{MODEL}"


@dataclass
class Fal:
    """Runs fal's client in a separate process per call."""

    port: int
    authority: Path

    async def __call__(self, call: str, arguments: dict[str, Any], app: str = APP) -> Any:
        host = f"127.0.0.1:{self.port}/fal"
        environment = os.environ | {
            "FAL_RUN_HOST": f"{host}/run",
            "FAL_QUEUE_RUN_HOST": f"{host}/queue",
            "FAL_KEY": "none",
            "SSL_CERT_FILE": str(self.authority),
            "NO_PROXY": "127.0.0.1",
        }
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            str(fal_program.__file__),
            *(call, app, json.dumps(arguments)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await program.communicate()
        assert program.returncode == 0
        return json.loads(output)


@pytest.fixture
async def fal(settings: Settings, queue: Queue, store: Store, tmp_path: Path) -> AsyncIterator[Fal]:
    async with serving(create_app(settings, queue, store), settings, tmp_path) as fal:
        yield fal


@asynccontextmanager
async def serving(app: FastAPI, settings: Settings, folder: Path) -> AsyncIterator[Fal]:
    """Serve an app by HTTPS to fal's client."""
    made = certificates(folder / "tls")
    async with (
        served(app, settings) as address,
        behind_tls(int(address.rpartition(":")[2]), made) as port,
    ):
        public = settings.server.model_copy(update={"public_url": f"https://127.0.0.1:{port}"})
        app.state.front.settings = settings.model_copy(update={"server": public})
        yield Fal(port, made.file("ca"))


async def test_subscribe_waits_for_an_ordinary_job(fal: Fal, pool: StandIn) -> None:
    arguments = {
        "prompt": "a cat",
        "image_size": {"width": 64, "height": 96},
        "num_images": 2,
        "seed": 7,
        "guidance_scale": 2.5,
        "num_inference_steps": 3,
        "output_format": "jpeg",
        "enable_safety_checker": True,
        "sync_mode": False,
    }
    outcome = await fal("subscribe", arguments)
    (job,) = pool.received
    assert (job.request["seed"], job.request["guidance_scale"], job.images) == (7, 2.5, 2)
    assert (job.request["width"], job.request["height"], job.steps) == (64, 96, 6)
    assert "Completed" in outcome["seen"]
    result = outcome["result"]
    assert result["seed"] == 7 and len(result["images"]) == 2
    (first, _) = result["images"]
    assert first["content_type"] == "image/jpeg" and first["width"] == SIZE_PX
    assert first["url"].startswith(f"https://127.0.0.1:{fal.port}/")


async def test_run_answers_with_the_result(fal: Fal, pool: StandIn) -> None:
    image = picture(size=(64, 64))
    result = await fal("run", {"prompt": "a", "image_url": IMAGE, "strength": 0.5}, app=MODEL)
    (job,) = pool.received
    assert len(result["images"]) == 1 and "video" not in result
    assert await pool.store.get(job.request["image"]) == image


class WatchedPadding:
    """ASGI layer that reports the first white space of a response's body."""

    def __init__(self, app: ASGIApp, begun: asyncio.Event) -> None:
        self.app, self.begun = app, begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            await send(message)
            if (body := message.get("body")) and not body.strip():
                self.begun.set()

        await self.app(scope, receive, watched)


@pytest.mark.parametrize("failure", [None, JobError(code="non_finite", message="no image")])
async def test_its_client_reads_padded_json(
    settings: Settings, queue: Queue, store: Store, tmp_path: Path, failure: JobError | None
) -> None:
    server = settings.server.model_copy(update={"json_keep_alive_s": 0.02})
    settings = settings.model_copy(update={"server": server})
    app, begun = create_app(settings, queue, store), asyncio.Event()
    app.add_middleware(WatchedPadding, begun=begun)
    async with StandIn(queue, store) as pool, serving(app, settings, tmp_path) as fal:
        pool.may_finish.clear()
        pool.failure = failure
        running = asyncio.create_task(fal("run", {"prompt": "a"}))
        await begun.wait()
        pool.may_finish.set()
        result = await running
    if failure is None:
        assert len(result["images"]) == 1
    else:
        assert result == {"detail": failure.message, "error_type": failure.code}


async def test_video_result_is_a_single_file(fal: Fal, queue: Queue, store: Store) -> None:
    async with StandIn(queue, store, VIDEO):
        result = await fal("run", {"prompt": "a"}, app=f"fal-ai/{VIDEO.name}")
    assert result["video"]["content_type"] == "video/mp4" and "images" not in result


async def test_a_request_is_canceled(fal: Fal, pool: StandIn, queue: Queue) -> None:
    pool.may_finish.clear()
    outcome = await fal("cancel", {"prompt": "a"})
    assert outcome["before"] in ("Queued", "InProgress")
    assert (outcome["after"], outcome["error_type"]) == ("Completed", "job_canceled")
    assert outcome["result"] == [410, "the job was canceled", "job_canceled"]
    assert outcome["again"][0] == 400 and outcome["again"][2] == "already_completed"
    job = await queue.get(outcome["id"])
    assert job is not None and job.state is JobState.CANCELED
    assert job.priority == PRIORITIES["low"]
    pool.may_finish.set()


async def test_failure_is_in_status_and_result(wire: httpx.AsyncClient, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="it came out as no image")
    made = (await wire.post(f"/fal/queue/{APP}", json={"prompt": "a"})).json()
    status: dict[str, Any] = {}
    while status.get("status") != "COMPLETED":
        status = (await wire.get(made["status_url"])).json()
    assert (status["error"], status["error_type"]) == ("it came out as no image", "non_finite")
    result = await wire.get(made["response_url"])
    assert result.status_code == 500 and result.json()["error_type"] == "non_finite"


async def test_pending_result_is_in_progress(wire: httpx.AsyncClient, pool: StandIn) -> None:
    pool.may_finish.clear()
    made = (await wire.post(f"/fal/queue/{APP}", json={"prompt": "a"})).json()
    result = await wire.get(made["response_url"])
    assert result.status_code == 400 and result.json()["error_type"] == "in_progress"
    pool.may_finish.set()


async def test_fields_of_hosted_models_are_accepted(wire: httpx.AsyncClient, pool: StandIn) -> None:
    body = {
        "prompt": "a",
        "image_urls": [IMAGE, IMAGE],
        "acceleration": "high",
        "expand_prompt": False,
        "safety_tolerance": "2",
        "enable_prompt_expansion": True,
        "aspect_ratio": "1:2",
        "megapixels": 0.01,
    }
    answer = await wire.post(f"/fal/run/{APP}", json=body)
    assert answer.status_code == 200, answer.text
    for field in ("acceleration", "safety_tolerance", "enable_prompt_expansion"):
        assert f"{field}: has no effect" in answer.headers[NAME]
    assert "expand_prompt" not in answer.headers[NAME]
    (job,) = pool.received
    assert (job.request["width"], job.request["height"]) == (64, 144)
    for key in (job.request["image"], *job.request["reference_images"]):
        assert await pool.store.get(key) == picture(size=(64, 64))
    assert len(job.request["reference_images"]) == 1
    for wrong in ({"image_urls": [IMAGE] * 4}, {"image_urls": [IMAGE], "image_url": IMAGE}):
        answer = await wire.post(f"/fal/run/{APP}", json={"prompt": "a", **wrong})
        assert answer.json()["detail"].startswith("image_urls"), "the model has two references"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prompt": "a", "image_size": "huge"}, "image_size"),
        ({"prompt": "a", "image_size": {"width": 10, "height": 64}}, "image_size.width"),
        ({"prompt": "a", "image_size": "square", "width": 64}, "width"),
        ({"prompt": "a", "output_format": "bmp"}, "output_format"),
        ({"prompt": "a", "sync_mode": True}, "sync_mode"),
        ({"prompt": "a", "scheduler": "x"}, "scheduler"),
        ({"prompt": "a", "image_url": "x"}, "image_url"),
        ({"prompt": "a", "model": "x"}, "model"),
        ({"prompt": "a", "colour": "x"}, "colour"),
        ({}, "prompt"),
    ],
)
async def test_errors_use_the_sent_field_names(
    wire: httpx.AsyncClient, pool: StandIn, given: dict[str, Any], field: str
) -> None:
    answer = await wire.post(f"/fal/queue/{APP}", json=given)
    assert answer.status_code == 422
    assert set(answer.json()) == {"detail", "error_type"}
    assert answer.json()["detail"].startswith(f"{field}: ")


async def test_error_for_both_sides_of_a_size_occurs_once(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await wire.post(f"/fal/run/{MODEL}", json={"prompt": "a", "image_size": "square_hd"})
    assert answer.json()["detail"].count("must be 32 to 256 pixels") == 1


async def test_client_shows_the_error(fal: Fal, pool: StandIn) -> None:
    status, message, kind = await fal("refused", {"prompt": "a", "seed": -2})
    assert (status, kind) == (422, "invalid_request") and message.startswith("seed: ")


@pytest.mark.parametrize(("path", "allowed"), [("", "GET"), ("/status", "GET"), ("/cancel", "PUT")])
async def test_request_paths_are_not_model_names(
    http: httpx.AsyncClient, path: str, allowed: str
) -> None:
    answer = await http.post(f"/fal/queue/{APP}/requests/0{path}", json={"prompt": "a"})
    assert answer.status_code == 405 and allowed in answer.headers["allow"].split(", ")
    assert "POST" not in answer.headers["allow"]


async def test_its_webhooks_are_refused_by_name(wire: httpx.AsyncClient, pool: StandIn) -> None:
    address = f"/fal/queue/{APP}?fal_webhook=http://a.example"
    answer = await wire.post(address, json={"prompt": "a"})
    assert answer.status_code == 422 and "fal_webhook" in answer.json()["detail"]


class TestWithKeys(Keyed):
    async def test_key_scheme_works_only_on_fal_paths(
        self, app: FastAPI, http: httpx.AsyncClient, keys: ApiKeys, pool: StandIn
    ) -> None:
        headers = {"Authorization": f"Key {(await keys.create('acme'))[1]}"}
        made = await http.post(f"/fal/queue/{APP}", json={"prompt": "a"}, headers=headers)
        assert made.status_code == 200
        assert (await http.get("/v1/models", headers=headers)).status_code == 401
        foreign = {"Authorization": f"Key {(await keys.create('zoo'))[1]}"}
        path = f"/fal/queue/{APP}/requests/{made.json()['request_id']}"
        assert (await http.get(f"{path}/status", headers=headers)).status_code == 200
        for answer in (
            await http.get(path, headers=foreign),
            await http.get(f"{path}/status", headers=foreign),
            await http.put(f"{path}/cancel", headers=foreign),
        ):
            assert answer.status_code == 404

"""Requests for which the safety hook refuses, allows, or gives no verdict."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.jobs.model.job import CLIENT_ERRORS, JobError
from service.jobs.queue import Queue
from service.settings.safety import SafetySettings
from service.settings.settings import Settings
from tests.safety_hook import HookProcess, hook_process
from tests.service.routes.test_generate import generate
from tests.service.standin import StandIn, picture


@pytest.fixture(scope="module")
def hook() -> Iterator[HookProcess]:
    with hook_process() as hook:
        yield hook


@pytest.fixture
def timeout_s() -> float:
    return 60


@pytest.fixture
def settings(tmp_path: Path, hook: HookProcess, timeout_s: float) -> Settings:
    return Settings(state_dir=tmp_path, safety=SafetySettings(url=hook.url, timeout_s=timeout_s))


async def test_a_refused_request_is_a_422_with_the_reason(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    answer = await generate(http, prompt="refuse")
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:atelier:problem:refused_by_safety"
    assert answer.json()["error"]["code"] == "refused_by_safety"
    assert answer.json()["detail"].endswith("it shows a secret")
    assert await queue.list(limit=10) == []
    page = (await http.get("/metrics")).text
    assert 'atelier_safety_checks_total{verdict="refused",when="before"} 1.0' in page
    assert 'reason="refused_by_safety"' in page


async def test_hook_gets_unchanged_input_images(
    http: httpx.AsyncClient, pool: StandIn, hook: HookProcess
) -> None:
    file = picture()
    answer = await generate(http, prompt="a hat", image=base64.b64encode(file).decode())
    assert answer.status_code == 202
    received = hook.questions()[-1]
    assert [(image["field"], image["content_type"]) for image in received["images"]] == [
        ("image", "image/png")
    ]
    assert base64.b64decode(received["images"][0]["data"]) == file
    assert "image" not in received["request"] and received["request"]["strength"] == 0.6


@pytest.mark.parametrize("timeout_s", [0.5])
async def test_without_a_verdict_nothing_is_accepted(
    http: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    answer = await generate(http, prompt="garbage")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert answer.json()["error"]["code"] == "safety_unavailable"
    assert await queue.list(limit=10) == []


@pytest.mark.parametrize("code", sorted(CLIENT_ERRORS))
async def test_content_failures_are_client_errors(
    http: httpx.AsyncClient, pool: StandIn, code: str
) -> None:
    pool.failure = JobError.model_validate({"code": code, "message": "it cannot be"})
    answer = await generate(http, {"Accept": "image/png"}, prompt="a hat")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == code

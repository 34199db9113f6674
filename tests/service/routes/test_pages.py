"""Pages for browsers: they load nothing from other origins, and their Content-Security-Policy
forbids it."""

from __future__ import annotations

import json
import re
from html import unescape

import httpx
import pytest

from service.schemas.examples import GENERATE, JOBS
from service.schemas.request import GenerateRequest

PATHS = [
    "/",
    "/operator",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/metrics",
    "/v1/models",
    "/nowhere",
    "/v1/jobs/x",
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_has_a_policy(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_reference_runs_no_script_and_loads_nothing(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    assert answer.status_code == 200
    html = re.sub("<pre>.*?</pre>", "", answer.text, flags=re.DOTALL)  # escaped text
    assert re.findall(r"<(?:script|link|img|iframe)|\ssrc=|\son\w+=|https?://", html) == []
    assert "script-src" not in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]


async def test_the_reference_has_every_request_and_field(http: httpx.AsyncClient) -> None:
    text = (await http.get("/docs")).text
    for path, methods in (await http.get("/openapi.json")).json()["paths"].items():
        for method in methods:
            assert f'<span class="method">{method.upper()}</span> {path}</h3>' in text
    for field in GenerateRequest.model_fields:
        assert f"<code>{field}</code>" in text
    links = set(re.findall(r'href="#(\w+)"', text))
    assert links and links <= set(re.findall(r' id="(\w+)"', text))


async def test_the_reference_shows_what_to_ask_and_what_is_answered(
    http: httpx.AsyncClient,
) -> None:
    text = (await http.get("/docs")).text
    texts = [unescape(text) for text in re.findall("<pre>(.*?)</pre>", text, re.DOTALL)]
    examples = [json.loads(text) for text in texts if text.startswith("{")]
    assert GENERATE in examples and JOBS in examples


async def test_there_is_no_other_reference(http: httpx.AsyncClient) -> None:
    assert (await http.get("/redoc")).status_code == 404

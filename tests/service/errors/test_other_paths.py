"""Advice about paths without a route."""

from __future__ import annotations

import httpx
import pytest

from service.errors.handlers import advice

ROUTES = ("/v1/images/generations", "/v1/models", "/sdapi/v1/txt2img", "/sdapi/v1/embeddings")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/images/generations", "did you mean /v1/images/generations?"),
        ("/v1/images/generations/", "did you mean /v1/images/generations?"),
        ("//v1/images/generations", "did you mean /v1/images/generations?"),
        ("/v1/v1/models", "did you mean /v1/models?"),
        ("/api/v1/models", "did you mean /v1/models?"),
        ("/txt2img", "did you mean /sdapi/v1/txt2img?"),
        ("/sdapi/v1/extra-single-image", "upscaling alone is not served"),
        ("/sdapi/v1/interrogate", "descriptions of images are not served"),
        ("/prompt", "this server runs no ComfyUI workflows"),
        ("/openai/deployments/a/images/generations", "use OpenAI's API"),
        ("/v2beta/stable-image/generate/core", "use OpenAI's API"),
        ("/v1/embeddings", "no text"),
        ("/api/tags", "use OpenAI's API"),
        ("/models/flux", "at POST /hf/NAME"),
        ("/nothing", "see /docs"),
    ],
)
def test_advice_names_the_route_or_what_is_not_served(path: str, message: str) -> None:
    assert message in advice(path, ROUTES)


async def test_a_missing_route_has_advice(http: httpx.AsyncClient) -> None:
    answer = await http.post("/images/generations", json={"prompt": "a"})
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        "no route matches '/images/generations'; did you mean /v1/images/generations?"
    )

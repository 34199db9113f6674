"""Advice about paths without a route: misspelt ones, and those of other servers' APIs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_SLASHES = re.compile(r"/{2,}")
_WORKFLOWS = (
    "this server runs no ComfyUI workflows; its node for ComfyUI (examples/comfyui) sends requests"
    " to POST /v1/generate"
)
_NO_TEXT = (
    "this server generates images and videos, and no text: POST /v1/images/generations, or"
    " /v1/chat/completions"
)
_OPENAI = "use OpenAI's API: its base URL here ends with /v1, as in POST /v1/images/generations"
OTHER_SERVERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("/sdapi/v1/extra-",),
        "upscaling alone is not served; send enable_hr and hr_upscaler to /sdapi/v1/txt2img, or"
        " upscale to POST /v1/generate",
    ),
    (
        ("/sdapi/v1/interrogate", "/interrogator/"),
        "descriptions of images are not served; write the prompt yourself",
    ),
    (("/controlnet/detect",), "send control images with the module canny to /sdapi/v1/txt2img"),
    (("/sdapi/", "/internal/"), "this route of AUTOMATIC1111 is not served; see /docs"),
    (
        ("/prompt", "/history", "/queue", "/object_info", "/system_stats", "/upload/", "/view"),
        _WORKFLOWS,
    ),
    (("/openai/deployments/", "/v2beta/", "/v1/generation/", "/api/v1/"), _OPENAI),
    (
        *(("/v1/completions", "/v1/embeddings", "/v1/moderations", "/v1/audio/", "/v1/rerank"),),
        _NO_TEXT,
    ),
    (("/api/generate", "/api/chat", "/api/tags", "/api/show"), _OPENAI),
    (("/models/", "/hf-inference/"), "models of Hugging Face's API are at POST /hf/NAME"),
    (("/v1/deployments/", "/v1/trainings"), "POST /v1/predictions with a model's name as version"),
)
"""First letters of paths, and what to do instead; the first match counts."""


def advice(path: str, routes: Collection[str]) -> str:
    """Return what to do about a path without a route.

    Args:
        routes: paths of all routes.
    """
    if (near := next((other for other in _variants(path) if other in routes), None)) is not None:
        return f"did you mean {near}?"
    plain = _SLASHES.sub("/", path)
    matches = (message for starts, message in OTHER_SERVERS if plain.startswith(starts))
    return next(matches, "see /docs")


def _variants(path: str) -> Iterator[str]:
    """Yield a path without doubled parts and a final slash, and with the prefix of an API."""
    plain = _SLASHES.sub("/", path).rstrip("/").replace("/v1/v1/", "/v1/")
    yield plain
    yield from (f"/v1{plain}", f"/sdapi/v1{plain}")
    if plain.startswith(("/api/", "/openai/")):
        rest = plain[plain.index("/", 1) :]
        yield from (rest, f"/v1{rest}")

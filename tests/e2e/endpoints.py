"""Clients of every compatible endpoint of one real system, and functions that compare their
outputs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import httpx2
import numpy as np
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ImageContent
from openai import OpenAI
from PIL import Image
from webuiapi import WebUIApi

END_S = 300
"""Maximum time of a job that has to compile its programs on a busy machine."""
EndpointCall = Callable[[httpx.Client], bytes]
"""Function that makes a request with a client and returns the resulting file."""


def openai(http: httpx.Client) -> OpenAI:
    return OpenAI(base_url=f"{http.base_url}/v1", api_key="none", timeout=END_S)


def webui(http: httpx.Client) -> WebUIApi:
    client = WebUIApi(baseurl=f"{http.base_url}/sdapi/v1", sampler="Euler")
    client.session.trust_env = False
    return client


def call_tool(http: httpx.Client, tool: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the image that an MCP tool call returns."""

    async def call() -> CallToolResult:
        async with (
            httpx2.AsyncClient(timeout=END_S, trust_env=False) as http_client,
            Client(
                streamable_http_client(f"{http.base_url}/mcp", http_client=http_client)
            ) as agent,
        ):
            return await agent.call_tool(tool, dict(arguments))

    result = asyncio.run(call())
    (image,) = [content for content in result.content if isinstance(content, ImageContent)]
    return base64.b64decode(image.data)


def generated(http: httpx.Client, body: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the output file of `POST /v1/generate` and the digest of its pixels."""
    headers = {"Prefer": f"wait={END_S}"}
    job = http.post("/v1/generate", json=body, headers=headers).raise_for_status().json()
    (output,) = job["outputs"]
    return http.get(output["url"]).raise_for_status().content, output["pixels_sha256"]


def digest_of_pixels(data: bytes) -> str:
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    return hashlib.sha256(pixels.tobytes()).hexdigest()


def default_guidance(http: httpx.Client, model: str) -> float:
    """Return the model's default guidance scale, for clients that always send a scale."""
    defaults = http.get(f"/v1/models/{model}").raise_for_status().json()["defaults"]
    return float(defaults.get("guidance_scale", 1.0))

"""The OpenAI SDK's client with timeouts for tests."""

from __future__ import annotations

from openai import AsyncOpenAI

TIMEOUT_S = 300.0
"""Applies to connecting too, where the SDK's default is 5 s."""


def openai_client(address: str, key: str = "none", max_retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{address}/v1", api_key=key, max_retries=max_retries, timeout=TIMEOUT_S
    )

"""The openai SDK's client with the limits of tests."""

from __future__ import annotations

from openai import AsyncOpenAI

TIMEOUT_S = 300.0
"""For connecting too, for which the SDK's own limit is 5 s."""


def openai_client(address: str, key: str = "none", max_retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{address}/v1", api_key=key, max_retries=max_retries, timeout=TIMEOUT_S
    )

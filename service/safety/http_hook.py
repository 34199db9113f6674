"""Safety hook that calls an operator's HTTP service."""

from __future__ import annotations

import asyncio

import httpx

from service.safety.safety_check import SafetyCheck
from service.safety.verdict import NoVerdict, Verdict, verdict_of_json
from service.settings.safety import SafetySettings

MAX_ANSWER_BYTES = 2**16


class HttpHook:
    """Safety hook that sends a POST. Only status 200 with a verdict counts as an answer.

    The URL is the operator's, so it may be on a private network. Proxy variables are ignored, and
    redirects are not followed.
    """

    def __init__(self, settings: SafetySettings) -> None:
        assert settings.url
        token = settings.token
        bearer = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
        self._url = settings.url
        self._http = httpx.AsyncClient(
            timeout=settings.timeout_s,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=settings.max_checks),
            headers={"Content-Type": "application/json", "User-Agent": "atelier", **bearer},
        )

    async def verdict(self, safety_check: SafetyCheck) -> Verdict:
        """Call the operator's safety service for one verdict. Raises: NoVerdict."""
        body = await asyncio.to_thread(safety_check.body)
        try:
            async with self._http.stream("POST", self._url, content=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise NoVerdict(f"it responded with {answer.status_code}")
                return verdict_of_json(await _read(answer))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoVerdict(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close the connections to the operator's service."""
        await self._http.aclose()


async def _read(answer: httpx.Response) -> bytes:
    """Read the safety service's response. Raises: NoVerdict: too long."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise NoVerdict(f"its response has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)

"""Safety hook behind an address: an HTTP service of the operator's."""

from __future__ import annotations

import asyncio

import httpx

from service.safety.question import Question
from service.safety.verdict import SafetyAbsent, Verdict, verdict_of_json
from service.settings.safety import SafetySettings

MAX_ANSWER_BYTES = 2**16


class HttpHook:
    """Asks by POST; only a 200 with a verdict is an answer.

    The address is the operator's own, so it may lie on a private network. No proxy of the
    environment is used, and no redirect followed.
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

    async def ask(self, question: Question) -> Verdict:
        """Ask once. Raises: SafetyAbsent."""
        body = await asyncio.to_thread(question.body)
        try:
            async with self._http.stream("POST", self._url, content=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise SafetyAbsent(f"it answered {answer.status_code}")
                return verdict_of_json(await _read(answer))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SafetyAbsent(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()


async def _read(answer: httpx.Response) -> bytes:
    """Raises: SafetyAbsent: it is too long."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise SafetyAbsent(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)

"""A server under load, by HTTP: one request from its sending to its files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx

from deploy.bench.serving.answer import LOST, REFUSED, SUCCEEDED, UNREACHABLE, Answer, lifetime_s
from service.client import EventReader, JobEvent, ServiceUnreachable, checked
from service.jobs.model.state_machine import ENDED

TIMEOUT_S = httpx.Timeout(60, connect=10, pool=None)
"""Timeouts: reads outlast the pauses between keep-alive comments; a wait for a connection is not
the server's fault, and has no limit."""
IDLE_S = 2.0
"""Time that a connection is kept for the next request: less than servers keep theirs, or requests
would go into connections that have just been closed."""
PAUSE_S, MOST_PAUSE_S = 0.1, 5.0
"""Pauses before the next try to reach a server that was lost while a job was followed."""
NOT_UNDERSTOOD = (ValueError, KeyError, TypeError)
"""Errors of reading an answer that is none of this API's."""
FOR_POSTS = 8
"""Number of connections of which one is for sending; the others may follow jobs."""


class Server:
    """Use as an async context manager.

    Args:
        keys: API keys by tenant; `None` is for all that are not named.
        connections: open ones at the most.
        fetch: whether the files are read, too, as a user would.
    """

    def __init__(
        self, url: str, keys: Mapping[str | None, str], connections: int, fetch: bool = True
    ) -> None:
        limits = httpx.Limits(max_connections=connections, keepalive_expiry=IDLE_S)
        self._http = httpx.AsyncClient(
            base_url=url, timeout=TIMEOUT_S, limits=limits, follow_redirects=True
        )
        self._keys = keys
        self._fetch = fetch
        self._streams = asyncio.Semaphore(max(1, connections - max(1, connections // FOR_POSTS)))
        self.lost = 0
        """Connections that broke while a job was followed."""
        self.followed_late = 0
        """Jobs that had ended before a connection was free to follow them. Their end is taken from
        the server's clock."""

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self, tenant: str | None = None) -> dict[str, bool]:
        """Names of the models → whether a pool serves it now. Raises: Problem, Unreachable."""
        try:
            answer = await self._http.get("/v1/models", headers=self._headers(tenant))
            return {model["name"]: model["ready"] for model in checked(answer).json()["data"]}
        except httpx.HTTPError as error:
            said = f"no server answers at {self._http.base_url} ({error})"
            raise ServiceUnreachable(said) from error
        except NOT_UNDERSTOOD as error:
            said = f"what answers at {self._http.base_url} has no list of models"
            raise ServiceUnreachable(said) from error

    async def ask(self, answer: Answer) -> None:
        """Send a request that has its turn now, and see it through. Nothing of it is an error."""
        sent = time.perf_counter()
        try:
            response = await self._post(answer)
            accepted = time.perf_counter()
            if response.is_error:
                return _refused(answer, response)
            answer.accept_s, answer.job_id = accepted - sent, response.json()["id"]
        except (httpx.HTTPError, *NOT_UNDERSTOOD) as error:
            answer.outcome, answer.reason = UNREACHABLE, type(error).__name__
            return
        async with self._streams:
            began = time.perf_counter()
            job, ended = await self._followed(answer)
            try:
                lifetime = lifetime_s(job)
                answer.tell(job)
            except NOT_UNDERSTOOD as error:
                answer.outcome, answer.reason = LOST, f"its end: {type(error).__name__}"
                return
            if lifetime is not None and lifetime < began - accepted:
                self.followed_late += 1
                ended = accepted + lifetime
            fetched_s = await self._files(answer, job)
        answer.whole_s = answer.late_s + ended - sent + fetched_s
        answer.fetch_s = fetched_s if self._fetch else None

    async def cancel(self, answer: Answer) -> None:
        """Leave no work behind."""
        with suppress(httpx.HTTPError):
            await self._http.post(
                f"/v1/jobs/{answer.job_id}/cancel", headers=self._headers(answer.ask.tenant)
            )

    async def _post(self, answer: Answer) -> httpx.Response:
        body = dict(answer.ask.request)
        if answer.deadline_s is not None:
            body["deadline_s"] = answer.deadline_s
        return await self._http.post(
            "/v1/generate", json=body, headers=self._headers(answer.ask.tenant)
        )

    async def _followed(self, answer: Answer) -> tuple[dict[str, Any], float]:
        """Follow a job to its end, across lost connections.

        Returns the job, and when its end was told.
        """
        last, pause_s = "0", PAUSE_S
        while True:
            try:
                async with aclosing(self._events(answer, last)) as events:
                    async for event in events:
                        last, pause_s = event.id or last, PAUSE_S
                        if event.name in ENDED:
                            ended = time.perf_counter()
                            await anext(events, None)  # a stream read to its end is used again
                            return await self._whole(answer, event), ended
            except httpx.HTTPStatusError as error:
                if error.response.is_client_error:  # deleted meanwhile, or the key was revoked
                    said = f"HTTP status {error.response.status_code}"
                    return {"state": LOST, "error": {"code": said}}, time.perf_counter()
                self.lost += 1
            except (httpx.HTTPError, *NOT_UNDERSTOOD):
                self.lost += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    async def _events(self, answer: Answer, last: str) -> AsyncGenerator[JobEvent]:
        """Raises: httpx.HTTPError; ValueError: they are none."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        headers |= self._headers(answer.ask.tenant)
        path, reader = f"/v1/jobs/{answer.job_id}/events", EventReader()
        async with self._http.stream("GET", path, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if event := reader.line(line):
                    yield event

    async def _whole(self, answer: Answer, end: JobEvent) -> dict[str, Any]:
        """The job itself, which comes with the event of its end, or has to be asked for."""
        if "state" in end.data:
            return end.data
        headers = self._headers(answer.ask.tenant)
        response = await self._http.get(f"/v1/jobs/{answer.job_id}", headers=headers)
        job: dict[str, Any] = response.json() if response.is_success else {"state": end.name}
        return job

    async def _files(self, answer: Answer, job: Mapping[str, Any]) -> float:
        """Seconds that they took."""
        if not self._fetch or answer.outcome != SUCCEEDED:
            return 0.0
        began, headers = time.perf_counter(), self._headers(answer.ask.tenant)
        try:
            for output in job["outputs"]:
                (await self._http.get(output["url"], headers=headers)).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL, *NOT_UNDERSTOOD) as error:
            answer.outcome, answer.reason = UNREACHABLE, f"output: {type(error).__name__}"
        return time.perf_counter() - began

    def _headers(self, tenant: str | None) -> dict[str, str]:
        key = self._keys.get(tenant) or self._keys.get(None)
        return {"Authorization": f"Bearer {key}"} if key else {}


def _refused(answer: Answer, response: httpx.Response) -> None:
    """Record a refusal by the server's code; by its status where it gives none."""
    answer.outcome, answer.status = REFUSED, response.status_code
    with suppress(ValueError, AttributeError):
        problem = response.json()
        answer.detail = problem.get("detail")
        answer.reason = (problem.get("error") or {}).get("code")
    answer.reason = answer.reason or "no reason given"
    with suppress(KeyError, ValueError):
        answer.retry_after_s = float(response.headers["retry-after"])

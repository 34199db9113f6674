"""HTTP client of a server under load: follows one request from sending to its files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx

from deploy.bench.serving.request_outcome import (
    LOST,
    REFUSED,
    SUCCEEDED,
    UNREACHABLE,
    RequestOutcome,
    lifetime_s,
)
from service.client import EventReader, JobEvent, ServiceUnreachable, checked, without_proxy
from service.jobs.model.state_machine import ENDED

TIMEOUT_S = httpx.Timeout(60, connect=10, pool=None)
"""Timeouts. Reads outlast the pauses between keep-alive comments. Waiting for a free connection has
no limit, because it is not the server's fault."""
IDLE_S = 2.0
"""Idle time of pooled connections: shorter than that of servers, which might close a connection as
it is reused."""
PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Pauses between reconnections while a job is followed."""
NOT_UNDERSTOOD = (ValueError, KeyError, TypeError)
"""Errors of parsing an unexpected response."""
FOR_POSTS = 8
"""One of this many connections is reserved for sending; the others may follow jobs."""


class Server:
    """HTTP client of the server under load. Use as an async context manager.

    Args:
        keys: API keys by tenant; `None` is the key of all others.
        connections: maximum number of open connections.
        fetch: whether to download the files, like a user.
    """

    def __init__(
        self, url: str, keys: Mapping[str | None, str], connections: int, fetch: bool = True
    ) -> None:
        limits = httpx.Limits(max_connections=connections, keepalive_expiry=IDLE_S)
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=TIMEOUT_S,
            limits=limits,
            follow_redirects=True,
            mounts=without_proxy(url),
        )
        self._keys = keys
        self._fetch = fetch
        self._streams = asyncio.Semaphore(max(1, connections - max(1, connections // FOR_POSTS)))
        self.lost = 0
        """Number of connections lost while following a job."""
        self.followed_late = 0
        """Number of jobs that ended before a connection was free to follow them; their end is taken
        from the server's clock."""

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self, tenant: str | None = None) -> dict[str, bool]:
        """Return whether a worker serves each model. Raises: ApiError, ServiceUnreachable."""
        return {
            name: bool(model.get("ready")) for name, model in (await self.listed(tenant)).items()
        }

    async def listed(self, tenant: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the models that `GET /v1/models` lists, by name.

        Raises: ApiError, ServiceUnreachable.
        """
        try:
            answer = await self._http.get("/v1/models", headers=self._headers(tenant))
            return {model["name"]: model for model in checked(answer).json()["data"]}
        except httpx.HTTPError as error:
            message = f"no server answers at {self._http.base_url} ({error})"
            raise ServiceUnreachable(message) from error
        except NOT_UNDERSTOOD as error:
            message = f"the server at {self._http.base_url} has no list of models"
            raise ServiceUnreachable(message) from error

    async def execute(self, answer: RequestOutcome) -> None:
        """Send a request now, and follow it to its end. All errors become outcomes."""
        sent = time.perf_counter()
        try:
            response = await self._post(answer)
            accepted = time.perf_counter()
            if response.is_error:
                return _refused(answer, response)
            answer.accept_s, answer.job_id = accepted - sent, response.json()["id"]
            answer.is_hit = response.headers.get("x-atelier-cache") == "hit"
        except (httpx.HTTPError, *NOT_UNDERSTOOD) as error:
            answer.outcome, answer.reason = UNREACHABLE, type(error).__name__
            return
        async with self._streams:
            began = time.perf_counter()
            job, ended = await self._followed(answer)
            try:
                lifetime = lifetime_s(job)
                answer.record_job(job)
            except NOT_UNDERSTOOD as error:
                answer.outcome, answer.reason = LOST, f"its end: {type(error).__name__}"
                return
            if lifetime is not None and lifetime < began - accepted:
                self.followed_late += 1
                ended = accepted + lifetime
            fetched_s = await self._files(answer, job)
        answer.whole_s = answer.late_s + ended - sent + fetched_s
        answer.fetch_s = fetched_s if self._fetch else None

    async def cancel(self, answer: RequestOutcome) -> None:
        """Cancel a request's job; ignores connection errors."""
        with suppress(httpx.HTTPError):
            await self._http.post(
                f"/v1/jobs/{answer.job_id}/cancel",
                headers=self._headers(answer.timed_request.tenant),
            )

    async def _post(self, answer: RequestOutcome) -> httpx.Response:
        body = dict(answer.timed_request.request)
        if answer.deadline_s is not None:
            body["deadline_s"] = answer.deadline_s
        return await self._http.post(
            "/v1/generate", json=body, headers=self._headers(answer.timed_request.tenant)
        )

    async def _followed(self, answer: RequestOutcome) -> tuple[dict[str, Any], float]:
        """Follow a job to its end, across lost connections.

        Returns the job, and the time of its end event.
        """
        last, pause_s = "0", PAUSE_S
        while True:
            try:
                async with aclosing(self._events(answer, last)) as events:
                    async for event in events:
                        last, pause_s = event.id or last, PAUSE_S
                        if event.name in ENDED:
                            ended = time.perf_counter()
                            # read to the end, so the connection is reused
                            await anext(events, None)
                            return await self._whole(answer, event), ended
            except httpx.HTTPStatusError as error:
                if error.response.is_client_error:  # deleted, or the key was revoked
                    code = f"HTTP status {error.response.status_code}"
                    return {"state": LOST, "error": {"code": code}}, time.perf_counter()
                self.lost += 1
            except (httpx.HTTPError, *NOT_UNDERSTOOD):
                self.lost += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _events(self, answer: RequestOutcome, last: str) -> AsyncGenerator[JobEvent]:
        """Yield the events of a job. Raises: httpx.HTTPError; ValueError: malformed events."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        headers |= self._headers(answer.timed_request.tenant)
        path, reader = f"/v1/jobs/{answer.job_id}/events", EventReader()
        async with self._http.stream("GET", path, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if event := reader.line(line):
                    yield event

    async def _whole(self, answer: RequestOutcome, end: JobEvent) -> dict[str, Any]:
        """Return the job from its end event, or fetch it if the event lacks it."""
        if "state" in end.data:
            return end.data
        headers = self._headers(answer.timed_request.tenant)
        response = await self._http.get(f"/v1/jobs/{answer.job_id}", headers=headers)
        job: dict[str, Any] = response.json() if response.is_success else {"state": end.name}
        return job

    async def _files(self, answer: RequestOutcome, job: Mapping[str, Any]) -> float:
        """Download the output files of a successful job; return the seconds."""
        if not self._fetch or answer.outcome != SUCCEEDED:
            return 0.0
        began, headers = time.perf_counter(), self._headers(answer.timed_request.tenant)
        try:
            for output in job["outputs"]:
                (await self._http.get(output["url"], headers=headers)).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL, *NOT_UNDERSTOOD) as error:
            answer.outcome, answer.reason = UNREACHABLE, f"output: {type(error).__name__}"
        return time.perf_counter() - began

    def _headers(self, tenant: str | None) -> dict[str, str]:
        key = self._keys.get(tenant) or self._keys.get(None)
        return {"Authorization": f"Bearer {key}"} if key else {}


def _refused(answer: RequestOutcome, response: httpx.Response) -> None:
    """Record a request's refusal with the server's error code."""
    answer.outcome, answer.status = REFUSED, response.status_code
    with suppress(ValueError, AttributeError):
        problem = response.json()
        answer.detail = problem.get("detail")
        answer.reason = (problem.get("error") or {}).get("code")
    answer.reason = answer.reason or "no reason given"
    with suppress(KeyError, ValueError):
        answer.retry_after_s = float(response.headers["retry-after"])

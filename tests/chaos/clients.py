"""Clients that each submit one order and retry as the API allows."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.chaos.history import Answer, OrderResult
from tests.chaos.orders import AUDITION, SHORT_S, FollowUp, Order

GENERATE = "/v1/generate"
ANSWER_S = 15.0
"""Time-out after which a client treats its connection as broken."""
DONE_S = 120.0
"""Time for an undisturbed job on a busy machine."""
VERDICT_S = 5.0
"""Time that a request waits for its verdict, less than `ANSWER_S`."""
PAUSE_S = 0.3
TRIES = 200
"""Maximum attempts of one order, enough for minutes of unavailability."""
ENDED_S = 1800.0
"""Time until an accepted job ends, on a slow machine with many others before it."""


class Client:
    """HTTP client that alternates between front ends.

    Args:
        fronts: addresses of the front ends.
        api_keys: API keys by tenant.
    """

    def __init__(self, fronts: Sequence[str], api_keys: Mapping[str, str]) -> None:
        self._fronts = fronts
        self._keys = api_keys
        self._requests_sent = 0
        self.statuses: Counter[str] = Counter()
        """Statuses of responses to `POST /v1/generate`."""
        self.codes: Counter[str] = Counter()
        """Error codes of those that were refused."""
        self.unanswered = 0
        """Number of `POST /v1/generate` whose connection broke."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        tenant: str,
        headers: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> httpx.Response:
        """Send a request once, to the next front end. Raises: httpx.TransportError."""
        self._requests_sent += 1
        front = self._fronts[self._requests_sent % len(self._fronts)]
        sent = {"Authorization": f"Bearer {self._keys[tenant]}", **(headers or {})}
        try:
            response = await self._http.request(method, front + path, headers=sent, **rest)
        except httpx.TransportError:
            self.unanswered += path == GENERATE
            raise
        if path == GENERATE:
            self.statuses[str(response.status_code)] += 1
            if response.is_error:
                self.codes[response.json()["error"]["code"]] += 1
        return response

    async def until_answered(
        self, method: str, path: str, tenant: str, **rest: Any
    ) -> httpx.Response:
        """Repeat an idempotent request until it is answered. Raises: TimeoutError."""
        for _ in range(TRIES):
            try:
                response = await self.request(method, path, tenant, **rest)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code != 503:
                return response
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{method} {path} was never answered")

    async def until_done(self, body: Mapping[str, Any], tenant: str) -> dict[str, Any]:
        """Submit a request and return its job once it has succeeded or paused."""
        headers = {"Prefer": f"wait={DONE_S:.0f}"}
        sent = {"headers": headers, "json": body, "timeout": DONE_S}
        response = await self.until_answered("POST", "/v1/generate", tenant, **sent)
        job: dict[str, Any] = response.json()
        assert job.get("state") in ("succeeded", "paused"), job
        return job

    async def place(self, order: Order) -> OrderResult:
        """Submit an order until accepted, repeat it as the order says, then cancel, delete,
        continue or verify it."""
        result = OrderResult(order)
        if not await self._post_all(result):
            return result
        job = f"/v1/jobs/{result.jobs[0]}"
        if order.then is FollowUp.CANCELS:
            await self._stop(result, "POST", f"{job}/cancel", 200)
        elif order.then is FollowUp.DELETES:
            await self._stop(result, "DELETE", job, 204, 404)
            result.is_deleted = True
        elif order.request == AUDITION:
            await self._continue(result)
        elif order.then is FollowUp.VERIFIES:
            await self._verify(result)
        return result

    async def _ended(self, result: OrderResult) -> dict[str, Any]:
        """Return the order's job once it has ended, or as it is after `ENDED_S`."""
        path, until_s = f"/v1/jobs/{result.jobs[0]}", time.monotonic() + ENDED_S
        while True:
            response = await self.until_answered("GET", path, result.order.tenant)
            assert response.is_success, (path, response.status_code, response.text)
            job: dict[str, Any] = response.json()
            if job["state"] not in ("queued", "running") or time.monotonic() > until_s:
                return job
            await asyncio.sleep(PAUSE_S)

    async def _verify(self, result: OrderResult) -> None:
        """Have an output of the job verified once the job has succeeded."""
        order, job = result.order, await self._ended(result)
        if job["state"] != "succeeded":
            return
        output = job["outputs"][order.number % len(job["outputs"])]
        headers = {
            "Idempotency-Key": f"verification of {order.number}",
            "Prefer": f"wait={VERDICT_S:.0f}",
        }
        body = {"job": job["id"], "output": output["index"]}
        for _ in range(TRIES):
            response = await self.until_answered(
                "POST", "/v1/verify", order.tenant, headers=headers, json=body
            )
            if response.status_code == 200:
                result.verdicts.append(response.json()["verdict"])
                return
            if response.is_error:
                result.answers.append(_error_response(response))
            await asyncio.sleep(PAUSE_S)

    async def _continue(self, result: OrderResult) -> None:
        """Continue an audition once it is paused, twice with the same idempotency key."""
        job, tenant = f"/v1/jobs/{result.jobs[0]}", result.order.tenant
        if (await self._ended(result))["state"] != "paused":
            return
        headers = {"Idempotency-Key": f"the rest of {result.order.number}"}
        ids = set()
        for _ in range(TRIES):
            response = await self.until_answered(
                "POST", f"{job}/continue", tenant, headers=headers, json={}
            )
            if response.is_success:
                ids.add(response.json()["id"])
                if result.continued:
                    break
                result.continued = sorted(ids)
            await asyncio.sleep(PAUSE_S)
        result.continued = sorted(ids)

    async def _post_all(self, result: OrderResult) -> bool:
        """Post the order and its repetitions, concurrently or one after the other."""
        times = 1 + result.order.repeats
        if result.order.at_once:
            return all(await asyncio.gather(*(self._post(result) for _ in range(times))))
        for _ in range(times):
            if not await self._post(result):
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    async def _stop(self, result: OrderResult, method: str, path: str, *expected: int) -> None:
        """Cancel or delete the job; 404 is expected if an earlier response was lost."""
        response = await self.until_answered(method, path, result.order.tenant)
        if response.status_code not in expected:
            result.answers.append(_error_response(response))

    async def _post(self, result: OrderResult) -> bool:
        """Retry a post; returns whether it was finally accepted."""
        for _ in range(TRIES):
            if await self._try(result) or result.gave_up:
                return not result.gave_up
            await asyncio.sleep(PAUSE_S)
        return False

    async def _try(self, result: OrderResult) -> bool:
        order = result.order
        headers = {"Idempotency-Key": order.key} if order.key else {}
        try:
            response = await self.request(
                "POST", "/v1/generate", order.tenant, headers, json=order.body
            )
        except httpx.TransportError as error:
            if order.key is None:
                result.gave_up = f"it may have been accepted: {error!r}"
            return False
        if response.is_success:
            result.jobs.append(response.json()["id"])
            return True
        error_answer = _error_response(response)
        result.answers.append(error_answer)
        if error_answer.is_hopeless or (error_answer.status == 429 and order.deadline_s == SHORT_S):
            result.gave_up = "it would be too late"
        elif error_answer.status >= 500 and order.key is None:
            result.gave_up = f"it may have been accepted: {error_answer.body}"
        return False


def _error_response(answer: httpx.Response) -> Answer:
    return Answer(answer.status_code, answer.headers.get("retry-after"), answer.text)

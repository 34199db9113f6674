"""Clients: each wants one thing, and goes on asking as a client may."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.chaos.history import Answer, Asked
from tests.chaos.orders import AUDITION, SHORT_S, Order, Then

GENERATE = "/v1/generate"
ANSWER_S = 15.0
"""After which a client takes its connection for broken."""
DONE_S = 120.0
"""Until an undisturbed job is done, on a busy machine."""
PAUSE_S = 0.3
TRIES = 200
"""Of one order: minutes of a system that is not there."""


class Client:
    """Asks one front end after the other.

    Args:
        fronts: their addresses.
        api_keys: by tenant.
    """

    def __init__(self, fronts: Sequence[str], api_keys: Mapping[str, str]) -> None:
        self._fronts = fronts
        self._keys = api_keys
        self._asked = 0
        self.statuses: Counter[str] = Counter()
        """Statuses of answers to requests for a job."""
        self.unanswered = 0
        """Requests for a job whose connection broke."""
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
        """One try, at the front end whose turn it is. Raises: httpx.TransportError."""
        self._asked += 1
        front = self._fronts[self._asked % len(self._fronts)]
        sent = {"Authorization": f"Bearer {self._keys[tenant]}", **(headers or {})}
        try:
            answer = await self._http.request(method, front + path, headers=sent, **rest)
        except httpx.TransportError:
            self.unanswered += path == GENERATE
            raise
        if path == GENERATE:
            self.statuses[str(answer.status_code)] += 1
        return answer

    async def until_answered(
        self, method: str, path: str, tenant: str, **rest: Any
    ) -> httpx.Response:
        """Of requests that may be repeated. Raises: TimeoutError."""
        for _ in range(TRIES):
            try:
                answer = await self.request(method, path, tenant, **rest)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code != 503:
                return answer
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{method} {path} was never answered")

    async def until_done(self, body: Mapping[str, Any], tenant: str) -> dict[str, Any]:
        """The job of a request, when it has succeeded."""
        headers = {"Prefer": f"wait={DONE_S:.0f}"}
        sent = {"headers": headers, "json": body, "timeout": DONE_S}
        answer = await self.until_answered("POST", "/v1/generate", tenant, **sent)
        job: dict[str, Any] = answer.json()
        assert job.get("state") in ("succeeded", "paused"), job
        return job

    async def place(self, order: Order) -> Asked:
        """Post it until it is accepted, and again as often as the order says."""
        asked = Asked(order)
        if not await self._post_all(asked):
            return asked
        job = f"/v1/jobs/{asked.jobs[0]}"
        if order.then is Then.CANCELS:
            await self._stop(asked, "POST", f"{job}/cancel", 200)
        elif order.then is Then.DELETES:
            await self._stop(asked, "DELETE", job, 204, 404)
            asked.is_deleted = True
        elif order.request == AUDITION:
            await self._continue(asked)
        return asked

    async def _continue(self, asked: Asked) -> None:
        """Ask for the rest of an audition once it is paused, and again with the same key."""
        job, tenant = f"/v1/jobs/{asked.jobs[0]}", asked.order.tenant
        state = "queued"
        for _ in range(TRIES):
            answer = await self.until_answered("GET", job, tenant)
            assert answer.is_success, (job, answer.status_code, answer.text)
            state = answer.json()["state"]
            if state not in ("queued", "running"):
                break
            await asyncio.sleep(PAUSE_S)
        if state != "paused":
            return
        headers = {"Idempotency-Key": f"the rest of {asked.order.number}"}
        found = set()
        for _ in range(TRIES):
            answer = await self.until_answered(
                "POST", f"{job}/continue", tenant, headers=headers, json={}
            )
            if answer.is_success:
                found.add(answer.json()["id"])
                if asked.continued:
                    break
                asked.continued = sorted(found)
            await asyncio.sleep(PAUSE_S)
        asked.continued = sorted(found)

    async def _post_all(self, asked: Asked) -> bool:
        """All at once, or each when the one before was accepted."""
        times = 1 + asked.order.repeats
        if asked.order.at_once:
            return all(await asyncio.gather(*(self._post(asked) for _ in range(times))))
        for _ in range(times):
            if not await self._post(asked):
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    async def _stop(self, asked: Asked, method: str, path: str, *expected: int) -> None:
        """404 where an answer got lost that told of it."""
        answer = await self.until_answered(method, path, asked.order.tenant)
        if answer.status_code not in expected:
            asked.answers.append(_told(answer))

    async def _post(self, asked: Asked) -> bool:
        """Whether it was accepted in the end."""
        for _ in range(TRIES):
            if await self._try(asked) or asked.gave_up:
                return not asked.gave_up
            await asyncio.sleep(PAUSE_S)
        return False

    async def _try(self, asked: Asked) -> bool:
        order = asked.order
        headers = {"Idempotency-Key": order.key} if order.key else {}
        try:
            answer = await self.request(
                "POST", "/v1/generate", order.tenant, headers, json=order.body
            )
        except httpx.TransportError as error:
            if order.key is None:
                asked.gave_up = f"it may have been accepted: {error!r}"
            return False
        if answer.is_success:
            asked.jobs.append(answer.json()["id"])
            return True
        told = _told(answer)
        asked.answers.append(told)
        if told.is_hopeless or (told.status == 429 and order.deadline_s == SHORT_S):
            asked.gave_up = "it would be too late"
        elif told.status >= 500 and order.key is None:
            asked.gave_up = f"it may have been accepted: {told.body}"
        return False


def _told(answer: httpx.Response) -> Answer:
    return Answer(answer.status_code, answer.headers.get("retry-after"), answer.text)

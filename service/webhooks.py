"""Telling a client's address that its job has ended: signed, at least once, across restarts.

What is still to be told lies in Redis beside the jobs:

| key                 | type | holds                                                          |
|---------------------|------|----------------------------------------------------------------|
| `webhooks`          | zset | ids of jobs with a webhook, by when to look at them (again)    |
| `webhooks:attempts` | hash | id of the job: how often its delivery was tried                |

An id is written before its job is put, and leaves when the address has taken the message, has said
that it is gone (410), or has failed too often. Each front end delivers what it takes; an id that is
taken comes back by itself if that front end dies.

Source: the Standard Webhooks specification, version 1.0.0.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import httpx
from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.jobs import connection, spans
from service.jobs.about import note
from service.jobs.job import Job
from service.jobs.keys import PREFIX
from service.settings import ConfigError, Settings, WebhookSettings
from service.views import view_job

log = logging.getLogger("atelier")

PENDING = PREFIX + "webhooks"
ATTEMPTS = PREFIX + "webhooks:attempts"
BATCH = 16
"""Messages that one front end sends at the same time."""
ORPHAN_S = 3600.0
"""An id whose job is not there is kept for so long."""

TAKE = """
-- Takes ids of ended jobs whose time has come, and puts them off until the lease is over.
-- KEYS: webhooks, webhooks:attempts, ended, jobs
-- ARGV: lease in seconds, ids at most, how long an id without a job is kept
-- Gives: {id, attempt, …}
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local taken = {}
local ended = redis.call('ZINTER', 2, KEYS[1], KEYS[3], 'WEIGHTS', 1, 0, 'WITHSCORES')
for i = 1, #ended, 2 do
  if tonumber(ended[i + 1]) <= now and #taken < 2 * ARGV[2] then
    redis.call('ZADD', KEYS[1], now + ARGV[1], ended[i])
    taken[#taken + 1] = ended[i]
    taken[#taken + 1] = redis.call('HINCRBY', KEYS[2], ended[i], 1)
  end
end
for _, id in ipairs(redis.call('ZDIFF', 2, KEYS[1], KEYS[4])) do
  if tonumber(redis.call('ZSCORE', KEYS[1], id)) < now - ARGV[3] then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
  end
end
return taken
"""


class Pending:
    """The ids in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._take = redis.register_script(TAKE)

    async def add(self, job_id: str) -> None:
        await self._redis.zadd(PENDING, {job_id: time.time()})

    async def take(self, lease_s: float) -> list[tuple[str, int]]:
        """Ids whose jobs have ended, and the number of this attempt."""
        keys = [PENDING, ATTEMPTS, PREFIX + "ended", PREFIX + "jobs"]
        flat = await self._take(keys=keys, args=[lease_s, BATCH, ORPHAN_S])
        return list(zip(flat[::2], map(int, flat[1::2]), strict=True))

    async def put_off(self, job_id: str, seconds: float) -> None:
        await self._redis.zadd(PENDING, {job_id: time.time() + seconds}, xx=True)

    async def drop(self, job_id: str) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(PENDING, job_id)
            pipe.hdel(ATTEMPTS, job_id)
            await pipe.execute()

    async def close(self) -> None:
        await self._redis.aclose()


def secret_bytes(secret: str) -> bytes:
    """`whsec_…` → the key. Raises: ConfigError."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ConfigError("webhooks.secret: must be whsec_ and the base64 of 24 to 64 bytes")
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that go with a body."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


def payload(job: Job) -> bytes:
    """What is told of an ended job."""
    told = {
        "type": f"job.{job.state}",
        "timestamp": datetime.fromtimestamp(job.finished_at or 0, UTC).isoformat(),
        "data": view_job(job).model_dump(mode="json"),
    }
    return json.dumps(told).encode()


class Webhooks:
    """Sends what is pending, as long as `keep_sending` runs."""

    def __init__(
        self, settings: WebhookSettings, key: bytes, pending: Pending, http: httpx.AsyncClient
    ) -> None:
        self._settings = settings
        self._key = key
        self._http = http
        self.pending = pending

    @classmethod
    def make(cls, settings: Settings, http: httpx.AsyncClient) -> Webhooks | None:
        """None where there is no secret to sign with. Raises: ConfigError."""
        secret = settings.webhooks.secret
        if secret is None:
            return None
        key = secret_bytes(secret.get_secret_value())
        return cls(settings.webhooks, key, Pending(connection.client(settings.redis)), http)

    async def keep_sending(self, get: Callable[[str], Awaitable[Job | None]]) -> None:
        """Look for ended jobs every `poll_every_s`, and tell of them.

        Args:
            get: a job by its id.
        """
        while True:
            try:
                taken = await self.pending.take(2 * self._settings.timeout_s)
                await asyncio.gather(*(self._settle(get, *entry) for entry in taken))
            except (RedisError, OSError) as error:
                log.warning("could not send webhooks: %s", error)
            await asyncio.sleep(self._settings.poll_every_s)

    async def _settle(
        self, get: Callable[[str], Awaitable[Job | None]], job_id: str, attempt: int
    ) -> None:
        """One attempt, and what follows from it."""
        note(job=job_id)  # a task of its own has this one attempt
        job = await get(job_id)
        wanted = job and job.request.get("webhook")
        if not job or not wanted or job.state not in wanted["events"]:
            return await self.pending.drop(job_id)
        note(tenant=job.tenant, trace_id=spans.trace_of(job.traceparent))
        if await self._send(wanted["url"], job) or attempt >= self._settings.max_attempts:
            return await self.pending.drop(job_id)
        pause_s = self._settings.retry_s * 2 ** (attempt - 1)
        await self.pending.put_off(job_id, pause_s * random.uniform(1, 1.2))

    async def _send(self, url: str, job: Job) -> bool:
        """Whether the address has taken it, or wants no more."""
        body = payload(job)
        headers = sign(self._key, f"msg_{job.id}_{job.state}", int(time.time()), body)
        headers["Content-Type"] = "application/json"
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream("POST", url, content=body, headers=headers) as answer,
            ):
                return answer.is_success or answer.status_code == httpx.codes.GONE
        except (httpx.HTTPError, TimeoutError) as error:
            log.info("the webhook of %s was not taken: %s", job.id, error)
            return False

"""Telling a client's address that its job has ended: signed, at least once, across restarts.

What is still to be told lies in Redis beside the jobs (`service/jobs/webhook_messages.py`): it
comes with a job's end, and leaves when the address has taken the message, has said that it is gone
(410), or has failed too often. Each front end sends what it takes, some of a tenant and to a host
at a time; what is taken comes back by itself if that front end dies.

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
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import httpx
from redis.exceptions import RedisError

from service.http import fetch
from service.http.fair_limiter import FairLimiter
from service.jobs.model.job import DEFAULT_TENANT, Job
from service.jobs.queue import Announcement, Queue
from service.schemas.response import view_job
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.settings.webhooks import WebhookSettings
from service.tracing import spans
from service.tracing.log_context import note
from service.webhooks.secrets import WebhookSecrets

log = logging.getLogger("atelier")

MOST, EACH, PER_HOST = 64, 8, 16
"""Messages that one front end sends at the same time: in all, of a tenant, and to a host, which no
tenant fills alone."""


def secret_bytes(secret: str) -> bytes:
    """`whsec_…` → the key. Raises: ConfigError."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ConfigError("webhooks.secret: must be whsec_ and the base64 of 24 to 64 bytes")
    return key


def sign(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that go with a body: a signature by each of the keys."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(d).decode()}" for d in digests),
    }


def payload(job: Job, retention_s: float) -> bytes:
    """Return the body of the message about an ended job, which is kept for so long."""
    message = {
        "type": f"job.{job.state}",
        "timestamp": datetime.fromtimestamp(job.finished_at or 0, UTC).isoformat(),
        "data": view_job(job, retention_s=retention_s).model_dump(mode="json"),
    }
    return json.dumps(message).encode()


class Keys:
    """Keys that a tenant's messages are signed with: by its own secrets, never by another's.

    `webhooks.secret` is that of the tenant `default`: of everybody where no API keys are wanted.
    """

    def __init__(self, settings: WebhookSettings, stored: WebhookSecrets) -> None:
        """Raises: ConfigError."""
        secret = settings.secret
        self._own = [secret_bytes(secret.get_secret_value())] if secret else []
        self._stored = stored

    async def of(self, tenant: str) -> list[bytes]:
        """The newest first; none: nothing can be sent."""
        found = [secret_bytes(one.text) for one in await self._stored.of(tenant)]
        return found + (self._own if tenant == DEFAULT_TENANT else [])


class Webhooks:
    """Sends what is due, as long as `keep_sending` runs."""

    def __init__(self, settings: Settings, queue: Queue) -> None:
        """Raises: ConfigError."""
        self._settings = settings.webhooks
        self._retention_s = settings.queue.retention_s
        self._queue = queue
        self._places = FairLimiter(MOST, EACH, PER_HOST)
        self.keys = Keys(settings.webhooks, WebhookSecrets(queue.redis))
        resolver = fetch.Resolver(settings.server.allow_networks)
        self._http = fetch.client(resolver, settings.webhooks.timeout_s)

    async def close(self) -> None:
        """Close the connections to receivers."""
        await self._http.aclose()

    async def send_forever(self) -> None:
        """Look for ended jobs every `poll_every_s`, and tell of them."""
        async with asyncio.TaskGroup() as sending:
            while True:
                for one in await self._due():
                    sending.create_task(self._settle(one))
                await asyncio.sleep(self._settings.poll_every_s)

    async def _due(self) -> list[Announcement]:
        """Claim as many due messages as there are free slots."""
        if not self._places.free:
            return []
        try:
            return await self._queue.announced(
                lease_s=2 * self._settings.timeout_s,
                most=self._places.free,
                each=EACH,
                busy=self._places.tenants,
            )
        except (RedisError, OSError) as error:
            log.warning("could not look for webhooks to send: %s", error)
            return []

    async def _settle(self, one: Announcement) -> None:
        """Make one delivery attempt and record its result; errors stay with this message."""
        note(job=one.job_id, tenant=one.tenant)  # a task of its own has this one attempt
        try:
            job = await self._queue.get(one.job_id)
            wanted = job and job.request.get("webhook")
            if not job or not wanted or job.state not in wanted["events"]:
                return await self._queue.announce_no_more(one)
            note(**job.log_fields, trace_id=spans.trace_of(job.traceparent))
            await self._attempt(one, job, httpx.URL(wanted["url"]))
        except Exception as error:
            log.warning("a webhook of %s comes again: %s", one.job_id, error, exc_info=error)

    async def _attempt(self, one: Announcement, job: Job, url: httpx.URL) -> None:
        host = fetch.host_of(url)
        place = self._places.enter(one.tenant, host)
        if place is None:  # it waits in Redis, and holds up nobody
            return await self._queue.announce_later(one, self._settings.poll_every_s)
        with place:
            is_taken = await self._send(url, job)
        failed = one.failed + 1
        if is_taken or failed >= self._settings.max_attempts:
            return await self._queue.announce_no_more(one)
        pause_s = self._settings.retry_s * 2**one.failed
        again = replace(one, failed=failed)
        await self._queue.announce_later(again, pause_s * random.uniform(1, 1.2))

    async def _send(self, url: httpx.URL, job: Job) -> bool:
        """Send a message; return whether the address took it, or wants no more."""
        keys = await self.keys.of(job.tenant)
        if not keys:
            log.warning("the webhook of %s cannot be signed: its tenant has no secret", job.id)
            return False
        body = payload(job, self._retention_s)
        headers = sign(keys, f"msg_{job.id}_{job.state}", int(time.time()), body)
        headers["Content-Type"] = "application/json"
        whose = {"tenant": job.tenant}
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream(
                    "POST", url, content=body, headers=headers, extensions=whose
                ) as answer,
            ):
                return answer.is_success or answer.status_code == httpx.codes.GONE
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            log.info("the webhook of %s was not taken: %s", job.id, error)
            return False

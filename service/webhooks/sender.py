"""Delivery of webhooks: signed, at least once, across restarts.

Redis stores pending messages with the jobs (`service/jobs/webhook_messages.py`). A message is
created when a job ends. It is removed when the receiver accepts it, responds 410, or has failed too
often. Each front end leases and sends messages, with limits per tenant and host. If it crashes, the
leases lapse and others send them.

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

MAX_CONCURRENT, EACH, PER_HOST = 64, 8, 16
"""Maximum concurrent deliveries of one front end: in total, per tenant, and per host. One tenant
cannot use up a host's limit."""


def secret_bytes(secret: str) -> bytes:
    """Decode the webhook signing key from `whsec_…`. Raises: ConfigError."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ConfigError("webhooks.secret: must be whsec_ and the base64 of 24 to 64 bytes")
    return key


def sign(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Build the headers of a webhook message, with one signature per key."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(d).decode()}" for d in digests),
    }


def payload(job: Job, retention_s: float) -> bytes:
    """Build the webhook message about an ended job, which is kept for `retention_s`."""
    message = {
        "type": f"job.{job.state}",
        "timestamp": datetime.fromtimestamp(job.finished_at or 0, UTC).isoformat(),
        "data": view_job(job, retention_s=retention_s).model_dump(mode="json"),
    }
    return json.dumps(message).encode()


class Keys:
    """Signing keys of webhooks, by tenant.

    `webhooks.secret` is a key of the tenant `default`, to which all clients belong if no API keys
    are required.
    """

    def __init__(self, settings: WebhookSettings, stored: WebhookSecrets) -> None:
        """Decode the webhook secret of the settings. Raises: ConfigError."""
        secret = settings.secret
        self._configured = [secret_bytes(secret.get_secret_value())] if secret else []
        self._stored = stored

    async def of(self, tenant: str) -> list[bytes]:
        """List a tenant's webhook keys, newest first; empty: messages cannot be signed."""
        keys = [secret_bytes(secret.text) for secret in await self._stored.of(tenant)]
        return keys + (self._configured if tenant == DEFAULT_TENANT else [])


class Webhooks:
    """Background sender of pending webhook messages."""

    def __init__(self, settings: Settings, queue: Queue) -> None:
        """Create the webhook sender. Raises: ConfigError."""
        self._settings = settings.webhooks
        self._retention_s = settings.queue.retention_s
        self._queue = queue
        self._slots = FairLimiter(MAX_CONCURRENT, EACH, PER_HOST)
        self.keys = Keys(settings.webhooks, WebhookSecrets(queue.redis))
        resolver = fetch.Resolver(settings.server.allow_networks)
        self._http = fetch.client(resolver, settings.webhooks.timeout_s)

    async def close(self) -> None:
        """Close the connections to webhook receivers."""
        await self._http.aclose()

    async def send_forever(self) -> None:
        """Poll for pending messages every `poll_every_s`, and send them."""
        async with asyncio.TaskGroup() as sending:
            while True:
                for message in await self._due():
                    sending.create_task(self._settle(message))
                await asyncio.sleep(self._settings.poll_every_s)

    async def _due(self) -> list[Announcement]:
        """Lease as many due webhook messages as there are free slots."""
        if not self._slots.free:
            return []
        try:
            return await self._queue.announced(
                lease_s=2 * self._settings.timeout_s,
                most=self._slots.free,
                each=EACH,
                busy=self._slots.tenants,
            )
        except (RedisError, OSError) as error:
            log.warning("could not look for webhooks to send: %s", error)
            return []

    async def _settle(self, message: Announcement) -> None:
        """Attempt to deliver a webhook message once, and record the result."""
        note(job=message.job_id, tenant=message.tenant)  # each attempt has its own task
        try:
            job = await self._queue.get(message.job_id)
            webhook = job and job.request.get("webhook")
            if not job or not webhook or job.state not in webhook["events"]:
                return await self._queue.announce_no_more(message)
            note(**job.log_fields, trace_id=spans.trace_of(job.traceparent))
            await self._attempt(message, job, httpx.URL(webhook["url"]))
        except Exception as error:
            log.warning(
                "the webhook of %s will be retried: %s", message.job_id, error, exc_info=error
            )

    async def _attempt(self, message: Announcement, job: Job, url: httpx.URL) -> None:
        host = fetch.host_of(url)
        place = self._slots.try_acquire(message.tenant, host)
        if place is None:  # returned to Redis, so that it does not delay others
            return await self._queue.announce_later(message, self._settings.poll_every_s)
        with place:
            is_taken = await self._send(url, job)
        failed = message.failed + 1
        if is_taken or failed >= self._settings.max_attempts:
            return await self._queue.announce_no_more(message)
        pause_s = self._settings.retry_s * 2**message.failed
        again = replace(message, failed=failed)
        await self._queue.announce_later(again, pause_s * random.uniform(1, 1.2))

    async def _send(self, url: httpx.URL, job: Job) -> bool:
        """Send a webhook message; return whether the receiver accepted it, or responded 410."""
        keys = await self.keys.of(job.tenant)
        if not keys:
            log.warning("the webhook of %s cannot be signed: its tenant has no secret", job.id)
            return False
        body = payload(job, self._retention_s)
        headers = sign(keys, f"msg_{job.id}_{job.state}", int(time.time()), body)
        headers["Content-Type"] = "application/json"
        extensions = {"tenant": job.tenant}
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream(
                    "POST", url, content=body, headers=headers, extensions=extensions
                ) as answer,
            ):
                return answer.is_success or answer.status_code == httpx.codes.GONE
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            log.info("the webhook of %s was not accepted: %s", job.id, error)
            return False

"""Shared state of the routes: one `FrontEnd` per app."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

import httpx
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.auth.api_keys import Role, id_of
from service.auth.authenticator import Authenticator
from service.auth.links import Links
from service.errors.problems import Forbidden, NotFound, Unauthorized
from service.front_end.cost_cache import CostCache
from service.front_end.loras import Loras
from service.front_end.models import Models
from service.front_end.verified_outputs import VerifiedOutputs
from service.http import fetch
from service.http.fair_limiter import FairLimiter
from service.http.image_checks import ImageChecks
from service.http.inflight_limits import SharedLimit, bodies_of, waits_of
from service.http.upload_slots import UploadSlots
from service.jobs.model.job import DEFAULT_TENANT, Job
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, job_folders
from service.jobs.tenants import Tenants
from service.metrics.front_end import Telemetry
from service.safety.checker import SafetyChecker
from service.settings.safety import SafetySettings
from service.settings.settings import Settings
from service.tracing.log_context import hide_prompts, note
from service.webhooks.sender import Webhooks

FETCHES, FETCHES_EACH, FETCHES_PER_HOST = 16, 4, 8
"""Maximum concurrent fetches of URLs: in total, per client, and per host."""

UPLOADS, UPLOADS_EACH = 4, 2
"""Maximum concurrent uploads of files: in total, and per client. Each may use
`limits.max_lora_bytes` of disk."""


@dataclass
class FrontEnd:
    """State of one front end that outlives requests, with its dependencies."""

    settings: Settings
    queue: Queue
    store: Store
    telemetry: Telemetry
    models: Models
    costs: CostCache
    resolver: fetch.Resolver
    """Resolver of hosts in clients' URLs."""
    http: httpx.AsyncClient
    """HTTP client for images that requests specify by URL."""
    fetches: FairLimiter
    """Slots for these fetches."""
    images: ImageChecks
    tenants: Tenants
    loras: Loras
    """Adapters that requests may name."""
    uploads: UploadSlots
    """Slots for uploads of adapters and batch files."""
    webhooks: Webhooks
    outputs: VerifiedOutputs
    callers: Authenticator | None
    """Authenticator of tenants; None: no key is required."""
    operators: Authenticator | None
    """Authenticator of operators; None: every client on this machine is an operator."""
    links: Links
    """Signer of links to outputs."""
    bodies: SharedLimit
    """Limit on bytes of requests and outputs in flight."""
    waits: SharedLimit
    """Limit on requests that wait for a job or stream its events."""
    safety: SafetyChecker | None = None
    """Safety checks of requests; None: no checks."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is stopping, so that waits and streams end."""

    @classmethod
    def make(cls, settings: Settings, queue: Queue, store: Store) -> FrontEnd:
        """Create the front end with all its parts from the settings.

        Raises: ConfigError: the settings of webhooks, keys or the safety hook are unusable.
        """
        server, telemetry = settings.server, Telemetry()
        callers = Authenticator.make(settings)
        resolver = fetch.Resolver(server.allow_networks)
        queue.job_metrics = telemetry.job_metrics
        models = Models(queue, server.models_age_s, settings.aliases)
        return cls(
            settings=settings,
            queue=queue,
            store=store,
            telemetry=telemetry,
            models=models,
            costs=CostCache(queue, settings.queue),
            resolver=resolver,
            http=fetch.client(resolver, server.fetch_timeout_s),
            fetches=_fetches(),
            images=ImageChecks(settings, has_tenants=callers is not None),
            tenants=Tenants(settings.tenants, queue.redis, server.models_age_s),
            loras=Loras(models.registered, queue, server.models_age_s),
            uploads=UploadSlots(UPLOADS, UPLOADS_EACH),
            webhooks=Webhooks(settings, queue),
            outputs=VerifiedOutputs(store, telemetry),
            callers=callers,
            operators=Authenticator.of_operators(settings),
            links=Links(queue.redis, server.link_s),
            bodies=bodies_of(settings.limits),
            waits=waits_of(server),
            safety=_safety(settings.safety, telemetry),
        )

    def client_of(self, request: Request, tenant: str) -> str:
        """Return the key for per-client limits: the tenant, or without keys the address."""
        return tenant if self.callers or request.client is None else request.client.host

    async def job(self, job_id: str, tenant: str) -> Job:
        """Load a job of this tenant.

        Raises: NotFound: no such job, or it belongs to another tenant; the response is the same.
        """
        job = await self.queue.get(job_id)
        if job is None or job.tenant != tenant:
            raise no_such_job(job_id)
        note(job=job.id)
        hide_prompts(job.request)
        return job

    async def delete(self, job: Job) -> None:
        """Delete a job with its files, canceling it first if necessary.

        Raises: NotFound: it was deleted meanwhile.
        """
        if await self.queue.delete(job.id) is None:
            raise no_such_job(job.id)
        await self.store.delete(job_folders(job.id))

    async def close(self) -> None:
        """Start to stop: close connections and threads."""
        self.stopping.set()
        await self.images.close()
        await self.webhooks.close()
        if self.safety:
            await self.safety.close()
        for authenticator in (self.callers, self.operators):
            if authenticator:
                await authenticator.close()
        await self.http.aclose()


def _safety(settings: SafetySettings, telemetry: Telemetry) -> SafetyChecker | None:
    """Create the checks of requests. A check waits for a slot at most `timeout_s`.

    Raises: ConfigError.
    """
    if not (settings.is_on and settings.before):
        return None
    return SafetyChecker(settings, telemetry.safety, slot_timeout_s=settings.timeout_s)


def _fetches() -> FairLimiter:
    line = SharedLimit("images to fetch", "too_many_fetches", fetch.WAITING, fetch.WAITING_EACH)
    return FairLimiter(FETCHES, FETCHES_EACH, FETCHES_PER_HOST, line)


def no_such_job(job_id: str) -> NotFound:
    """Create the problem for an unknown job id."""
    return NotFound(
        f"there is no job {job_id[:80]!r}; it was deleted, has expired, or never existed",
        code="job_not_found",
    )


async def _front(request: Request) -> FrontEnd:
    """Return the app's front end. A coroutine, because FastAPI runs plain functions in a thread."""
    front: FrontEnd = request.app.state.front
    return front


Front = Annotated[FrontEnd, Depends(_front)]

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    bearerFormat="atl_…",
    description=(
        "An API key, created by `atelier keys create`. Its jobs and files belong to its tenant."
    ),
)


async def tenant_of_caller(
    front: Front, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """Authenticate a request and return its tenant.

    Raises: Unauthorized.
    """
    return await tenant_of_key(front, given.credentials if given else None)


async def tenant_of_key(front: FrontEnd, key: str | None) -> str:
    """Authenticate a key and return its tenant; None: no key was sent. Raises: Unauthorized."""
    tenant = await _tenant(front, key)
    note(tenant=tenant, key_id=key_id_of(front, key))
    return tenant


def key_id_of(front: FrontEnd, key: str | None) -> str | None:
    """Return the id of a valid key; None: no keys are required."""
    return id_of(key) if front.callers and key else None


async def _tenant(front: FrontEnd, key: str | None) -> str:
    """Look up the tenant of a key. Raises: Unauthorized, Forbidden."""
    if front.callers is None:
        return DEFAULT_TENANT
    if key is None:
        raise Unauthorized(
            "this server requires an API key: send the header `Authorization: Bearer atl_…`; its"
            " operator creates one with `atelier keys create --tenant NAME`"
        )
    record = await front.callers.find(key)
    if record is None:
        raise unknown_key()
    if record.role is not Role.TENANT:
        raise Forbidden(
            "this is an operator's key, which belongs to no tenant: use a tenant's key (`atelier"
            " keys create --tenant NAME`)",
            code="wrong_role",
        )
    return record.tenant


def unknown_key() -> Unauthorized:
    """Create the problem for an unknown key."""
    return Unauthorized(
        "this API key is unknown: it is mistyped, or was revoked; ask the operator for another"
        " one (`atelier keys create`)",
        challenge='Bearer error="invalid_token"',
        code="invalid_api_key",
    )


Tenant = Annotated[str, Depends(tenant_of_caller)]
"""Tenant of a request: its key's, or the default tenant if no keys are required."""


async def _key_id(
    front: Front, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str | None:
    return key_id_of(front, given.credentials if given else None)


KeyId = Annotated[str | None, Depends(_key_id)]
"""Id of a request's key; None: no keys are required."""

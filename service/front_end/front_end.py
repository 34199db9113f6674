"""Shared state of the routes: one `FrontEnd` an app."""

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
from service.front_end.verified_outputs import Intact
from service.http import fetch
from service.http.fair_limiter import FairLimiter
from service.http.image_checks import ImageChecks
from service.http.inflight_limits import Shared, bodies_of, waits_of
from service.http.upload_places import UploadPlaces
from service.jobs.model.job import DEFAULT_TENANT, Job
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, job_folders
from service.jobs.tenants import Tenants
from service.metrics.http import Telemetry
from service.safety.checker import SafetyChecker
from service.settings.safety import SafetySettings
from service.settings.settings import Settings
from service.tracing.log_context import hide_prompts, note
from service.webhooks.sender import Webhooks

FETCHES, FETCHES_EACH, FETCHES_PER_HOST = 16, 4, 8
"""Addresses that are fetched at the same time: in all, of a client, and of a host."""

UPLOADS, UPLOADS_EACH = 4, 2
"""Files that are uploaded at the same time: in all, and of a client. Each may take
`limits.max_lora_bytes` of the disk."""


@dataclass
class FrontEnd:
    """State that outlives a request."""

    settings: Settings
    queue: Queue
    store: Store
    telemetry: Telemetry
    models: Models
    costs: CostCache
    resolver: fetch.Resolver
    """Resolver of hosts that requests name."""
    http: httpx.AsyncClient
    """Client for images that requests give the address of."""
    fetches: FairLimiter
    """Places for fetching them."""
    images: ImageChecks
    tenants: Tenants
    loras: Loras
    """Adapters that requests may name."""
    uploads: UploadPlaces
    """Adapters and files of batches that are being uploaded."""
    webhooks: Webhooks
    outputs: Intact
    callers: Authenticator | None
    """Authenticator; None: everybody may ask, without a key."""
    operators: Authenticator | None
    """Authenticator of operators; None: everybody on this machine is one."""
    links: Links
    """Signer of links to outputs."""
    bodies: Shared
    """Bytes of requests and outputs in flight."""
    waits: Shared
    """Requests that wait for a job or follow its events."""
    safety: SafetyChecker | None = None
    """Checks of requests; None: nobody is asked about them."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server wants to exit: whoever waits or streams lets go."""

    @classmethod
    def make(cls, settings: Settings, queue: Queue, store: Store) -> FrontEnd:
        """Make the front end's parts.

        Raises: ConfigError: webhooks, keys or the safety hook cannot be had with these settings.
        """
        server, telemetry = settings.server, Telemetry()
        callers = Authenticator.make(settings)
        resolver = fetch.Resolver(server.allow_networks)
        queue.tally = telemetry.tally
        models = Models(queue, server.models_age_s)
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
            loras=Loras(models.own, queue, server.models_age_s),
            uploads=UploadPlaces(UPLOADS, UPLOADS_EACH),
            webhooks=Webhooks(settings, queue),
            outputs=Intact(store, telemetry),
            callers=callers,
            operators=Authenticator.of_operators(settings),
            links=Links(queue.redis, server.link_s),
            bodies=bodies_of(settings.limits),
            waits=waits_of(server),
            safety=_safety(settings.safety, telemetry),
        )

    def client_of(self, request: Request, tenant: str) -> str:
        """Return who shares a part of a bounded resource: tenant, or without keys address."""
        return tenant if self.callers or request.client is None else request.client.host

    async def job(self, job_id: str, tenant: str) -> Job:
        """Return a tenant's job.

        Raises: NotFound: there is none, or it is another tenant's, which is told alike.
        """
        job = await self.queue.get(job_id)
        if job is None or job.tenant != tenant:
            raise no_such_job(job_id)
        note(job=job.id)
        hide_prompts(job.request)
        return job

    async def delete(self, job: Job) -> None:
        """Delete a job with its files; cancel it first if it has not ended.

        Raises: NotFound: it was deleted meanwhile.
        """
        if await self.queue.delete(job.id) is None:
            raise no_such_job(job.id)
        await self.store.delete(job_folders(job.id))

    async def close(self) -> None:
        """Begin to stop: let go of connections and threads."""
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
    """Raises: ConfigError. A wait for a place is as long as a check at most."""
    if not (settings.is_on and settings.before):
        return None
    return SafetyChecker(settings, telemetry.safety, place_s=settings.timeout_s)


def _fetches() -> FairLimiter:
    line = Shared("images to fetch", "too_many_fetches", fetch.WAITING, fetch.WAITING_EACH)
    return FairLimiter(FETCHES, FETCHES_EACH, FETCHES_PER_HOST, line)


def no_such_job(job_id: str) -> NotFound:
    """Return the problem of a job that is not there."""
    return NotFound(
        f"there is no job {job_id[:80]!r}; it was deleted, has left after its time, or never was",
        code="job_not_found",
    )


async def _front(request: Request) -> FrontEnd:
    """A coroutine, since FastAPI takes a plain function to a thread and back with every request."""
    front: FrontEnd = request.app.state.front
    return front


Front = Annotated[FrontEnd, Depends(_front)]

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    bearerFormat="atl_…",
    description="An API key, made by `atelier keys create`; what it makes belongs to its tenant.",
)


async def tenant_of_caller(
    front: Front, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """Return the tenant of a request's key.

    Raises: Unauthorized.
    """
    return await tenant_of_key(front, given.credentials if given else None)


async def tenant_of_key(front: FrontEnd, key: str | None) -> str:
    """Return the tenant of a key; None: the request has none. Raises: Unauthorized."""
    tenant = await _tenant(front, key)
    note(tenant=tenant, key_id=key_id_of(front, key))
    return tenant


def key_id_of(front: FrontEnd, key: str | None) -> str | None:
    """Return the id of a good key; None: no keys are required."""
    return id_of(key) if front.callers and key else None


async def _tenant(front: FrontEnd, key: str | None) -> str:
    """Raises: Unauthorized."""
    if front.callers is None:
        return DEFAULT_TENANT
    if key is None:
        raise Unauthorized(
            "this server wants an API key: send the header `Authorization: Bearer atl_…`;"
            " its operator makes one by `atelier keys create --tenant NAME`"
        )
    found = await front.callers.find(key)
    if found is None:
        raise unknown_key()
    if found.role is not Role.TENANT:
        raise Forbidden(
            "this is an operator's key, which acts for no tenant: take a tenant's"
            " (`atelier keys create --tenant NAME`)",
            code="wrong_role",
        )
    return found.tenant


def unknown_key() -> Unauthorized:
    """Return the problem of a key that is nobody's."""
    return Unauthorized(
        "this API key is not known here: it is mistyped, or was revoked; ask the operator"
        " for another one (`atelier keys create`)",
        challenge='Bearer error="invalid_token"',
        code="invalid_api_key",
    )


Tenant = Annotated[str, Depends(tenant_of_caller)]
"""Tenant of a request: its key's, or everybody's where no keys are required."""


async def _key_id(
    front: Front, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str | None:
    return key_id_of(front, given.credentials if given else None)


KeyId = Annotated[str | None, Depends(_key_id)]
"""Id of a request's key; None: no keys are required."""

"""Assembly of the front end as an ASGI app: middleware, routes, and background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from service import openapi
from service.auth.allowed_hosts import CheckHost, names_of
from service.auth.foreign_pages import RefuseForeignPages
from service.batches.driver_task import drive_forever
from service.errors import handlers
from service.front_end.front_end import FrontEnd
from service.front_end.ledger_mover import move_forever
from service.front_end.reaper import sweep_forever
from service.front_end.version_watch import watch_forever
from service.http.headers import AllowOrigins, AssignRequestIds, HeadResponses, SecureResponses
from service.http.shutdown import RefuseWhenCancelled
from service.http.trace_requests import TraceRequests
from service.jobs.queue import Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.metrics.front_end import MeasureRequests
from service.operators import commands
from service.routes.compat.openai.batch_bodies import ENDPOINTS
from service.routing import class_of, include_routes
from service.settings.settings import Settings


class _App(FastAPI):
    """FastAPI app whose 500 responses have all headers of other responses.

    Starlette builds these outside the middleware that is added to an app.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Add the middleware that must wrap Starlette's own error responses."""
        app = super().build_middleware_stack()
        if origins := self.state.front.settings.server.cors_origins:
            app = AllowOrigins(app, origins)
        return AssignRequestIds(SecureResponses(app))


def create_app(settings: Settings, queue: Queue, store: Store) -> FastAPI:
    """Create the app; its `FrontEnd` is `app.state.front`. The caller closes queue and store."""
    app = _App(
        title=openapi.TITLE,
        version=openapi.VERSION,
        lifespan=_lifespan,
        redirect_slashes=False,
        openapi_url=None,  # routes.pages serves these without external resources
        docs_url=None,
        redoc_url=None,
    )
    app.state.front = front = FrontEnd.make(settings, queue, store)
    handlers.install(app)
    app.add_middleware(RefuseWhenCancelled, stopping=front.stopping)
    app.add_middleware(HeadResponses)
    app.add_middleware(MeasureRequests, telemetry=front.telemetry, class_of=class_of)
    if settings.tracing.endpoint:
        app.add_middleware(TraceRequests, follows=settings.tracing.follow_clients)
    app.add_middleware(RefuseForeignPages, server=front.settings.server)
    app.add_middleware(CheckHost, names=names_of(front.settings.server))
    include_routes(app)
    openapi.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    front: FrontEnd = app.state.front
    tasks = [asyncio.create_task(sweep_forever(front), name="sweeper")]
    tasks.append(asyncio.create_task(front.webhooks.send_forever(), name="webhooks"))
    tasks.append(asyncio.create_task(watch_forever(front), name="versions"))
    tasks.append(asyncio.create_task(drive_forever(front, ENDPOINTS), name="batches"))
    tasks.append(asyncio.create_task(move_forever(front), name="ledger"))
    tasks.append(asyncio.create_task(commands.move_forever(front), name="audit"))
    try:
        yield
    finally:
        await cancel(*tasks)
        await front.close()

"""The front end as an ASGI app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from service import handlers, openapi, routes
from service.deps import FrontEnd
from service.jobs.outputs import Store
from service.jobs.queue import Queue
from service.jobs.tasks import cancel
from service.reaper import keep_sweeping
from service.settings import Settings
from service.telemetry import MeasureRequests
from service.tracing import TraceRequests


def create_app(settings: Settings, queue: Queue, store: Store) -> FastAPI:
    """The app, with its `FrontEnd` as `app.state.front`. The caller closes queue and store."""
    app = FastAPI(
        title=openapi.TITLE,
        version=openapi.VERSION,
        lifespan=_lifespan,
        redirect_slashes=False,
    )
    app.state.front = front = FrontEnd.make(settings, queue, store)
    handlers.install(app)
    app.add_middleware(MeasureRequests, telemetry=front.telemetry)
    if settings.tracing.endpoint:
        app.add_middleware(TraceRequests, follows=settings.tracing.follow_clients)
    routes.include(app)
    openapi.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    front: FrontEnd = app.state.front
    chores = [asyncio.create_task(keep_sweeping(front), name="sweeper")]
    if front.webhooks:
        sending = front.webhooks.keep_sending(front.queue.get)
        chores.append(asyncio.create_task(sending, name="webhooks"))
    try:
        yield
    finally:
        await cancel(*chores)
        await front.close()

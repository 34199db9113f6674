"""Another client during an attack, whose job must finish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx

from service.jobs.queue import Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.service.eventually import eventually
from tests.service.standin import SPEC, StandIn

ADDRESS = "127.0.0.2"
"""Its address: without keys, limits apply to each address."""
NEIGHBOUR = SPEC.model_copy(update={"name": "neighbour-demo"})
"""Model of the process servers' neighbour, which a worker of its own serves."""
PROMPT = "a neighbour's cat"
TIMEOUT_S = 60.0


@asynccontextmanager
async def finishing_job(http: httpx.AsyncClient, model: str) -> AsyncIterator[None]:
    """Run a job while the block runs. Raises: TimeoutError: it did not finish.

    Args:
        http: client of the attacked server.
        model: a model that a worker serves.
    """
    job = asyncio.create_task(eventually(partial(_succeeds, http, model)))
    try:
        yield
        await job
    finally:
        await cancel(job)


async def _succeeds(http: httpx.AsyncClient, model: str) -> bool:
    """Send a job and wait for it; false if it has to be sent again."""
    body = {"prompt": PROMPT, "model": model}
    try:
        answer = await http.post("/v1/generate", json=body, headers={"Prefer": "wait"})
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["state"] == "succeeded"


class NeighbourThread:
    """Context manager: a thread in which another client's job must finish.

    Args:
        url: address of the attacked server.
        outputs: its folder of outputs.
    """

    def __init__(self, url: str, redis_url: str, outputs: Path) -> None:
        self._url, self._redis_url, self._outputs = url, redis_url, outputs
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> NeighbourThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._finish_job())
        except BaseException as error:
            self._error = error

    async def _finish_job(self) -> None:
        transport = httpx.AsyncHTTPTransport(local_address=ADDRESS)
        queue = await Queue.connect(self._redis_url, QueueSettings())
        try:
            async with (
                httpx.AsyncClient(
                    transport=transport, base_url=self._url, timeout=TIMEOUT_S
                ) as http,
                StandIn(queue, Store(str(self._outputs)), NEIGHBOUR),
                finishing_job(http, NEIGHBOUR.name),
            ):
                pass
        finally:
            await queue.close()

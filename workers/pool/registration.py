"""Registration of a worker in the queue: heartbeats, which also read operators' requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from models.spec.model_spec import ModelSpec
from service.jobs.queue import Queue
from service.jobs.tenants import Tenants
from workers.pool import metrics
from workers.pool.cost_reporting import CostReporter
from workers.pool.running_jobs import RunningJobs
from workers.pool.time_sharing import ResidentModels
from workers.retry import QUEUE_ERRORS

HEARTBEATS = 3
"""Heartbeats per lease; a worker without any counts as gone."""

log = logging.getLogger(__name__)


class Registration:
    """Registration of one worker and its model in the queue.

    Args:
        name: the worker's name.
        spec: spec of its model; replace `spec` when it changes.
        takes_jobs: checks whether the worker, if ready, claims the jobs that wait.
    """

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        queue: Queue,
        running: RunningJobs,
        cost_reporter: CostReporter,
        time_sharing: ResidentModels,
        lease_s: float,
        takes_jobs: Callable[[], Awaitable[bool]],
    ) -> None:
        self.spec = spec
        self.is_ready = False
        """Whether the worker accepts jobs, when it is its turn."""
        self._name = name
        self._queue = queue
        self._running = running
        self._cost_reporter = cost_reporter
        self._time_sharing = time_sharing
        self._takes_jobs = takes_jobs
        self._heartbeat_s = lease_s / HEARTBEATS
        self._tenants = Tenants({}, queue.redis, self._heartbeat_s)

    async def run(self) -> None:
        """Renew the worker's registration until canceled."""
        while True:
            await self.announce()
            await asyncio.sleep(self._heartbeat_s)

    async def announce(self) -> None:
        """Renew the worker's registration, and apply operators' pauses and sleep requests."""
        try:
            await self.renew()
            await self._apply_pause()
            sleep = await self._queue.sleep_of(self._name)
            self._time_sharing.apply_sleep(self.spec.name, sleep)
        except QUEUE_ERRORS as error:
            log.warning("the heartbeat cannot be sent: %s", error)

    async def renew(self) -> None:
        """Report the worker's state and how soon its jobs can begin.

        Raises: QUEUE_ERRORS; RuntimeError: as `RunningJobs.check_slots`.
        """
        is_ready = self.is_ready
        if is_ready:
            self._running.check_slots()
            is_ready = await self._takes_jobs()
            metrics.ready.labels(self.spec.name).set(is_ready)
        model, sharing = self.spec.name, self._time_sharing
        facts = replace(
            self._cost_reporter.facts, away_s=sharing.away_s(model), asleep=sharing.is_asleep
        )
        await self._queue.register(self._name, self.spec, ready=is_ready, facts=facts)
        metrics.job_metrics.expect([model], await self._tenants.classes())

    async def _apply_pause(self) -> None:
        """Suspend running jobs if an operator drains this worker, which then claims none."""
        pause = await self._queue.pause_of(self._name, self.spec.name)
        if pause and pause.drains and self._running.begin_clearing():
            log.info("pool %s is drained by %s", self._name, pause.by)

    async def end(self) -> None:
        """Remove the worker's registration. Raises: QUEUE_ERRORS."""
        await self._queue.unregister(self._name, self.spec.name)

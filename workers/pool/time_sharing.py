"""Time sharing of a slice by a pool's models: one model's weights are on the devices at a time.

The others' weights are in host memory, and their programs stay compiled. A model is loaded if its
jobs wait and the present model is idle or has used its time. Jobs of the outgoing model end if that
is soon. Otherwise they are suspended, and resume in any worker. If the process crashes meanwhile,
each job is in the queue or has a lease that lapses.

An operator may also put a pool to sleep: once idle, no model is on the devices. A job for one of
its models, or an operator, wakes the pool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal, Protocol

from service.jobs.operations import Sleep
from workers.pool import metrics
from workers.retry import QUEUE_ERRORS

CHECK_EVERY_S = 0.25
"""Seconds between checks for waiting jobs. A job that has waited for less may go to another worker.
"""
MAX_SWAP_SHARE = 0.1
"""Maximum share of the devices' time spent on swaps while all models have jobs."""

log = logging.getLogger(__name__)


class ModelWorker(Protocol):
    """Protocol for the worker of one of the models that share devices."""

    @property
    def model(self) -> str:
        """Name of the model that the worker serves."""

    @property
    def is_ready(self) -> bool:
        """Return whether the worker accepts jobs."""

    @property
    def jobs(self) -> int:
        """Number of jobs that the worker runs."""

    async def waiting_s(self) -> float | None:
        """Seconds since the model's oldest eligible queued job was submitted; None: no such job.

        Raises: errors of `Queue`.
        """

    def end_waiting_claim(self) -> None:
        """End the worker's claim call that waits for a job."""

    async def clear_jobs(self) -> None:
        """Finish or suspend all jobs; return when none is left. No job is claimed meanwhile."""

    async def offload_weights(self) -> None:
        """Move the model's weights off the devices."""

    async def reload_weights(self, keep_copies: bool) -> None:
        """Load the weights again. Args: keep_copies: retain host copies for the next time."""

    async def announce(self) -> None:
        """Report to the queue how soon the model's jobs can begin."""

    async def interrupt(self) -> None:
        """Cancel the worker's background work, and return when it has stopped."""


class ResidentModels:
    """Models of a pool that are all on the devices, without swaps. Base of `TimeSharedModels`."""

    def __init__(self) -> None:
        self.warming = asyncio.Lock()
        """Lock of warm-up: one model at a time."""
        self._slept: float | None = None
        """Time of the last operator's sleep request that was handled."""
        self._sleep_requests: dict[str, Sleep | None] = {}
        """Sleep requests by the model whose worker received them, since each worker has its own
        name."""
        self._members: dict[str, ModelWorker] = {}

    async def join(self, member: ModelWorker) -> None:
        """Register a model's worker."""
        self._members[member.model] = member
        metrics.on_devices.labels(member.model).set(1)

    async def ensure_present(self, model: str) -> None:
        """Return at once, since the weights are always on the devices."""

    def apply_sleep(self, model: str, sleep: Sleep | None) -> None:
        """Reject an operator's sleep request with a warning; None: no request."""
        newest = self._newest(model, sleep)
        if newest is not None and newest.at != self._slept:
            log.warning(
                "this pool cannot sleep: its models are loaded together, or on several hosts"
            )
        self._slept = newest.at if newest else None

    def _newest(self, model: str, sleep: Sleep | None) -> Sleep | None:
        """Store one worker's sleep request; return the newest of all workers."""
        self._sleep_requests[model] = sleep
        requests = (request for request in self._sleep_requests.values() if request is not None)
        return max(requests, key=lambda request: request.at, default=None)

    @property
    def is_asleep(self) -> bool:
        """Return whether no model is on the devices until a job arrives."""
        return False

    @property
    def is_idle(self) -> bool:
        """Return whether no model has a running job."""
        return not any(member.jobs for member in self._members.values())

    async def interrupt(self) -> None:
        """Cancel the background work of all models, because a job runs."""
        for member in self._members.values():
            await member.interrupt()

    @asynccontextmanager
    async def claiming(self, model: str) -> AsyncIterator[None]:
        """Enter at once: jobs may always be claimed."""
        yield

    def is_present(self, model: str) -> bool:
        """Return whether the model's weights are on the devices to stay for now."""
        return True

    def away_s(self, model: str) -> float:
        """Return the seconds until a job of the model could begin on idle devices: 0."""
        return 0.0

    async def run(self) -> None:
        """Wait until canceled, since all models stay on the devices."""
        await asyncio.Event().wait()

    def stop(self) -> None:
        """Stop swapping models, because the pool drains."""


class TimeSharedModels(ResidentModels):
    """Models of a pool that share the devices in turn, or a single model that may sleep.

    Args:
        turn_s: minimum seconds that a model keeps the devices while it has jobs.
        is_single: one model, which stays on the devices after loading.
    """

    def __init__(self, turn_s: float, is_single: bool = False) -> None:
        super().__init__()
        self._turn_s = turn_s
        self._is_single = is_single
        self._sleep_request: Literal["sleep", "wake"] | None = None
        self._sleep_requested = asyncio.Event()
        self._is_asleep = False
        self._last = ""
        """Model that was on the devices last."""
        self._present: str | None = None
        """Model that may claim; None: a swap is in progress, or the pool sleeps."""
        self._since = 0.0
        self._claiming: set[str] = set()
        self._changed = asyncio.Condition()
        self._swap_s: dict[str, float] = {}
        """Seconds that the latest swap to each model took."""
        self._is_stopped = False
        self._swapping: asyncio.Task[None] | None = None

    async def join(self, member: ModelWorker) -> None:
        """Register a worker; unless single, move its weights off the devices until its turn."""
        if self._is_single:
            self._present = self._last = member.model
            return await super().join(member)
        self._members[member.model] = member
        await member.offload_weights()
        metrics.on_devices.labels(member.model).set(0)

    async def ensure_present(self, model: str) -> None:
        """Swap a model onto the devices. Requires the lock `warming`. Raises: loading errors."""
        if self._present != model:
            await self._swap(model)

    @asynccontextmanager
    async def claiming(self, model: str) -> AsyncIterator[None]:
        """Enter when it is the model's turn, which does not end inside."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._present == model)
            self._claiming.add(model)
        try:
            yield
        finally:
            async with self._changed:
                self._claiming.discard(model)
                self._changed.notify_all()

    def is_present(self, model: str) -> bool:
        """Return whether the model's weights are on the devices to stay for now."""
        return self._present == model

    def apply_sleep(self, model: str, sleep: Sleep | None) -> None:
        """Record an operator's sleep request, or its withdrawal; each request acts once.

        A request for one worker applies to all, since they share the devices.
        """
        newest = self._newest(model, sleep)
        if newest is None:
            self._sleep_request = "wake" if self._is_asleep else None
        elif newest.at != self._slept:
            self._sleep_request = "sleep"
        self._slept = newest.at if newest else None
        (self._sleep_requested.set if self._sleep_request else self._sleep_requested.clear)()

    @property
    def is_asleep(self) -> bool:
        """Return whether no model is on the devices until a job arrives."""
        return self._is_asleep

    def away_s(self, model: str) -> float:
        """Return the seconds until a job of the model could begin."""
        present = self._members.get(self._present or "")
        if present is None:
            return self._swap_s.get(model, 0.0)
        if present.model == model:
            return 0.0
        left_s = self._since + self._turn_length_s(present.model) - time.monotonic()
        return self._swap_s.get(model, 0.0) + (max(0.0, left_s) if present.jobs else 0.0)

    async def run(self) -> None:
        """Swap models on the devices in turn until canceled. Raises: errors of loading weights."""
        while not self._is_stopped:
            if self._is_single and not (self._is_asleep or self._sleep_request):
                await self._sleep_requested.wait()  # the queue need not be read until then
            await asyncio.sleep(CHECK_EVERY_S)
            async with self.warming:
                await self._check()

    async def _check(self) -> None:
        try:
            waiting = await self._waiting()
        except QUEUE_ERRORS as error:
            log.info("waiting jobs cannot be read now: %s", error)
            return
        model = self._next(waiting)
        if model is None and self._sleep_request == "wake":
            model = self._last
        sleeps = self._sleep_request == "sleep" and not (waiting or self._is_busy(waiting))
        if (model is None and not sleeps) or self._is_stopped:
            return
        self._swapping = asyncio.create_task(self._swap(model))
        await asyncio.wait([self._swapping])
        if not self._swapping.cancelled():
            self._swapping.result()

    def stop(self) -> None:
        """Swap no more models; cancel a swap in progress."""
        self._is_stopped = True
        if self._swapping is not None:
            self._swapping.cancel()

    async def _waiting(self) -> dict[str, float]:
        """Return the longest waiting time of each model's jobs. Raises: errors of `Queue`."""
        return {
            name: seconds
            for name, member in self._members.items()
            if member.is_ready and (seconds := await member.waiting_s()) is not None
        }

    def _is_busy(self, waiting: Mapping[str, float]) -> bool:
        """Return whether the model on the devices has waiting or running jobs."""
        present = self._members.get(self._present or "")
        return present is not None and (present.model in waiting or present.jobs > 0)

    def _next(self, waiting: Mapping[str, float]) -> str | None:
        """Return the model to swap to; None: no swap is due."""
        left_s = 0.0
        if self._is_busy(waiting):
            left_s = self._since + self._turn_length_s(self._present) - time.monotonic()
        return next_model(self._present, left_s, waiting)

    def _turn_length_s(self, model: str | None) -> float:
        """Return the seconds that a model keeps the devices while it has jobs."""
        slowest = max((s for name, s in self._swap_s.items() if name != model), default=0.0)
        return max(self._turn_s, slowest * (1 / MAX_SWAP_SHARE - 1))

    async def _swap(self, model: str | None) -> None:
        """Move the model on the devices to host memory and load another; None: the pool sleeps."""
        leaving, self._sleep_request = self._members.get(self._present or ""), None
        self._sleep_requested.clear()
        async with self._changed:
            self._present = None
        if leaving is not None:
            leaving.end_waiting_claim()
            async with self._changed:
                await self._changed.wait_for(lambda: leaving.model not in self._claiming)
            await leaving.clear_jobs()
        began = time.monotonic()
        for member in self._members.values():
            if member.model != model:
                await member.offload_weights()
                metrics.on_devices.labels(member.model).set(0)
        if model is None:
            self._is_asleep = True
            log.info("the pool sleeps: its devices are free after %.3f s", time.monotonic() - began)
        else:
            await self._load(self._members[model], began)
        for member in self._members.values():
            await member.announce()

    async def _load(self, coming: ModelWorker, began: float) -> None:
        model = coming.model
        await coming.reload_weights(keep_copies=not self._is_single)
        self._swap_s[model] = time.monotonic() - began
        metrics.swapped(model, self._swap_s[model])
        log.info("%s is on the devices after %.3f s", model, self._swap_s[model])
        async with self._changed:
            self._present, self._last, self._since = model, model, time.monotonic()
            self._is_asleep = False
            self._changed.notify_all()


def next_model(present: str | None, left_s: float, waiting: Mapping[str, float]) -> str | None:
    """Return the model that has waited longest, if a swap is due; None: no swap.

    Args:
        left_s: seconds that the present model may keep the devices; 0: it has no jobs.
        waiting: seconds since each model's oldest queued job was submitted.
    """
    others = {
        name: seconds
        for name, seconds in waiting.items()
        if name != present and seconds >= CHECK_EVERY_S
    }
    if not others or (present is not None and left_s > 0):
        return None
    return max(others, key=lambda name: others[name])

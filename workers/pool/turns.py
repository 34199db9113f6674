"""Turns of a pool's models on the same devices: one has its weights there, the others wait.

The others' weights lie in host memory, and their programs stay compiled. A model comes when its
jobs wait and the present one has nothing to do, or has had the devices for its time. Jobs of the
one that leaves end, if that is soon, or are put aside with what is done of them; they go on, here
or elsewhere, when its turn comes again. Whatever dies meanwhile, a job is in the queue or under a
lease that lapses.

A pool that an operator puts to sleep has no model there, once it has nothing to do. A job for one
of its models wakes it, or an operator.
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

LOOK_EVERY_S = 0.25
"""Interval at which it is looked whose jobs wait. A job that has waited for less may be another
pool's."""
SWAPS = 0.1
"""Share of the devices' time that goes into swaps at the most, while all models have work."""

log = logging.getLogger(__name__)


class Member(Protocol):
    """Worker of one of the models."""

    @property
    def model(self) -> str:
        """Name of its model."""

    @property
    def is_ready(self) -> bool:
        """Return whether it would take jobs."""

    @property
    def jobs(self) -> int:
        """Number of jobs that it runs."""

    async def waiting_s(self) -> float | None:
        """Seconds since the first of its queued jobs came; None: there is none that it may take.

        Raises: as `Queue` does.
        """

    def look_again(self) -> None:
        """End a claim that waits."""

    async def make_way(self) -> None:
        """Return when no job runs; those that last are put aside. Nothing is claimed meanwhile."""

    async def leave_devices(self) -> None:
        """Take the weights off the devices."""

    async def return_to_devices(self, keep_copies: bool) -> None:
        """Bring the weights back. Args: keep_copies: in host memory, for the next time."""

    async def announce(self) -> None:
        """Tell the queue how soon its jobs can begin."""

    async def give_way(self) -> None:
        """Drop what nobody waits for, and return when it has stopped."""


class AllPresent:
    """Models whose weights lie on the devices side by side, or a single one."""

    def __init__(self) -> None:
        self.warming = asyncio.Lock()
        """Held while a model warms up: one of several at a time."""
        self._slept: float | None = None
        """Time of the operator's wish that was seen last."""
        self._wishes: dict[str, Sleep | None] = {}
        """Wishes by the model whose worker has heard them: each worker has a name of its own."""
        self._members: dict[str, Member] = {}

    async def join(self, member: Member) -> None:
        """Take part."""
        self._members[member.model] = member
        metrics.on_devices.labels(member.model).set(1)

    async def bring(self, model: str) -> None:
        """Return when the weights are there: they are."""

    def heed(self, model: str, sleep: Sleep | None) -> None:
        """Learn what an operator wants of a model's worker; None: that it is awake."""
        newest = self._newest(model, sleep)
        if newest is not None and newest.at != self._slept:
            log.warning("this pool cannot sleep: its models lie side by side, or on several hosts")
        self._slept = newest.at if newest else None

    def _newest(self, model: str, sleep: Sleep | None) -> Sleep | None:
        """Return the newest wish of all workers after one has heard its own."""
        self._wishes[model] = sleep
        found = (wish for wish in self._wishes.values() if wish is not None)
        return max(found, key=lambda wish: wish.at, default=None)

    @property
    def is_asleep(self) -> bool:
        """Return whether no model is on the devices until a job comes."""
        return False

    @property
    def is_idle(self) -> bool:
        """Return whether no job of any of the models runs on the devices."""
        return not any(member.jobs for member in self._members.values())

    async def give_way(self) -> None:
        """Let all models drop what nobody waits for: a job of one of them runs."""
        for member in self._members.values():
            await member.give_way()

    @asynccontextmanager
    async def claiming(self, model: str) -> AsyncIterator[None]:
        """Enter when jobs may be claimed: now."""
        yield

    def is_present(self, model: str) -> bool:
        """Return whether the model's weights are on the devices, and stay there for now."""
        return True

    def away_s(self, model: str) -> float:
        """Seconds until a job of the model could begin, if nothing ran and nobody waited."""
        return 0.0

    async def run(self) -> None:
        """Serve the models until canceled."""
        await asyncio.Event().wait()

    def stop(self) -> None:
        """Swap no more: the pool drains."""


class ModelTurns(AllPresent):
    """Models by turns, or a single one that may sleep.

    Args:
        turn_s: shortest time that one has the devices while it has work.
        is_single: one model, which stays on the devices from its loading on.
    """

    def __init__(self, turn_s: float, is_single: bool = False) -> None:
        super().__init__()
        self._turn_s = turn_s
        self._is_single = is_single
        self._wish: Literal["sleep", "wake"] | None = None
        self._wished = asyncio.Event()
        self._is_asleep = False
        self._last = ""
        """Model that was there last."""
        self._present: str | None = None
        """Model that may claim; None: one comes or leaves."""
        self._since = 0.0
        self._claiming: set[str] = set()
        self._changed = asyncio.Condition()
        self._swap_s: dict[str, float] = {}
        """Seconds that the latest swap to each model took."""
        self._is_stopped = False
        self._swapping: asyncio.Task[None] | None = None

    async def join(self, member: Member) -> None:
        """Take part; by turns the weights leave the devices until they are brought."""
        if self._is_single:
            self._present = self._last = member.model
            return await super().join(member)
        self._members[member.model] = member
        await member.leave_devices()
        metrics.on_devices.labels(member.model).set(0)

    async def bring(self, model: str) -> None:
        """Swap to a model. `warming` has to be held. Raises: what keeps its weights away."""
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
        """Return whether the model's weights are on the devices, and stay there for now."""
        return self._present == model

    def heed(self, model: str, sleep: Sleep | None) -> None:
        """Learn what an operator wants; a wish that was fulfilled once is not again.

        A wish for one of the workers is one for all: they have the same devices.
        """
        newest = self._newest(model, sleep)
        if newest is None:
            self._wish = "wake" if self._is_asleep else None
        elif newest.at != self._slept:
            self._wish = "sleep"
        self._slept = newest.at if newest else None
        (self._wished.set if self._wish else self._wished.clear)()

    @property
    def is_asleep(self) -> bool:
        """Return whether no model is on the devices until a job comes."""
        return self._is_asleep

    def away_s(self, model: str) -> float:
        """Seconds until a job of the model could begin."""
        present = self._members.get(self._present or "")
        if present is None:
            return self._swap_s.get(model, 0.0)
        if present.model == model:
            return 0.0
        left_s = self._since + self._time_of(present.model) - time.monotonic()
        return self._swap_s.get(model, 0.0) + (max(0.0, left_s) if present.jobs else 0.0)

    async def run(self) -> None:
        """Give each model its turns, until canceled. Raises: what keeps weights away."""
        while not self._is_stopped:
            if self._is_single and not (self._is_asleep or self._wish):
                await self._wished.wait()  # nothing of the queue need be known until then
            await asyncio.sleep(LOOK_EVERY_S)
            async with self.warming:
                await self._look()

    async def _look(self) -> None:
        try:
            waiting = await self._waiting()
        except QUEUE_ERRORS as error:
            log.info("whose turn it is cannot be asked now: %s", error)
            return
        model = self._next(waiting)
        if model is None and self._wish == "wake":
            model = self._last
        sleeps = self._wish == "sleep" and not (waiting or self._is_busy(waiting))
        if (model is None and not sleeps) or self._is_stopped:
            return
        self._swapping = asyncio.create_task(self._swap(model))
        await asyncio.wait([self._swapping])
        if not self._swapping.cancelled():
            self._swapping.result()

    def stop(self) -> None:
        """Swap no more; a swap that has begun ends where it is."""
        self._is_stopped = True
        if self._swapping is not None:
            self._swapping.cancel()

    async def _waiting(self) -> dict[str, float]:
        """Return how long the first job of each model has waited. Raises: as `Queue`."""
        return {
            name: seconds
            for name, member in self._members.items()
            if member.is_ready and (seconds := await member.waiting_s()) is not None
        }

    def _is_busy(self, waiting: Mapping[str, float]) -> bool:
        """Return whether the present model has work."""
        present = self._members.get(self._present or "")
        return present is not None and (present.model in waiting or present.jobs > 0)

    def _next(self, waiting: Mapping[str, float]) -> str | None:
        """Return the model whose turn it is, if that is another one."""
        left_s = 0.0
        if self._is_busy(waiting):
            left_s = self._since + self._time_of(self._present) - time.monotonic()
        return next_model(self._present, left_s, waiting)

    def _time_of(self, model: str | None) -> float:
        """Return the time that a model has the devices for while it has work."""
        slowest = max((s for name, s in self._swap_s.items() if name != model), default=0.0)
        return max(self._turn_s, slowest * (1 / SWAPS - 1))

    async def _swap(self, model: str | None) -> None:
        """Take what is there off the devices, and bring a model; None: none, the pool sleeps."""
        leaving, self._wish = self._members.get(self._present or ""), None
        self._wished.clear()
        async with self._changed:
            self._present = None
        if leaving is not None:
            leaving.look_again()
            async with self._changed:
                await self._changed.wait_for(lambda: leaving.model not in self._claiming)
            await leaving.make_way()
        began = time.monotonic()
        for member in self._members.values():
            if member.model != model:
                await member.leave_devices()
                metrics.on_devices.labels(member.model).set(0)
        if model is None:
            self._is_asleep = True
            log.info("the pool sleeps: its devices are free after %.3f s", time.monotonic() - began)
        else:
            await self._bring(self._members[model], began)
        for member in self._members.values():
            await member.announce()

    async def _bring(self, coming: Member, began: float) -> None:
        model = coming.model
        await coming.return_to_devices(keep_copies=not self._is_single)
        self._swap_s[model] = time.monotonic() - began
        metrics.swapped(model, self._swap_s[model])
        log.info("%s has come to the devices after %.3f s", model, self._swap_s[model])
        async with self._changed:
            self._present, self._last, self._since = model, model, time.monotonic()
            self._is_asleep = False
            self._changed.notify_all()


def next_model(present: str | None, left_s: float, waiting: Mapping[str, float]) -> str | None:
    """Return the model whose turn comes, the one that has waited for longest; None: none's.

    Args:
        left_s: seconds that the present one may have the devices for still; 0: it has no work.
        waiting: seconds since the first of each model's queued jobs came.
    """
    others = {
        name: seconds
        for name, seconds in waiting.items()
        if name != present and seconds >= LOOK_EVERY_S
    }
    if not others or (present is not None and left_s > 0):
        return None
    return max(others, key=lambda name: others[name])

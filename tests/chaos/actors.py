"""Actions of a chaos plan, performed on a system's processes, Redis and store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tests.chaos.plan import REDIS, STORE, Act, Kind
from tests.chaos.processes import until
from tests.chaos.system import START_S, System


class Actors:
    """Runs one task per action; actions on the same target run one after the other."""

    def __init__(self, system: System, tell: Callable[[str], None]) -> None:
        self._system = system
        self._log = tell
        self._store_turn = asyncio.Lock()

    async def perform(self, plan: Sequence[Act]) -> None:
        """Perform all actions of a plan; return once everything frozen, killed or broken has
        recovered."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for act in plan:
                group.create_task(self._perform(act, started))

    async def _perform(self, act: Act, started: float) -> None:
        await asyncio.sleep(max(0.0, started + act.at_s - time.monotonic()))
        if act.target == STORE:
            await self._break_store(act)
        elif act.target == REDIS:
            await self._hurt_redis(act)
        else:
            await self._hurt_process(act)
        self._log(f"{time.monotonic() - started:6.1f} s  done: {act.kind} {act.target}")

    async def _break_store(self, act: Act) -> None:
        async with self._store_turn:
            self._system.wall.put_up()
            try:
                await asyncio.sleep(act.lasts_s)
            finally:
                self._system.wall.take_down()

    async def _hurt_redis(self, act: Act) -> None:
        server = self._system.server
        async with server.turn:
            await (server.kill if act.kind is Kind.KILL else server.freeze)(act.lasts_s)

    async def _hurt_process(self, act: Act) -> None:
        process = self._system.processes[act.target]
        async with process.turn:
            if act.kind is Kind.KILL:
                return process.kill()
            # A process that is still starting has no signal handlers and holds no jobs.
            await until(process.ready, START_S, f"{act.target} is ready to {act.kind}")
            if act.kind is Kind.DRAIN:
                process.drain()
                return await until(process.has_drained, START_S, f"{act.target} has drained")
            process.freeze()
            try:
                await asyncio.sleep(act.lasts_s)
            finally:
                process.thaw()

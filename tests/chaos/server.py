"""Redis of a run: the embedded server, which can be killed, frozen and restarted on its files."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from deploy.local.embedded_redis import embedded


class Server:
    """Embedded Redis server of a chaos run. Use it from the main thread: the server ends with the
    thread that started it."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._life = ExitStack()
        self._pid = 0
        self.url = ""
        self.turn = asyncio.Lock()

    def start(self) -> None:
        self.url = self._life.enter_context(embedded(self._state))
        with Redis.from_url(self.url) as redis:
            self._pid = int(redis.info("server")["process_id"])

    async def kill(self, away_s: float) -> None:
        """Kill Redis; after `away_s` seconds it restarts from its file."""
        os.kill(self._pid, signal.SIGKILL)
        await asyncio.sleep(away_s)
        self._life.close()
        self.start()

    async def freeze(self, lasts_s: float) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        self._life.close()

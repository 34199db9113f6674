"""The system under test: Redis, two front ends, four pools of two models, one store."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from redis.asyncio import Redis

from deploy.local.environment import settings_environment
from service.auth.api_keys import ApiKeys
from service.settings.limits import LimitSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from service.settings.usage import UsageSettings
from tests import coarse
from tests.chaos import checkpoints
from tests.chaos.history import History
from tests.chaos.orders import CLIPS, MAX_STEPS, PICTURES, TENANTS
from tests.chaos.plan import FRONTS, LEASE_S, POOLS
from tests.chaos.processes import MARK, Process, until
from tests.chaos.server import Server
from tests.chaos.wall import Wall

SLOTS = 4
"""Slots of each pool; batches and resumption in another pool do not change an image's bytes."""
DTYPE_OF = {PICTURES: "bfloat16", CLIPS: "float32"}
NEVER = 1000
"""Limits of attempts and worker deaths, too high to fail the jobs that the run interrupts."""
LEDGER_EVERY_S = 5.0
"""Period of the ledger's files; short, for many files per run."""
DEPOSIT_S = 20.0
"""Lifetime of input files of unsubmitted jobs; longer than a POST whose client stays connected."""
START_S = 150.0
"""Time for JAX, checkpoint and programs of several processes on a busy machine with two cores."""
MODEL_OF = dict(zip(POOLS, (PICTURES, PICTURES, PICTURES, CLIPS), strict=True))


@dataclass(frozen=True)
class Pace:
    """Lease and reaping interval, which determine how soon failures are noticed."""

    lease_s: float = LEASE_S
    reap_every_s: float = 0.5


def settings(state: Path, url: str, models: Mapping[str, Path], pace: Pace) -> Settings:
    """Settings of all processes."""
    pool = {"slots": SLOTS, "drain_s": 10, "preview_every_s": 0.2}
    return Settings(
        state_dir=state,
        compile_cache=os.environ.get("TESTS_COMPILED") or None,
        redis=RedisSettings(url=url),
        server=ServerSettings(port=0, keys=True),
        limits=LimitSettings(max_steps=MAX_STEPS),
        queue=QueueSettings(
            lease_s=pace.lease_s,
            reap_every_s=pace.reap_every_s,
            max_attempts=NEVER,
            max_deaths=NEVER,
            max_events=100_000,
            affinity_s=0.5,
            deposit_s=DEPOSIT_S,
            reuse=True,
        ),
        usage=UsageSettings(file_every_s=LEDGER_EVERY_S),
        tenants={
            name: TenantSettings(weight=weight, device_seconds_per_hour=1e6)
            for name, weight in TENANTS.items()
        },
        models={
            name: ModelSettings.model_validate({"source": str(folder), "dtype": DTYPE_OF[name]})
            for name, folder in models.items()
        },
        pools={name: PoolSettings(model=model, **pool) for name, model in MODEL_OF.items()},
    )


class System:
    """Starts, supervises and ends the processes; the folder keeps their logs."""

    def __init__(self, folder: Path, history: History, pace: Pace = Pace()) -> None:
        self._folder = folder
        self._pace = pace
        self._history = history
        self._open = ExitStack()
        self.mark = secrets.token_hex(8)
        self.state = folder / "state"
        self.server = Server(self.state)
        self.fronts: list[str] = []
        """Addresses of the front ends."""
        self.api_keys: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def store(self) -> Path:
        return self.state / "outputs"

    async def start(self) -> None:
        """Start everything and wait until it is ready. Raises: TimeoutError, RuntimeError: with the
        process that is not."""
        models = checkpoints.make(self._folder)
        self.server.start()
        self._open.callback(self.server.close)
        self.store.mkdir(parents=True, exist_ok=True)
        self.wall = Wall(self.store)
        settings_ = settings(self.state, self.server.url, models, self._pace)
        environment = settings_environment(settings_, _environment()) | {MARK: self.mark}
        await self._make_keys()
        for name in FRONTS:
            self._add_front(name, environment)
        for name in POOLS:
            command = ["-m", "atelier", "worker", "--pool", name]
            self._add(name, command, environment, _says_so)
        await self._start_all()

    async def _make_keys(self) -> None:
        async with Redis.from_url(self.server.url, decode_responses=True) as redis:
            for tenant in TENANTS:
                _, self.api_keys[tenant] = await ApiKeys(redis).create(tenant)

    def _add_front(self, name: str, environment: Mapping[str, str]) -> None:
        """Add a front end with a socket that outlives it, so that its port does not change."""
        listener = self._open.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.fronts.append(url)
        fd = listener.fileno()
        command = ["-m", "atelier", "serve", "--fd", str(fd)]
        self._add(name, command, environment, partial(_answers, url), fd)

    def _add(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        is_ready: Callable[[Path], Awaitable[bool]],
        *fds: int,
    ) -> None:
        self.processes[name] = Process(
            name,
            [sys.executable, *command],
            environment,
            self._folder,
            is_ready,
            self._history.exits.append,
            fds,
        )

    async def _start_all(self) -> None:
        """Start one pool per model first; the others load the programs that it compiles."""
        first = {model: name for name, model in reversed(MODEL_OF.items())}
        for name in (*FRONTS, *first.values()):
            self._keep(name)
        await self._have_started(*FRONTS, *first.values())
        for name in set(POOLS) - set(first.values()):
            self._keep(name)
        await self._have_started(*POOLS)

    def _keep(self, name: str) -> None:
        self._keepers.append(asyncio.create_task(self.processes[name].keep(), name=name))

    async def _have_started(self, *names: str) -> None:
        for name in names:
            await until(self.processes[name].first_ready, START_S, f"{name} starts")

    async def _are_ready(self, *names: str) -> None:
        for name in names:
            await until(self.processes[name].ready, START_S, f"{name} is ready")

    async def drain(self) -> None:
        """Drain all processes."""
        await self._are_ready(*FRONTS, *POOLS)
        for process in self.processes.values():
            process.drain_for_good()
        await asyncio.gather(*self._keepers)

    def said(self, words: str) -> int:
        """Count occurrences in the processes' logs."""
        logs = (log.read_text(errors="replace") for log in self._folder.glob("*.log"))
        return sum(log.count(words) for log in logs)

    def close(self) -> None:
        """End the remaining processes, regardless of their state."""
        for keeper in self._keepers:
            keeper.cancel()
        for process in self.processes.values():
            process.thaw()
            process.kill()
        self._open.close()


def _environment() -> dict[str, str]:
    """Environment without ATELIER_ variables, with one device instead of the tests' several and
    coarse compilation, as steps take milliseconds."""
    prefixes = ("ATELIER_", "JAX_NUM_CPU_DEVICES")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(prefixes)
    }
    variables = {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1", "XLA_FLAGS": coarse.FLAGS}
    return environment | variables


async def _says_so(log: Path) -> bool:
    return " is ready" in await asyncio.to_thread(log.read_text, errors="replace")


async def _answers(url: str, log: Path) -> bool:
    """Whether the front end answers; a connection error means no."""
    async with httpx.AsyncClient(trust_env=False, timeout=1) as http:
        try:
            return (await http.get(f"{url}/healthz")).is_success
        except httpx.TransportError:
            return False

"""Supervisor of the whole system on one machine: embedded Redis, front end and workers.

The children are the commands of a cluster (`atelier serve`, `atelier worker`). They get all
resolved settings in the environment. They exit with the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from deploy.exit_codes import EXIT_CONFIG
from deploy.local.device_slices import deal, one_device_each, visible_devices, with_own_page
from deploy.local.embedded_redis import EmbeddedRedis, NotStarted, embedded_server
from deploy.local.environment import for_pools, settings_environment, with_host_devices
from deploy.local.processes import ATELIER, Child, ending, importing_atelier
from deploy.local.readiness import becoming_ready
from service.auth.authenticator import check_first_key
from service.auth.exposure import local_url, reached_at
from service.jobs.redis.connection import RedisUnreachable
from service.jobs.storage.private_folders import private_folder
from service.settings.loras import LoraSettings
from service.settings.models import ControlSettings, ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings

DEMO_FOLDER = Path(__file__).resolve().parents[2] / "models" / "demo"
"""Folder of the demo models; `flux` in it, with a model_index.json, is served as `flux-demo`."""
DEMO_EDIT_PIPELINE = "FluxKontextPipeline"
"""Pipeline of the demo models that edit an image."""
DEMO_SLOTS = 2
"""Slots of each demo pool, since four of them share a small machine."""
CORES_A_START = 2
"""Cores that a worker uses while it loads and compiles; with fewer, workers start in turn."""
TURN_S = 60.0
"""Time after which a worker starts even if its predecessor is not ready."""

CHILDREN = {
    "PYTHONUNBUFFERED": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # torch is missing, and not needed
}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""Run time of a child after which the pause before its restart is reset."""
REDIS_STARTS = 3
"""Maximum number of consecutive starts of a Redis that exited."""
SAME_SIGNAL_S = 0.5
"""Time within which several signals count as one: some senders signal a process and its group."""
DEMO_TRIGGERS = {"coral": "coral"}
"""Trigger words of the demo's adapters; adapters without one affect every image."""
KILL_MARGIN_S = 5.0
"""Time to exit in addition to a child's own grace period."""


def plan(
    settings: Settings,
    *,
    pools: int | None = None,
    dtype: str | None = None,
    mesh: str | Mapping[str, int] | None = None,
) -> Settings:
    """Complete the settings of `up`: models, or the demo, and a pool for each model without one.

    Args:
        mesh: `PoolSettings.mesh` of every pool.

    Raises: ConfigError: no model to serve.
    """
    models = dict(settings.models) or demo_models(DEMO_FOLDER)
    loras = dict(settings.loras) if settings.models else demo_loras(DEMO_FOLDER) | settings.loras
    slots = {} if settings.models else {"slots": DEMO_SLOTS}
    if dtype:
        models = {name: model.model_copy(update={"dtype": dtype}) for name, model in models.items()}
    served = {name for pool in settings.pools.values() for name in pool.models}
    independent = [name for name, model in models.items() if not model.is_served_by_base]
    fresh = {name: PoolSettings(model=name, **slots) for name in independent if name not in served}
    planned = {**settings.pools, **fresh}
    changes = {"count": pools, "mesh": mesh and PoolSettings(model="", mesh=mesh).mesh}
    given = {name: value for name, value in changes.items() if value is not None}
    planned = {name: pool.model_copy(update=given) for name, pool in planned.items()}
    state = settings.state_dir.resolve()
    return settings.model_copy(
        update={"models": models, "loras": loras, "pools": planned, "state_dir": state}
    )


def demo_models(folder: Path) -> dict[str, ModelSettings]:
    """Return the installed demo models, by name. Raises: ConfigError: none."""
    folders = sorted(index.parent for index in folder.glob("*/model_index.json"))
    if not folders:
        raise ConfigError(
            f"no demo model's weights are in {folder}; train them with `make train`,"
            " or name a model of your own: atelier up --model NAME=FOLDER"
        )
    models = {
        f"{path.name}-demo": ModelSettings(
            source=str(path),
            dtype="float32",
            controls=demo_controls(folder / "controls" / path.name),
            max_controls=1,
        )
        for path in folders
    }
    return models | demo_edits(folder / "edits", models)


def demo_edits(folder: Path, models: Mapping[str, ModelSettings]) -> dict[str, ModelSettings]:
    """Return the demo models that edit images: demo models with a fused adapter."""
    bases = {file: f"{file.stem}-demo" for file in sorted(folder.glob("*.safetensors"))}
    return {
        f"{file.stem}-edit-demo": ModelSettings(
            base=base, lora=str(file), fuse=True, pipeline=DEMO_EDIT_PIPELINE
        )
        for file, base in bases.items()
        if base in models
    }


def demo_controls(folder: Path) -> dict[str, ControlSettings]:
    """Return the installed ControlNets of a demo model, by name."""
    folders = sorted(config.parent for config in folder.glob("*/config.json"))
    return {path.name: ControlSettings(source=str(path)) for path in folders}


def demo_loras(folder: Path) -> dict[str, LoraSettings]:
    """Return the installed adapters of the demo's Flux model, by name."""
    return {
        file.stem: LoraSettings(
            source=str(file),
            model="flux-demo",
            trigger=DEMO_TRIGGERS.get(file.stem, ""),
            preview=str(file.with_suffix(".png")),
        )
        for file in sorted(folder.glob("loras/*.safetensors"))
    }


def up(settings: Settings, *, host_devices: int | None = None) -> int:
    """Run the whole system until a signal stops it; return the exit code.

    Raises: ConfigError: it cannot start, or cannot continue.
    """
    make_private(settings.state_dir)
    with ExitStack() as stack:
        redis_server = None
        if settings.redis.url is None:
            say(f"starting an embedded Redis; its state is in {settings.state_dir}")
            redis_server = stack.enter_context(embedded_server(settings.state_dir))
            redis = settings.redis.model_copy(update={"url": redis_server.url})
            settings = settings.model_copy(update={"redis": redis})
        with suppress(RedisUnreachable):  # the front end waits for Redis, and checks then
            asyncio.run(check_first_key(settings, reached_at(settings.server, None)))
        listener = stack.enter_context(_listen(settings.server.host, settings.server.port))
        server = settings.server.model_copy(update={"port": listener.getsockname()[1]})
        system = Supervisor(settings.model_copy(update={"server": server}), listener, host_devices)
        asyncio.run(system.run(redis_server))
        for number in SIGNALS:  # only Redis is left, and must finish writing
            signal.signal(number, signal.SIG_IGN)
    say("stopped")
    return 0


def make_private(state_dir: Path) -> None:
    """Create the state folder with access for its user only.

    Raises: ConfigError: it cannot be created, or belongs to another user.
    """
    try:
        private_folder(state_dir, "state_dir", deep=False)
    except OSError as error:
        raise ConfigError(
            f"state_dir: {state_dir} cannot be created ({error.strerror}); choose another with"
            " --state"
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket: early clients wait instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {host}, port {port}: {error.strerror or error};"
            " choose another with --port (0 takes a free one)"
        ) from None


class Supervisor:
    """Runs the front end and workers: restarts them when they exit, drains them in order."""

    def __init__(
        self, settings: Settings, listener: socket.socket, host_devices: int | None
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._draining = asyncio.Event()
        self._signalled_at = 0.0
        self._out: set[Child] = set()
        """Children with invalid settings or checkpoint, which a restart cannot fix."""
        pools = settings.pools.values()
        self._ready = {name: asyncio.Event() for pool in pools for name in pool.models}
        """Set when a model is ready."""
        common = importing_atelier(settings_environment(settings, os.environ | CHILDREN))
        fd = listener.fileno()
        self._front = Child(
            "front", [*ATELIER, "serve", "--fd", str(fd)], common, self._relay, pass_fds=[fd]
        )
        devices_here = host_devices or visible_devices(os.environ)
        dealt = deal(one_device_each(settings), devices_here, bool(host_devices))
        names = [
            (name, index, f"{name}.{index}" if pool.count > 1 else name, devices)
            for name, pool in settings.pools.items()
            for index, devices in enumerate(dealt[name])
        ]

        def computing(name: str, index: int) -> dict[str, str]:
            environment = settings_environment(
                with_own_page(for_pools(settings), name, index), common
            )
            return with_host_devices(environment, host_devices) if host_devices else environment

        self._pools = [
            Child(shown, [*ATELIER, *_worker(name, devices)], computing(name, index), self._relay)
            for name, index, shown, devices in names
        ]
        self._width = max(len(child.name) for child in self._children)
        self._models = {
            child: settings.pools[name].models
            for (name, *_), child in zip(names, self._pools, strict=True)
        }

    async def run(self, redis: EmbeddedRedis | None) -> None:
        """Run until a signal, or until a child exits that cannot be restarted.

        Args:
            redis: embedded server to restart when it exits; None: external Redis.

        Raises: ConfigError: a child cannot be restarted; all others have exited.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        keepers = [asyncio.create_task(self._keep(self._front))]
        keepers += [asyncio.create_task(self._keep_in_turn(pool)) for pool in self._pools]
        watchers: list[asyncio.Task[Any]] = [asyncio.create_task(self._draining.wait())]
        if redis is not None:
            watchers.append(asyncio.create_task(self._keep_redis(redis)))
        announcer = asyncio.create_task(self._announce())
        ended, _ = await asyncio.wait([*keepers, *watchers], return_when=asyncio.FIRST_COMPLETED)
        announcer.cancel()
        await self._drain()
        for task in watchers:
            task.cancel()
        await asyncio.gather(*keepers, *watchers, announcer, return_exceptions=True)
        for task in ended:
            task.result()

    @property
    def _children(self) -> Sequence[Child]:
        return (self._front, *self._pools)

    def _interrupt(self) -> None:
        now = time.monotonic()
        if not self._draining.is_set():
            self._signalled_at = now
            self._draining.set()
        elif now - self._signalled_at > SAME_SIGNAL_S:
            say("stopping at once")
            self._kill()

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    async def _keep_in_turn(self, pool: Child) -> None:
        """Keep a worker running as `_keep`; on few cores, start it once earlier workers are ready.

        The first worker is then ready as early as possible.
        """
        if (os.cpu_count() or 1) < CORES_A_START * len(self._pools):
            order = list(self._ready)
            for model in order[: order.index(self._models[pool][0])]:
                await _first(self._ready[model], self._draining, TURN_S)
        await self._keep(pool)

    async def _keep(self, child: Child) -> None:
        """Run a child process and restart it. Raises: ConfigError: a restart is pointless."""
        pause_s = FIRST_PAUSE_S
        while not self._draining.is_set():
            started = time.monotonic()
            code = await child.run()
            if self._draining.is_set():
                return
            if code == EXIT_CONFIG:
                self._out.add(child)
                for model in self._models.get(child, ()):
                    self._ready[model].set()  # let workers that wait for it start
                message = f"{child.name} can't start with these settings; see above"
                if child is self._front or self._out.issuperset(self._pools):
                    raise ConfigError(message)
                say(
                    f"{message}. The others continue; correct the settings and start `atelier up`"
                    " again"
                )
                await self._draining.wait()
                return
            steady = time.monotonic() - started > STEADY_S
            pause_s = FIRST_PAUSE_S if steady else pause_s
            say(f"{child.name} ended ({ending(code)}); starting it again in {pause_s:g} s")
            await _unless(self._draining, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _keep_redis(self, redis: EmbeddedRedis) -> None:
        """Restart Redis on its file whenever it exits, also while workers drain.

        Raises: ConfigError: it cannot be restarted; all others are killed.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            await _ended(redis.pid)
            steady = time.monotonic() - started > STEADY_S
            pause_s = FIRST_PAUSE_S if steady else pause_s
            code = redis.process.wait()
            say(f"the embedded Redis ended ({ending(code)}); starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await start_again(redis)
            except (NotStarted, OSError) as error:
                self._kill()
                raise ConfigError(str(error)) from error
            say("the embedded Redis runs again, with all accepted jobs")

    async def _drain(self) -> None:
        """Stop the front end first, so that no requests are accepted, then the workers."""
        self._draining.set()
        self._listener.close()
        say("stopping: the front end accepts no more requests (Ctrl-C again: stop at once)")
        await self._front.stop(self._settings.server.shutdown_grace_s + KILL_MARGIN_S)
        say("stopping: the pools finish their step and release unfinished jobs")
        grace_s = max(pool.drain_s for pool in self._settings.pools.values()) + KILL_MARGIN_S
        await asyncio.gather(*(pool.stop(grace_s) for pool in self._pools))

    async def _announce(self) -> None:
        """Print when each model is ready, and finally when all are."""
        started = time.monotonic()
        server, names = self._settings.server, ", ".join(self._settings.models)
        url = local_url(server.host, server.port)
        say(f"starting the front end at {url} and {len(self._pools)} pool(s) for {names}")
        served = {name for pool in self._settings.pools.values() for name in pool.models}
        async for model in becoming_ready(url, served):
            seconds = time.monotonic() - started
            self._ready[model].set()
            if len(self._settings.models) > 1:
                say(f"{model} is ready at {url} after {seconds:.0f} s")
        say(f"Atelier is ready at {url} — {names} ready after {seconds:.0f} s")

    def _relay(self, name: str, line: str) -> None:
        print(f"{name:<{self._width}} | {line}", flush=True)


def say(text: str) -> None:
    """Print a message of the supervisor."""
    print(text, flush=True)


def _worker(pool: str, devices: range) -> Sequence[str]:
    return ("worker", "--pool", pool, "--devices", f"{devices.start}-{devices.stop - 1}")


async def start_again(redis: EmbeddedRedis) -> None:
    """Restart Redis on its file, with several attempts. Raises: NotStarted: all failed."""
    for attempt in range(1, REDIS_STARTS + 1):
        try:
            redis.start()  # in this thread, with which the server exits
            return await asyncio.to_thread(redis.wait_until_ready)
        except (NotStarted, OSError) as error:
            if attempt == REDIS_STARTS:
                raise
            say(f"{error}; trying again in {attempt * FIRST_PAUSE_S:g} s")
        await asyncio.sleep(attempt * FIRST_PAUSE_S)


async def _ended(pid: int) -> None:
    """Wait until the process with this id has exited."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _first(event: asyncio.Event, other: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set, or for that time."""
    waiting = [asyncio.create_task(item.wait()) for item in (event, other)]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _unless(event: asyncio.Event, seconds: float) -> None:
    """Sleep until the event is set, or for that time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return

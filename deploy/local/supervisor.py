"""The whole system on one machine: embedded Redis, front end and pools under one supervisor.

The children are the commands that a cluster runs (`atelier serve`, `atelier worker`), with every
setting resolved here and handed over in the environment. They can't outlive the supervisor.
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
from deploy.local.device_slices import deal, visible_devices, with_own_page
from deploy.local.embedded_redis import EmbeddedRedis, NotStarted, embedded_server
from deploy.local.environment import for_pools, settings_environment, with_host_devices
from deploy.local.processes import ATELIER, Child, ending, importing_ours
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
"""Folder of the demo models: `flux` in it, with a model_index.json, is served as `flux-demo`."""
DEMO_EDIT_PIPELINE = "FluxKontextPipeline"
"""Pipeline of the demo models that change an image."""
DEMO_SLOTS = 2
"""Slots of each demo model's pool: four of them share a small machine."""
CORES_A_START = 2
"""Cores that a pool keeps busy while it loads and compiles; with fewer, pools start in turns."""
TURN_S = 60.0
"""A pool's turn to start comes by then, even if the one before is not ready yet."""

CHILDREN = {
    "PYTHONUNBUFFERED": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # that torch is missing: it is not needed
}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that ran for this long is started again after the first pause."""
REDIS_STARTS = 3
"""Attempts to start an embedded Redis that has ended, one after the other."""
SAME_SIGNAL_S = 0.5
"""Time in which signals to a process and its group count as one: some senders send both."""
DEMO_TRIGGERS = {"coral": "coral"}
"""Words for the demo's adapters that go with some; others change every image."""
KILL_MARGIN_S = 5.0
"""Time that a child may take to end beyond its own grace."""


def plan(
    settings: Settings,
    *,
    pools: int | None = None,
    dtype: str | None = None,
    mesh: str | Mapping[str, int] | None = None,
) -> Settings:
    """Plan what `up` serves: the settings' models, or the demo; a pool for each that has none.

    Args:
        mesh: of every pool, as `PoolSettings.mesh` has it.

    Raises: ConfigError: there is nothing to serve.
    """
    models = dict(settings.models) or demo_models(DEMO_FOLDER)
    loras = dict(settings.loras) if settings.models else demo_loras(DEMO_FOLDER) | settings.loras
    slots = {} if settings.models else {"slots": DEMO_SLOTS}
    if dtype:
        models = {name: model.model_copy(update={"dtype": dtype}) for name, model in models.items()}
    served = {name for pool in settings.pools.values() for name in pool.models}
    own = [name for name, model in models.items() if not model.is_served_by_base]
    fresh = {name: PoolSettings(model=name, **slots) for name in own if name not in served}
    planned = {**settings.pools, **fresh}
    changes = {"count": pools, "mesh": mesh and PoolSettings(model="", mesh=mesh).mesh}
    given = {name: value for name, value in changes.items() if value is not None}
    planned = {name: pool.model_copy(update=given) for name, pool in planned.items()}
    state = settings.state_dir.resolve()
    return settings.model_copy(
        update={"models": models, "loras": loras, "pools": planned, "state_dir": state}
    )


def demo_models(folder: Path) -> dict[str, ModelSettings]:
    """The demo models that are there, by name. Raises: ConfigError: none is."""
    found = sorted(index.parent for index in folder.glob("*/model_index.json"))
    if not found:
        raise ConfigError(
            f"no demo model's weights are in {folder}; train them with `make train`,"
            " or name a model of your own: atelier up --model NAME=FOLDER"
        )
    models = {
        f"{at.name}-demo": ModelSettings(
            source=str(at),
            dtype="float32",
            controls=demo_controls(folder / "controls" / at.name),
            max_controls=1,
        )
        for at in found
    }
    return models | demo_edits(folder / "edits", models)


def demo_edits(folder: Path, models: Mapping[str, ModelSettings]) -> dict[str, ModelSettings]:
    """The demo models that change an image: each is another one with an adapter, `flux` of Flux."""
    bases = {file: f"{file.stem}-demo" for file in sorted(folder.glob("*.safetensors"))}
    return {
        f"{file.stem}-edit-demo": ModelSettings(
            base=base, lora=str(file), fuse=True, pipeline=DEMO_EDIT_PIPELINE
        )
        for file, base in bases.items()
        if base in models
    }


def demo_controls(folder: Path) -> dict[str, ControlSettings]:
    """The ControlNets of a demo model that are there, by name."""
    found = sorted(config.parent for config in folder.glob("*/config.json"))
    return {at.name: ControlSettings(source=str(at)) for at in found}


def demo_loras(folder: Path) -> dict[str, LoraSettings]:
    """The demo's adapters that are there, by name: of its Flux."""
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
    """Run everything until a signal ends it; the exit code.

    Raises: ConfigError: it can't start, or can't go on.
    """
    make_private(settings.state_dir)
    with ExitStack() as stack:
        redis_server = None
        if settings.redis.url is None:
            say(f"starting an embedded Redis; the state lies in {settings.state_dir}")
            redis_server = stack.enter_context(embedded_server(settings.state_dir))
            redis = settings.redis.model_copy(update={"url": redis_server.url})
            settings = settings.model_copy(update={"redis": redis})
        with suppress(RedisUnreachable):  # the front end waits, and asks then
            asyncio.run(check_first_key(settings, reached_at(settings.server, None)))
        listener = stack.enter_context(_listen(settings.server.host, settings.server.port))
        server = settings.server.model_copy(update={"port": listener.getsockname()[1]})
        system = Supervisor(settings.model_copy(update={"server": server}), listener, host_devices)
        asyncio.run(system.run(redis_server))
        for number in SIGNALS:  # Redis alone is left, and writes what it has to write
            signal.signal(number, signal.SIG_IGN)
    say("stopped")
    return 0


def make_private(state_dir: Path) -> None:
    """Make the state folder, for its user alone.

    Raises: ConfigError: the folder cannot be had, or is another user's.
    """
    try:
        private_folder(state_dir, "state_dir", deep=False)
    except OSError as error:
        raise ConfigError(
            f"state_dir: {state_dir} cannot be made ({error.strerror}); take another with --state"
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens from now on: early clients wait instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {host}, port {port}: {error.strerror or error};"
            " choose another with --port (0 takes a free one)"
        ) from None


class Supervisor:
    """The front end and the pools: started, started again when they die, drained in order."""

    def __init__(
        self, settings: Settings, listener: socket.socket, host_devices: int | None
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._draining = asyncio.Event()
        self._asked_at = 0.0
        self._out: set[Child] = set()
        """Children whose settings or checkpoint no restart can mend."""
        pools = settings.pools.values()
        self._ready = {name: asyncio.Event() for pool in pools for name in pool.models}
        """Set when a model can be used."""
        common = importing_ours(settings_environment(settings, os.environ | CHILDREN))
        fd = listener.fileno()
        self._front = Child(
            "front", [*ATELIER, "serve", "--fd", str(fd)], common, self._relay, pass_fds=[fd]
        )
        dealt = deal(
            settings.pools, host_devices or visible_devices(os.environ), bool(host_devices)
        )
        names = [
            (name, index, f"{name}.{index}" if pool.count > 1 else name, devices)
            for name, pool in settings.pools.items()
            for index, devices in enumerate(dealt[name])
        ]

        def computing(name: str, index: int) -> dict[str, str]:
            own = settings_environment(with_own_page(for_pools(settings), name, index), common)
            return with_host_devices(own, host_devices) if host_devices else own

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
        """Run until a signal, or until something ends that can't be started again.

        Args:
            redis: started again when it ends; None: it is not ours.

        Raises: ConfigError: in the second case, when all else has ended.
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
            self._asked_at = now
            self._draining.set()
        elif now - self._asked_at > SAME_SIGNAL_S:
            say("stopping at once")
            self._kill()

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    async def _keep_in_turn(self, pool: Child) -> None:
        """Keep processes running as `_keep` does, made ready one after the other.

        On a machine of few cores the first one is ready as soon as it can be.
        """
        if (os.cpu_count() or 1) < CORES_A_START * len(self._pools):
            order = list(self._ready)
            for model in order[: order.index(self._models[pool][0])]:
                await _first(self._ready[model], self._draining, TURN_S)
        await self._keep(pool)

    async def _keep(self, child: Child) -> None:
        """Run a child, again and again. Raises: ConfigError: that is of no use."""
        pause_s = FIRST_PAUSE_S
        while not self._draining.is_set():
            started = time.monotonic()
            code = await child.run()
            if self._draining.is_set():
                return
            if code == EXIT_CONFIG:
                self._out.add(child)
                for model in self._models.get(child, ()):
                    self._ready[model].set()  # nobody has to wait for its turn
                said = f"{child.name} can't start with these settings; see above"
                if child is self._front or self._out.issuperset(self._pools):
                    raise ConfigError(said)
                say(f"{said}. The others go on; mend it and start `atelier up` again")
                await self._draining.wait()
                return
            steady = time.monotonic() - started > STEADY_S
            pause_s = FIRST_PAUSE_S if steady else pause_s
            say(f"{child.name} ended ({ending(code)}); starting it again in {pause_s:g} s")
            await _unless(self._draining, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _keep_redis(self, redis: EmbeddedRedis) -> None:
        """Start it again on its file whenever it ends, while the pools drain too.

        Raises: ConfigError: it does not start any more, and everybody else is being killed.
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
            say("the embedded Redis is there again, with all that was accepted")

    async def _drain(self) -> None:
        """The front end first, so that nothing more comes in, then the pools."""
        self._draining.set()
        self._listener.close()
        say("stopping: the front end takes no more requests (Ctrl-C again: all at once)")
        await self._front.stop(self._settings.server.shutdown_grace_s + KILL_MARGIN_S)
        say("stopping: the pools finish their step and give back what they have not done")
        grace_s = max(pool.drain_s for pool in self._settings.pools.values()) + KILL_MARGIN_S
        await asyncio.gather(*(pool.stop(grace_s) for pool in self._pools))

    async def _announce(self) -> None:
        """Say of every model once that it can be used, and where, and at last of all."""
        started = time.monotonic()
        server, names = self._settings.server, ", ".join(self._settings.models)
        url = local_url(server.host, server.port)
        say(f"starting the front end at {url} and {len(self._pools)} pool(s) for {names}")
        own = {name for pool in self._settings.pools.values() for name in pool.models}
        async for model in becoming_ready(url, own):
            seconds = time.monotonic() - started
            self._ready[model].set()
            if len(self._settings.models) > 1:
                say(f"{model} is ready at {url} after {seconds:.0f} s")
        say(f"Atelier is ready at {url} — {names} ready after {seconds:.0f} s")

    def _relay(self, name: str, line: str) -> None:
        print(f"{name:<{self._width}} | {line}", flush=True)


def say(text: str) -> None:
    """A line of the supervisor's own."""
    print(text, flush=True)


def _worker(pool: str, devices: range) -> Sequence[str]:
    return ("worker", "--pool", pool, "--devices", f"{devices.start}-{devices.stop - 1}")


async def start_again(redis: EmbeddedRedis) -> None:
    """Start it on its file, with a few attempts. Raises: NotStarted: the last one's."""
    for attempt in range(1, REDIS_STARTS + 1):
        try:
            redis.start()  # in this thread, which the server is not to outlive
            return await asyncio.to_thread(redis.wait_until_ready)
        except (NotStarted, OSError) as error:
            if attempt == REDIS_STARTS:
                raise
            say(f"{error}; trying again in {attempt * FIRST_PAUSE_S:g} s")
        await asyncio.sleep(attempt * FIRST_PAUSE_S)


async def _ended(pid: int) -> None:
    """Return when that process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _first(event: asyncio.Event, other: asyncio.Event, seconds: float) -> None:
    """Return when one of the events has come, or after that time."""
    waiting = [asyncio.create_task(one.wait()) for one in (event, other)]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _unless(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but not on after the event."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return

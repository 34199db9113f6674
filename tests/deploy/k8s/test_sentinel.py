"""components/redis-sentinel: its pods run with real servers, and its objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import RedisError

from service.jobs.queue import Queue
from service.jobs.redis.connection import connect
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.deploy.k8s.objects import named, pods_of
from tests.deploy.k8s.rendering import REPOSITORY, Object
from tests.deploy.k8s.sentinel_pods import PASSWORD, SentinelPods, sentinel_pods
from tests.service.eventually import eventually
from tests.service.jobs.examples import a_job

END_S = 60.0
LOOK_EVERY_S = 0.3
COMPONENT = REPOSITORY / "deploy" / "k8s" / "components" / "redis-sentinel"


@pytest.fixture(scope="module")
def objects(variants: dict[str, tuple[Object, ...]]) -> tuple[Object, ...]:
    return variants["redis-sentinel"]


@pytest.fixture(scope="module")
def servers(
    objects: tuple[Object, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SentinelPods]:
    with sentinel_pods(objects, tmp_path_factory.mktemp("pods")) as running:
        yield running


def settings_of(servers: SentinelPods) -> Settings:
    """Settings of front ends, reduced to those that concern Redis."""
    (front,) = pods_of(servers.objects, "frontend")
    names = servers.settings_of(front)
    redis = {
        name.removeprefix("ATELIER_REDIS__").lower(): value
        for name, value in names.items()
        if name.startswith("ATELIER_REDIS__")
    }
    waits = int(names["ATELIER_QUEUE__WAIT_REPLICAS"])
    return Settings(
        redis=RedisSettings.model_validate(redis), queue=QueueSettings(wait_replicas=waits)
    )


@asynccontextmanager
async def opened(servers: SentinelPods) -> AsyncIterator[Queue]:
    """Queue of a client with the manifests' settings, connected once Redis responds."""
    async with asyncio.timeout(END_S):
        while True:
            try:
                queue = await Queue.open(settings_of(servers))
                break
            except ConfigError:
                await asyncio.sleep(0.2)
    try:
        yield queue
    finally:
        await queue.close()


async def accepted(queue: Queue, key: str) -> str:
    """Submit a job until it is accepted; return its id."""
    async with asyncio.timeout(END_S):
        while True:
            try:
                return (await queue.put(a_job(), idempotency_key=key, digest="d"))[0].id
            except (RedisError, OSError):
                await asyncio.sleep(0.05)


async def primary_is(servers: SentinelPods, *nodes: int) -> None:
    await holds(lambda: servers.primary() in nodes)


async def holds(condition: Callable[[], bool]) -> None:
    """Wait for a condition that is slow to evaluate."""

    async def look() -> bool:
        await asyncio.sleep(LOOK_EVERY_S)
        return await asyncio.to_thread(condition)

    await eventually(look)


async def is_ready(servers: SentinelPods, node: int) -> None:
    probe = servers.pods.containers[0]["readinessProbe"]["exec"]["command"]

    await holds(lambda: servers.run(node, probe) == 0)


async def test_pods_elect_keep_and_hand_over_a_primary(servers: SentinelPods) -> None:
    """No accepted job is lost when a primary is killed, restarted, or shut down in order."""
    try:
        async with opened(servers) as queue:
            await primary_is(servers, 0)
            jobs = [await accepted(queue, f"before {number}") for number in range(20)]
            for node in range(3):
                await is_ready(servers, node)
            await holds(servers.know_each_other)
            servers.kill(0)
            jobs += [await accepted(queue, f"after {number}") for number in range(20)]
            await primary_is(servers, 1, 2)
            servers.start(0)
            await is_ready(servers, 0)
            current = servers.primary()
            assert current in (1, 2)
            leave = servers.pods.containers[0]["lifecycle"]["preStop"]["exec"]["command"]
            assert await asyncio.to_thread(servers.run, current, leave) == 0
            assert servers.primary() != current
            jobs += [await accepted(queue, "at the end")]
            assert [job for job in jobs if await queue.get(job) is None] == []
    except BaseException:
        print(servers.logs())
        raise


async def test_servers_and_sentinels_read_a_changed_secret(servers: SentinelPods) -> None:
    async def lets_in(password: str) -> bool:
        file = servers.password_file.with_name("of-client")
        file.write_text(password)
        redis = settings_of(servers).redis
        files = {"password_file": file, "sentinel_password_file": file}
        try:
            client = await connect(redis.model_copy(update=files))
        except ConfigError:
            return False
        await client.aclose()
        return True

    async with opened(servers):
        assert not await lets_in("a guess")
    servers.set_passwords(PASSWORD, "next one")
    await eventually(lambda: lets_in("next one"))
    assert await lets_in(PASSWORD)


def test_user_rights_match_the_documentation() -> None:
    page = (REPOSITORY / "docs" / "operations" / "redis.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("user atelier ")]
    script = (COMPONENT / "server.sh").read_text()
    assert line.strip().replace(">PASSWORD ", "${clients}") in script


def test_pods_are_on_different_machines(objects: tuple[Object, ...]) -> None:
    (pods,) = pods_of(objects, "redis")
    (apart,) = pods.spec["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= pods.labels.items()
    assert pods.owner["spec"]["replicas"] == 3
    assert named(objects, "PodDisruptionBudget", "atelier-redis")["spec"]["maxUnavailable"] == 1
    assert named(objects, "Service", "atelier-redis")["spec"]["clusterIP"] == "None"

"""Failover of the primary: with Sentinels, and behind a fixed address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis.exceptions import RedisError

from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.redis import connection, keys
from service.jobs.redis.connection import RedisUnreachable
from service.jobs.scripts.client import Unconfirmed
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.settings import Settings
from tests.service.eventually import eventually
from tests.service.jobs.examples import MODEL, USAGE, a_job, an_output
from tests.service.jobs.servers import (
    KEPT,
    Relay,
    Server,
    follow,
    pair,
    relay,
    running,
    url_of,
    watched,
)

T = TypeVar("T")

PUTTERS, CLAIMERS = 4, 4
BEFORE, AFTER = 60, 60
"""Number of jobs accepted before and after the primary is killed."""
END_S = 60.0
AGAIN_S = 0.05


async def until_done(call: Callable[[], Awaitable[T]]) -> T:
    """Retry while Redis is unreachable, as clients and workers do."""
    while True:
        try:
            return await call()
        except (RedisError, OSError):
            await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def opened(url: str, **queue: Any) -> AsyncIterator[Queue]:
    settings = Settings(redis=RedisSettings(url=url), queue=QueueSettings(**queue))
    connected = await Queue.open(settings)
    try:
        yield connected
    finally:
        await connected.close()


class Load:
    """Clients that submit, workers that claim and finish, and a reaper, each with its own
    connections."""

    def __init__(self, url: str, **queue: Any) -> None:
        self._url = url
        self._settings = {"lease_s": 2.0, "reap_every_s": 0.5, **queue}
        self.accepted: list[str] = []
        self.reports: Counter[str] = Counter()
        """Number of successful finishes reported to workers, by job."""
        self._number = 0
        self._is_over = asyncio.Event()

    async def accepts(self, number: int) -> None:
        """Wait until `number` more jobs are accepted."""
        until = len(self.accepted) + number
        await eventually(lambda: self._has_accepted(until))

    async def _has_accepted(self, number: int) -> bool:
        return len(self.accepted) >= number

    async def put(self) -> None:
        async with opened(self._url, **self._settings) as queue:
            while not self._is_over.is_set():
                self._number += 1
                job, key = a_job(), f"key {self._number}"

                async def once() -> str:
                    return (await queue.put(job, idempotency_key=key, digest="d"))[0].id  # noqa: B023

                self.accepted.append(await until_done(once))

    async def claim(self, pool: str) -> None:
        async with opened(self._url, **self._settings) as queue:
            while True:
                claims = await until_done(lambda: queue.claim(pool, MODEL, 4, wait_s=0.5))
                for claim in claims:
                    output = an_output(claim.job)
                    if await until_done(lambda: queue.finish(claim, [output], USAGE)):  # noqa: B023
                        self.reports[claim.job.id] += 1

    async def reap(self) -> None:
        async with opened(self._url, **self._settings) as queue:
            while True:
                await until_done(queue.reap)
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        putting = [asyncio.create_task(self.put()) for _ in range(PUTTERS)]
        others = [asyncio.create_task(self.claim(f"pool-{n}")) for n in range(CLAIMERS)]
        others.append(asyncio.create_task(self.reap()))
        try:
            yield
            self._is_over.set()
            await asyncio.gather(*putting)
            async with opened(self._url, **self._settings) as queue:
                await eventually(lambda: self._has_ended(queue))
        finally:
            for task in [*putting, *others]:
                task.cancel()
            results = await asyncio.gather(*putting, *others, return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        assert not errors, errors

    async def _has_ended(self, queue: Queue) -> bool:
        depths = await queue.redis.zcard(keys.PREFIX + "leases")
        return not depths and not await queue.redis.exists(keys.PREFIX + f"queued:{MODEL}")


async def ends_of(queue: Queue, job_id: str) -> list[str]:
    """End states in a job's events; empty if there is no such job."""
    job = await queue.get(job_id)
    if job is None:
        return []
    assert job.state is JobState.SUCCEEDED
    return [event.name async for event in queue.events(job_id) if JobState(event.name).ended]


@pytest.mark.parametrize("replicas", [1, 0])
async def test_a_primary_is_killed_in_mid_load(
    tmp_path: Path, replicas: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        pair(tmp_path) as (primary, replica),
        watched(tmp_path, primary) as sentinels,
        asyncio.timeout(4 * END_S),
    ):
        url = url_of(sentinels)
        load = Load(url, wait_replicas=replicas, wait_replicas_s=1.0)
        async with load.running():
            await load.accepts(BEFORE)
            primary.kill()
            killed_at, accepted = asyncio.get_running_loop().time(), len(load.accepted)
            if replicas:  # until the new primary has a replica, no server confirms
                await replica.until("replication", role="master")
                primary.start()
            await load.accepts(PUTTERS + 1)
            away_s = asyncio.get_running_loop().time() - killed_at
            await load.accepts(AFTER)
        with capsys.disabled():
            print(f"\naccepted {accepted}, then the next after {away_s:.1f} s")
        async with opened(url) as queue:
            ends = {job_id: await ends_of(queue, job_id) for job_id in load.accepted}
    lost = [job_id for job_id, states in ends.items() if not states]
    assert all(states == ["succeeded"] for states in ends.values() if states)
    if replicas:
        assert not lost
    else:  # only jobs that the replica had not received when the primary died
        assert set(lost) <= set(load.accepted[BEFORE // 2 : accepted + PUTTERS])


@asynccontextmanager
async def held_replica(folder: Path) -> AsyncIterator[tuple[Relay, Relay, Server, Server]]:
    """A relay in front of a primary, and a relay to its replica that can be held."""
    async with (
        relay(0) as line,
        pair_through(folder, line) as (primary, replica),
        relay(primary.port) as endpoint,
    ):
        yield endpoint, line, primary, replica


@asynccontextmanager
async def pair_through(folder: Path, line: Relay) -> AsyncIterator[tuple[Server, Server]]:
    with running(Server(folder / "a", **KEPT)) as primary:
        await primary.until("replication", role="master")
        line.target = primary.port
        with running(Server(folder / "b", **KEPT)) as replica:
            await follow(replica, line.port)
            yield primary, replica


async def promote(endpoint: Relay, replica: Server) -> None:
    """Promote the replica as a managed service does: the address moves and connections end."""
    async with replica.client() as redis:
        await redis.replicaof("no", "one")
    endpoint.target = replica.port
    endpoint.cut()


async def test_jobs_accepted_without_a_replica_may_be_lost(tmp_path: Path) -> None:
    async with (
        held_replica(tmp_path) as (endpoint, line, primary, replica),
        opened(f"redis://127.0.0.1:{endpoint.port}") as queue,
    ):
        before = [(await queue.put(a_job()))[0].id for _ in range(20)]
        async with primary.client() as redis:
            assert await redis.wait(1, 10_000) == 1
        line.hold()
        inside = [(await queue.put(a_job()))[0].id for _ in range(20)]
        line.cut()
        primary.kill()
        await promote(endpoint, replica)
        after = [(await until_done(lambda: queue.put(a_job())))[0].id for _ in range(20)]
        exists = {job_id: await queue.get(job_id) is not None for job_id in before + inside + after}
        claims = [c for _ in range(60) for c in await queue.claim("pool", MODEL, 4)]
    assert [job_id for job_id, is_there in exists.items() if not is_there] == inside
    assert sorted(claim.job.id for claim in claims) == sorted(before + after)


async def test_acceptance_that_no_replica_confirms_is_refused(tmp_path: Path) -> None:
    """An unconfirmed job without a key is withdrawn; one with a key stays for its repeat."""
    waits = {"wait_replicas": 1, "wait_replicas_s": 0.2}
    async with (
        held_replica(tmp_path) as (endpoint, line, _, replica),
        opened(f"redis://127.0.0.1:{endpoint.port}", **waits) as queue,
        opened(f"redis://127.0.0.1:{endpoint.port}", **waits) as other,
    ):
        await queue.put(a_job())
        line.hold()
        unkeyed, keyed = a_job(), a_job()
        with pytest.raises(Unconfirmed):
            await queue.put(unkeyed)
        assert await queue.get(unkeyed.id) is None
        with pytest.raises(Unconfirmed):
            await queue.put(keyed, idempotency_key="key", digest="d")

        async def again() -> tuple[Job, bool]:
            """Repeat through another front end, whose connection has written nothing before."""
            return await other.put(a_job(), idempotency_key="key", digest="d")

        with pytest.raises(Unconfirmed):
            await again()
        line.release()
        await replica.until("replication", master_link_status="up")
        async with asyncio.timeout(END_S):
            repeated, is_new = await until_done(again)
        assert (repeated.id, is_new) == (keyed.id, False)
        async with replica.client() as redis:
            assert await redis.exists(keys.job(keyed.id))


async def test_clients_leave_a_demoted_primary(tmp_path: Path) -> None:
    """The old primary keeps its connections but rejects writes. No call has its effect twice."""
    async with (
        pair(tmp_path) as (primary, replica),
        relay(primary.port) as endpoint,
        opened(f"redis://127.0.0.1:{endpoint.port}", wait_replicas=1) as queue,
    ):
        first, _ = await queue.put(a_job())
        (claim,) = await queue.claim("pool", MODEL, 1)
        async with replica.client() as redis:
            await redis.replicaof("no", "one")
        await follow(primary, replica.port)
        endpoint.target = replica.port
        second, is_new = await queue.put(a_job())
        assert is_new
        assert await queue.progress(claim, 1, 28)
        assert await queue.finish(claim, [an_output(first)], USAGE)
        (other,) = await queue.claim("pool", MODEL, 4)
        assert other.job.id == second.id and other.fence > claim.fence
        woken = asyncio.create_task(queue.claim("other", MODEL, 1, wait_s=20))
        await asyncio.sleep(0)
        third, _ = await queue.put(a_job())
        assert [item.job.id for item in await woken] == [third.id]


async def test_fence_is_unique_after_a_failover_lost_a_claim(tmp_path: Path) -> None:
    """Equal fences would let two workers own the job's files."""
    async with (
        held_replica(tmp_path) as (endpoint, line, primary, replica),
        opened(f"redis://127.0.0.1:{endpoint.port}") as queue,
    ):
        job, _ = await queue.put(a_job())
        async with primary.client() as redis:
            assert await redis.wait(1, 10_000) == 1
        line.hold()
        (lost,) = await queue.claim("one", MODEL, 1)
        line.cut()
        primary.kill()
        await promote(endpoint, replica)
        (current,) = await until_done(lambda: queue.claim("two", MODEL, 1))
        assert current.job.id == lost.job.id and current.fence > lost.fence
        assert current.is_first, "the lost claim is unknown to Redis"
        assert not await queue.finish(lost, [an_output(job)], USAGE)
        assert await queue.renew([lost]) == [lost]
        assert await queue.finish(current, [an_output(job)], USAGE)


async def test_replica_is_retried_until_its_promotion(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, replica):
        settings = RedisSettings(url=f"redis://127.0.0.1:{replica.port}")
        with pytest.raises(RedisUnreachable, match="is a replica, which accepts no writes"):
            await connection.connect(settings)
        waiting = asyncio.create_task(connection.wait_until_reached(settings, lambda _: None))
        async with replica.client() as redis:
            await redis.replicaof("no", "one")
        async with asyncio.timeout(END_S):
            await waiting


async def test_no_sentinel_is_forgotten(tmp_path: Path) -> None:
    """Many connections find the first Sentinel unreachable at once, and move the second to the
    front."""
    async with pair(tmp_path) as (primary, _), watched(tmp_path, primary) as sentinels:
        sentinels[0].kill()
        async with connection.client(RedisSettings(url=url_of(sentinels))) as redis:
            clients = redis.connection_pool.sentinel_manager.sentinels  # type: ignore[attr-defined]
            before = set(clients)
            await asyncio.gather(*(redis.ping() for _ in range(8)))
            assert set(clients) == before and len(clients) == len(sentinels)
            first = clients[0].connection_pool.connection_kwargs["port"]
            assert first == sentinels[1].port


async def test_unknown_primary_name_of_sentinels_is_reported(tmp_path: Path) -> None:
    async with pair(tmp_path) as (primary, _), watched(tmp_path, primary) as sentinels:
        url = url_of(sentinels).replace("/atelier", "/another")
        with pytest.raises(RedisUnreachable, match=r"reports a primary .* the name at the end"):
            await connection.connect(RedisSettings(url=url))
        sentinels[0].kill()
        await (await connection.connect(RedisSettings(url=url_of(sentinels)))).aclose()


async def test_passwords_of_servers_and_sentinels(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (primary, _),
        watched(tmp_path, primary) as sentinels,
        primary.client() as redis,
    ):
        await redis.acl_setuser(
            "atelier",
            enabled=True,
            passwords=["+ours"],
            categories=["+@all"],
            keys=["*"],
            channels=["*"],
        )
        for sentinel in sentinels:
            async with sentinel.client() as redis:
                await redis.execute_command("ACL", "SETUSER", "asker", "on", ">theirs", "+@all")
                await redis.execute_command("ACL", "SETUSER", "default", "off")
        login: dict[str, Any] = {
            "url": url_of(sentinels),
            "username": "atelier",
            "password": "ours",
        }
        asker: dict[str, Any] = {"sentinel_username": "asker", "sentinel_password": "theirs"}
        redis = await connection.connect(RedisSettings(**login, **asker))
        assert await redis.acl_whoami() == "atelier"
        await redis.aclose()
        with pytest.raises(RedisUnreachable, match=r"redis\.sentinel_password"):
            await connection.connect(RedisSettings(**login))

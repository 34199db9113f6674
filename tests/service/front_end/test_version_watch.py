"""Background tasks for versions: queued jobs move, and failing versions step back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import httpx
import pytest
from fastapi import FastAPI

from service.front_end import version_watch
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.model.job import Job, JobError, JobState, Output, Snapshot
from service.jobs.model.version_health import Sample, step_back_reason
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from service.operators.audit import AuditLog
from service.operators.commands import acts_of_day, move_acts
from tests.service.eventually import eventually
from tests.service.standin import POOL, SPEC, StandIn
from tests.service.versions import ALIAS, R1, R2, ended, generate, set_alias, version


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_watch, "EVERY_S", 0.05)


async def served_by(http: httpx.AsyncClient, job_id: str) -> str:
    return (await http.get(f"/v1/jobs/{job_id}")).json()["served_by"]


async def waits_for(http: httpx.AsyncClient, job_id: str, name: str) -> None:
    async def does() -> bool:
        return await served_by(http, job_id) == name

    await eventually(does)


async def test_queued_jobs_leave_a_version_without_pools(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """One mesh slice may serve both in turn: r1 exits, r2 starts later. A job that names r1 waits
    for r1."""
    await set_alias(queue, {R1: 1, R2: 0})
    await queue.register(POOL, version(R1), ready=True)
    jobs = [await generate(http) for _ in range(5)]
    pinned = await generate(http, R1)
    assert {job["served_by"] for job in jobs} == {R1}
    await set_alias(queue, {R1: 0, R2: 1})
    await queue.unregister(POOL, R1)
    jobs.append(await generate(http))
    async with StandIn(queue, store, version(R2)) as new:
        for job in jobs:
            done = await ended(http, job["id"])
            assert (done["served_by"], done["model"]) == (R2, ALIAS)
            assert done["model_fingerprint"] == f"weights of {R2}"
    assert {job.id for job in new.received} == {job["id"] for job in jobs}
    view = (await http.get(f"/v1/jobs/{pinned['id']}")).json()
    assert (view["state"], view["served_by"]) == ("queued", R1)
    listed = (await http.get("/v1/jobs", params={"model": ALIAS})).json()["data"]
    assert {job["id"] for job in listed} == {job["id"] for job in jobs}


async def test_job_restarts_with_another_version(http: httpx.AsyncClient, queue: Queue) -> None:
    """Snapshots belong to the old weights: they are deleted, not resumed."""
    await set_alias(queue, {R1: 1, R2: 0})
    await queue.register(POOL, version(R1), ready=True)
    job = await generate(http, num_images=2)
    (claim,) = await queue.claim(POOL, R1, 2)
    output = Output(
        index=0, key="outputs/one", content_type="image/png", width=1, height=1, seed=1,
        sha256="", bytes=1,
    )  # fmt: skip
    await queue.progress(claim, 5, 8)
    snapshots = [
        Snapshot(index=0, step=4, fence=1, outputs=(output,)),
        Snapshot(index=1, step=1, fence=1, key=f"snapshots/{job['id']}/1"),
    ]
    await queue.snapshot(claim, snapshots)
    await queue.release(claim)
    await queue.register("new", version(R2), ready=True)
    await queue.unregister(POOL, R1)
    await waits_for(http, job["id"], R2)
    moved = await queue.get(job["id"])
    assert moved is not None and (moved.step, moved.snapshots, moved.outputs) == (0, [], [])
    assert {"outputs/one", f"snapshots/{job['id']}/"} <= set(await queue.reap())
    (claim,) = await queue.claim("new", R2, 2)
    assert claim.job.id == job["id"] and claim.job.snapshots == []


async def test_a_version_that_reads_requests_differently_gets_no_jobs(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await set_alias(queue, {R1: 1, R2: 0})
    await queue.register(POOL, version(R1), ready=True)
    first = await generate(http)
    limits = SPEC.limits.model_copy(update={"max_side_px": 64})
    await queue.register("other", version(R2, limits=limits), ready=True)
    await queue.unregister(POOL, R1)
    await queue.register("third", version("flux-dev@r3"), ready=False)
    await set_alias(queue, {R1: 1, R2: 0, "flux-dev@r3": 0})
    front_has_looked = await generate(http, width=64, height=64)
    assert front_has_looked["served_by"] == R2
    assert await served_by(http, first["id"]) == R1
    await queue.register("third", version("flux-dev@r3"), ready=True)
    await set_alias(queue, {R1: 1, "flux-dev@r3": 0})
    await waits_for(http, first["id"], "flux-dev@r3")


def samples(name: str, count: int, took_s: float = 1.0, failed: int = 0, code: str = "internal"):
    return [
        Sample(name, took_s, has_ended=True, failure=code if n < failed else None)
        for n in range(count)
    ]


WATCHED = Alias(weights={R1: 90, R2: 10}, baseline=R1, min_jobs=20, max_failures=0.05)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (samples(R1, 100), samples(R2, 20), None),
        (samples(R1, 100), samples(R2, 20, failed=1), None),
        (samples(R1, 100), samples(R2, 20, failed=2), "2 of 20 jobs failed, and 0 of 100"),
        (samples(R1, 100, failed=10), samples(R2, 20, failed=3), None),
        (samples(R1, 100), samples(R2, 19, failed=19), None),
        ([], samples(R2, 20, failed=2), "2 of 20 jobs failed, and 0 of 0"),
        (samples(R1, 100), samples(R2, 20, failed=20, code="invalid_request"), None),
        (samples(R1, 100), samples(R2, 20, took_s=1.5), None),
        (samples(R1, 100), samples(R2, 20, took_s=1.6), "took 1.6 s or more, the baseline's 1.0 s"),
        (samples(R1, 19), samples(R2, 20, took_s=9.0), None),
        (samples(R1, 100), samples(R2, 11) + samples(R2, 9, took_s=99.0), None),
        (samples(R1, 100), [Sample(R2, 30.0, has_ended=False)] * 20, "took 30.0 s or more"),
    ],
)
def test_step_back_reasons(old: list[Sample], new: list[Sample], said: str | None) -> None:
    reason = step_back_reason(WATCHED, R2, [*old, *new])
    assert (reason is None) if said is None else (reason and said in reason)


async def judge(app: FastAPI, queue: Queue) -> None:
    """Judge versions, even if they have just been judged."""
    await queue.redis.delete(keys.alias_watch(ALIAS))
    await version_watch.withdraw_bad_versions(app.state.front)


def step_backs(app: FastAPI) -> float:
    counter = app.state.front.telemetry.versions.step_backs
    return counter.labels(ALIAS, R2)._value.get()


async def test_failing_version_steps_back(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue, store: Store
) -> None:
    """The step back happens once, with a reason; queued jobs go to the baseline."""
    await set_alias(queue, {R1: 50, R2: 50}, baseline=R1, min_jobs=5)
    async with AsyncExitStack() as pools:
        await pools.enter_async_context(StandIn(queue, store, version(R1)))
        bad = await pools.enter_async_context(StandIn(queue, store, version(R2)))
        bad.failure = JobError(code="non_finite", message="NaN")
        accepted: list[str] = []

        async def has_stepped_back() -> bool:
            accepted.append((await generate(http))["id"])
            return not (await AliasRecords(queue.redis).all())[ALIAS].weights[R2]

        await eventually(has_stepped_back)
        alias = (await AliasRecords(queue.redis).all())[ALIAS]
        assert alias.weights == {R1: 50, R2: 0}
        assert "jobs failed" in alias.stepped_back[R2].reason
        assert {(await generate(http))["served_by"] for _ in range(10)} == {R1}

        async def all_ended() -> bool:
            jobs = [await queue.get(job_id) for job_id in accepted]
            return all(job and job.state.ended for job in jobs)

        await eventually(all_ended)
    assert step_backs(app) == 1
    page = (await http.get("/metrics")).text
    assert f'atelier_alias_weight{{alias="{ALIAS}",model="{R2}"}} 0.0' in page
    assert f'atelier_alias_weight{{alias="{ALIAS}",model="{R1}"}} 50.0' in page


async def test_queued_jobs_leave_a_stepped_back_version(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    await set_alias(queue, {R1: 0, R2: 1}, baseline=R1)
    job = await generate(http)
    assert job["served_by"] == R2
    records = AliasRecords(queue.redis)
    await records.change(lambda stored: {ALIAS: stored[ALIAS].without(R2, 1.0, "slow")})
    await waits_for(http, job["id"], R1)


async def test_weight_set_by_an_operator_resets_failures(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue
) -> None:
    """Earlier failures do not count, and no version steps back to a baseline that is not ready."""
    for name in (R1, R2):
        await queue.register(name, version(name), ready=name == R2)
    await set_alias(queue, {R1: 1, R2: 1}, baseline=R1, min_jobs=5)
    for _ in range(6):
        await generate(http)
    claims = await queue.claim(R2, R2, 6)
    for claim in claims:
        await queue.fail(claim, JobError(code="internal", message=""))
    assert len(claims) == 6 and all(isinstance(claim.job, Job) for claim in claims)
    await judge(app, queue)
    assert step_backs(app) == 0
    last = await queue.get(claims[-1].job.id)
    assert last is not None and last.state is JobState.FAILED and last.finished_at
    weights = {R1: 1, R2: 1}
    await set_alias(queue, weights, baseline=R1, min_jobs=5, since=last.finished_at)
    await queue.register(R1, version(R1), ready=True)
    await generate(http)
    await judge(app, queue)
    assert step_backs(app) == 0
    await set_alias(queue, weights, baseline=R1, min_jobs=5)
    await generate(http)

    async def has_stepped_back() -> bool:
        return step_backs(app) == 1

    await eventually(has_stepped_back)


async def test_step_back_happens_once(app: FastAPI, queue: Queue) -> None:
    """Several front ends step back once; not if an operator has just set other weights."""
    front, weights = app.state.front, {R1: 1.0, R2: 1.0}
    old = Alias(weights=weights, baseline=R1)
    await set_alias(queue, weights, baseline=R1, since=7)
    front.models.aliases.cached = {ALIAS: old}
    await version_watch._step_back(front, ALIAS, R2, "slow")
    records = AliasRecords(queue.redis)
    assert (await records.all())[ALIAS].weights == weights and step_backs(app) == 0
    assert not await queue.redis.exists(keys.AUDIT)
    await set_alias(queue, weights, baseline=R1)
    front.models.aliases.cached = {ALIAS: old}
    calls = (version_watch._step_back(front, ALIAS, R2, "slow") for _ in range(3))
    await asyncio.gather(*calls)
    assert (await records.all())[ALIAS].weights == {R1: 1, R2: 0} and step_backs(app) == 1
    today = datetime.now(UTC).date()
    (act,) = await acts_of_day(queue.redis, front.store, today)
    await move_acts(queue.redis, front.store)
    assert await AuditLog(front.store).of_day(today) == [act], "independent of the alias"
    assert (act.act, act.target, act.reason, act.outcome) == (
        *("step back version", R2, "slow", "done"),
    )
    assert (act.name, act.key_id, act.details) == ("atelier", "", {"alias": ALIAS, "weight": "1"})
    assert act.address.startswith("front end at ")

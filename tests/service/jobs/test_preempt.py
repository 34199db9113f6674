"""Preemption: which running job a full worker must release, and that its next claim takes the
intended job."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import PRIORITIES, Job
from service.jobs.model.preemption import FullPool, Preemptible
from service.jobs.queue import Claim, Queue, WorkerState
from service.jobs.redis import keys
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL, USAGE, a_job, a_snapshot

LOW, NORMAL, HIGH = PRIORITIES["low"], PRIORITIES["normal"], PRIORITIES["high"]
CLIP = {"bucket": "clip", "cost": 100.0, "run_s": 100.0, "priority": LOW}
PICTURE = {"bucket": "picture", "cost": 1.0, "run_s": 1.0}
RATIO = 4
LEFT_S = 60.0


def soon(seconds: float) -> dict[str, float]:
    return {"deadline_at": time.time() + seconds}


async def put(queue: Queue, kind: dict[str, Any], **fields: Any) -> Job:
    return (await queue.put(a_job(**{**kind, **fields})))[0]


async def running(queue: Queue, kind: dict[str, Any], pool: str = "pool", **fields: Any) -> Claim:
    """Submit a job, and claim it for a worker with one slot."""
    job = await put(queue, kind, **fields)
    (claim,) = await queue.claim(pool, MODEL, 1)
    assert claim.job.id == job.id
    return claim


async def preempt(queue: Queue, *claims: Claim, **fields: Any) -> tuple[str, str] | None:
    """Preempt for a worker whose slots these claims fill, each with a minute left; it is warm for
    images."""
    held = [Preemptible(c.job.id, c.fence, LEFT_S, c.job.images) for c in claims]
    slots = sum(claim.job.images for claim in claims)
    full = {"pool": "pool", "model": MODEL, "slots": slots, "free": 0, "soonest_s": LEFT_S}
    full |= {"held": held, "warm": ["clip", "picture"]} | fields
    return await queue.preempt(FullPool(**full), RATIO, room_s=60)


async def test_low_priority_job_is_preempted_for_a_shorter_one(queue: Queue) -> None:
    clip = await running(queue, CLIP)
    assert await preempt(queue, clip) is None
    picture = await put(queue, PICTURE)
    assert await preempt(queue, clip) == (clip.job.id, picture.id)
    assert await queue.release(clip, preempted=True)
    (first,) = await queue.claim("pool", MODEL, 1, WorkerState(warm=["clip", "picture"]))
    assert first.job.id == picture.id
    (second,) = await queue.claim("pool", MODEL, 1)
    assert (second.job.id, second.job.attempts, second.job.deaths) == (clip.job.id, 1, [])


@pytest.mark.parametrize(
    "picture",
    [
        {"priority": LOW},
        {"run_s": None},
        {"run_s": 1.01 * LEFT_S / RATIO},
        {"images": 2, "run_s": 1.01 * LEFT_S / RATIO},
        {"bucket": "cold"},
        {"model": "another"},
    ],
    ids=[
        "no higher priority", "its duration is unknown", "not short", "several, not short",
        "of a cold bucket it waits for another pool", "another model's",
    ],
)  # fmt: skip
async def test_jobs_that_do_not_preempt(queue: Queue, picture: dict[str, Any]) -> None:
    clip = await running(queue, CLIP)
    await put(queue, PICTURE, **picture)
    assert await preempt(queue, clip) is None
    # The same worker does preempt for another job:
    good = await put(queue, PICTURE, priority=HIGH)
    assert await preempt(queue, clip) == (clip.job.id, good.id)


@pytest.mark.parametrize(
    "full",
    [{"soonest_s": 3.9}, {"held": []}, {"held": [Preemptible("job", 1, LEFT_S, 1)]}, {"free": -1}],
    ids=["a slot is free soon", "nothing has run for long", "held no more", "more than its slots"],
)
async def test_workers_that_do_not_preempt(queue: Queue, full: dict[str, Any]) -> None:
    clip = await running(queue, CLIP)
    await put(queue, PICTURE)
    assert await preempt(queue, clip, **full) is None
    assert await preempt(queue, clip) is not None


async def test_a_deadline_that_would_be_missed(queue: Queue) -> None:
    clip = await running(queue, CLIP, priority=HIGH)
    patient = await put(queue, PICTURE, **soon(LEFT_S + 30))
    assert await preempt(queue, clip) is None, "a slot is free before that"
    await queue.cancel(patient.id)
    await put(queue, PICTURE, **soon(5), run_s=4.0)
    assert await preempt(queue, clip, slowness=2.0) is None, "this pool is too slow for it"
    urgent = await put(queue, PICTURE, **soon(20))
    assert await preempt(queue, clip, slowness=2.0) == (clip.job.id, urgent.id)
    await queue.release(clip, preempted=True)
    (first,) = await queue.claim("pool", MODEL, 1, WorkerState(slowness=2.0))
    assert first.job.id == urgent.id


async def test_preemption_does_not_break_the_running_jobs_deadline(queue: Queue) -> None:
    tight = await running(queue, CLIP, **soon(LEFT_S + 50), run_s=LEFT_S)
    await put(queue, PICTURE, priority=HIGH)
    assert await preempt(queue, tight) is None, "the released job would be claimed first"
    urgent = await put(queue, PICTURE, **soon(20))
    assert await preempt(queue, tight) == (tight.job.id, urgent.id)
    await queue.cancel(urgent.id)
    await put(queue, PICTURE, **soon(40), run_s=13.0)
    assert await preempt(queue, tight) is None, "four times that is too late"


async def test_each_preemption_uses_another_pool(queue: Queue) -> None:
    first, second = [await running(queue, CLIP, pool) for pool in ("one", "two")]
    picture = await put(queue, PICTURE)
    assert await preempt(queue, first, pool="one") == (first.job.id, picture.id)
    assert await preempt(queue, second, pool="two") is None
    assert await preempt(queue, first, pool="one") == (first.job.id, picture.id), "sent again"
    another = await put(queue, PICTURE)
    assert await preempt(queue, second, pool="two") == (second.job.id, another.id)


async def test_lowest_priority_and_longest_job_is_preempted(queue: Queue) -> None:
    claims = [await running(queue, CLIP, priority=level) for level in (NORMAL, LOW, LOW)]
    picture = await put(queue, PICTURE, priority=HIGH)
    pairs = zip(claims, (90, 60, 70), strict=True)
    held = [Preemptible(c.job.id, c.fence, left_s, 1) for c, left_s in pairs]
    assert await preempt(queue, *claims, held=held) == (claims[2].job.id, picture.id)


async def test_queue_position_ages_while_waiting_only(queue: Queue, empty_redis: Redis) -> None:
    clip = await running(queue, CLIP)
    assert clip.job.started_at is not None
    place = float(await empty_redis.hget(keys.job(clip.job.id), "place"))
    began = time.time()
    while time.time() < began + 0.01:
        assert await queue.renew([clip]) == []
    await queue.release(clip, preempted=True)
    moved_s = (float(await empty_redis.hget(keys.job(clip.job.id), "place")) - place) / 1e6
    assert 0.01 <= moved_s <= time.time() - clip.job.started_at


@pytest.mark.parametrize(
    ("waited_s", "ran_s", "is_put_aside"),
    [(590, 0, True), (610, 0, False), (590, 1000, True), (610, 1000, False)],
)
async def test_long_waiting_job_is_not_preempted(
    connect: Connect, empty_redis: Redis, waited_s: float, ran_s: float, is_put_aside: bool
) -> None:
    """Age the job in Redis by that time of waiting and running."""
    queue = await connect(priority_s=600)
    clip = await running(queue, CLIP)
    name = keys.job(clip.job.id)
    await empty_redis.hset(name, "started_at", str(clip.job.started_at - ran_s))
    await empty_redis.hincrby(name, "place", round(-(waited_s + ran_s) * 1e6))
    await put(queue, PICTURE)
    assert (await preempt(queue, clip) is not None) == is_put_aside


async def test_low_priority_never_starves(connect: Connect) -> None:
    """An image of higher priority arrives whenever the video runs. Images overtake it until it has
    waited as long as priority allows."""
    queue = await connect(priority_s=0.2)
    clip = await running(queue, CLIP)
    waited_s = (clip.job.started_at or 0) - clip.job.created_at
    while True:
        await put(queue, PICTURE)
        if await preempt(queue, clip) is None:
            break
        began = time.monotonic()
        await queue.release(clip, preempted=True)
        (picture,) = await queue.claim("pool", MODEL, 1)
        assert picture.job.id != clip.job.id
        await queue.finish(picture, [], USAGE)
        (clip,) = await queue.claim("pool", MODEL, 1)
        waited_s += time.monotonic() - began
    assert waited_s >= 0.2 - 0.01  # the clocks differ
    assert (clip.job.attempts, clip.job.deaths) == (1, [])


async def test_fair_share_takes_precedence_over_priority(queue: Queue) -> None:
    """A tenant that is ahead by more than priority is worth preempts no other tenant's job."""
    await put(queue, PICTURE, tenant="waits", priority=LOW)  # so that shares are remembered
    await running(queue, PICTURE, tenant="greedy", cost=200.0, priority=HIGH)
    clip = await running(queue, CLIP, tenant="modest", priority=NORMAL)
    await put(queue, PICTURE, tenant="greedy", priority=HIGH)
    assert await preempt(queue, clip) is None
    light = await put(queue, PICTURE, tenant="light", priority=HIGH)
    assert await preempt(queue, clip) == (clip.job.id, light.id)


async def test_job_with_a_snapshot_may_start_later(queue: Queue, empty_redis: Redis) -> None:
    clip = await running(queue, CLIP, **soon(1000), steps=4)
    await queue.snapshot(clip, [a_snapshot(clip, step=3)])
    await queue.release(clip, preempted=True)
    latest = await empty_redis.zscore(keys.PREFIX + "latest:" + MODEL, clip.job.id)
    assert latest == pytest.approx(clip.job.deadline_at - 25, abs=1e-3)  # a quarter of 100 s


@pytest.mark.parametrize("credit_s", [0, 20, 300])
async def test_next_claim_takes_the_preempting_job(
    connect: Connect, empty_redis: Redis, credit_s: float
) -> None:
    """Random queues: tenants ahead or behind, deadlines, warm and cold buckets, several images,
    jobs released by other preemptions."""
    queue = await connect(deadline_credit_s=credit_s)
    made = 0
    for seed in range(60):
        await empty_redis.flushall()
        chance = Chance(seed)
        of_pool = {"warm": chance.sample(["clip", "picture", "other"], 2)}
        of_pool |= {"slowness": chance.choice([1.0, 3.0]), "slowness_in": {"other": 2.0}}
        held = await random_running_jobs(queue, chance)
        for _ in range(chance.randint(0, 10)):
            await put(queue, PICTURE, **chance.fields() | {"priority": HIGH})
        chosen = chance.sample(held, min(2, len(held)))
        pair = await preempt(queue, *chosen, slots=2, free=0, **of_pool)
        if pair is not None:
            made += 1
            (put_aside,) = [claim for claim in chosen if claim.job.id == pair[0]]
            await queue.release(put_aside, preempted=True)
            first, *_ = await queue.claim("pool", MODEL, 1, WorkerState(**of_pool))
            assert first.job.id == pair[1], seed
    assert made >= 6, "too few preemptions"


async def test_compiled_job_preempts_after_hundreds_that_may_not_compile(
    queue: Queue,
) -> None:
    clip = await running(queue, CLIP, tenant="other")
    bound = {"tenant": "bounded", "max_compiling": 1}
    await running(queue, PICTURE, pool="compiling", bucket="cold", **bound)
    for _ in range(520):
        await put(queue, PICTURE, bucket="cold", **bound)
    warm = await put(queue, PICTURE, **bound)
    assert await preempt(queue, clip) == (clip.job.id, warm.id)
    await queue.release(clip, preempted=True)
    (first,) = await queue.claim("pool", MODEL, 1, WorkerState(warm=["clip", "picture"]))
    assert first.job.id == warm.id


async def random_running_jobs(queue: Queue, chance: Chance) -> list[Claim]:
    """Random running jobs, after many others."""
    held: list[Claim] = []
    for _ in range(chance.randint(5, 40)):
        await put(queue, chance.choice([CLIP, PICTURE]), **chance.fields())
    for number in range(chance.randint(2, 12)):
        for claim in await queue.claim(f"pool-{number}", MODEL, chance.randint(1, 2)):
            step = chance.randint(0, 27)
            await queue.progress(claim, step, 28)
            await queue.snapshot(claim, [a_snapshot(claim, step=step)])
            if chance.random() < 0.3:
                await queue.release(claim, preempted=chance.random() < 0.5)
            else:
                held.append(claim)
    return held


class Chance(random.Random):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._hurry = self.choice([0.0, 0.1, 0.5])

    def fields(self) -> dict[str, Any]:
        """Random fields of a job."""
        fields: dict[str, Any] = {
            "tenant": self.choice("abc"),
            "weight": self.choice([1.0, 4.0]),
            "priority": self.choice([LOW, NORMAL, HIGH]),
            "cost": self.choice([0.5, 5.0, 50.0]),
            "images": self.choice([1, 1, 1, 2]),
            "bucket": self.choice(["clip", "picture", "other"]),
        }
        return fields | (soon(self.uniform(100, 300)) if self.random() < self._hurry else {})

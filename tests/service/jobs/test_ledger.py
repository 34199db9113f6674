"""Ledger: one record of each ended job, whichever call ends it, and who pays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.jobs.ledger_files import ReadTotals
from service.jobs.model.job import JobError, Usage
from service.jobs.model.ledger import DeliveredOutputs, LedgerRecord, Origin
from service.jobs.queue import Claim, ClaimUsage, Queue, WorkerState
from service.jobs.redis import keys
from tests.service.jobs.examples import FAILURE, MODEL, a_job, a_snapshot, an_output

OWN = Usage(steps=28, device_seconds=4, compile_seconds=1)
ORIGIN = Origin("h100", 8, "us-central1", True, "f00d")
PROMPT = "a secret lighthouse"
MILLISECOND = 1e-3


async def records(queue: Queue) -> list[LedgerRecord]:
    entries = await queue.redis.xrange(keys.LEDGER)
    return [LedgerRecord(id=name, **json.loads(entry["record"])) for name, entry in entries]


async def only_record(queue: Queue) -> LedgerRecord:
    (record,) = await records(queue)
    return record


async def claimed(queue: Queue, **fields: Any) -> Claim:
    await queue.put(a_job(cost=16, **fields))
    return await claim_again(queue)


async def claim_again(queue: Queue) -> Claim:
    (claim,) = await queue.claim("pool", MODEL, 1, WorkerState(origin=ORIGIN))
    return claim


async def expire(queue: Queue, claim: Claim) -> None:
    await queue.redis.hset(keys.job(claim.job.id), "deadline_at", 1)
    assert await queue.renew([claim]) == [claim]


async def test_record_has_owner_outputs_and_place(queue: Queue) -> None:
    owner_fields = {"tenant": "acme", "tenant_class": "paid", "key_id": "0123"}
    claim = await claimed(queue, **owner_fields, request={"prompt": PROMPT, "model": "variant"})
    await queue.finish(claim, [an_output(claim.job)], OWN)
    job = await queue.get(claim.job.id)
    assert job is not None
    record = await only_record(queue)
    assert record.ended_at == pytest.approx(job.finished_at, abs=MILLISECOND)
    assert record.created_at == pytest.approx(job.created_at, abs=MILLISECOND)
    assert record == LedgerRecord(
        id=record.id,
        job=job.id,
        tenant="acme",
        tenant_class="paid",
        key="0123",
        model=MODEL,
        served_as="variant",
        outcome="succeeded",
        created_at=record.created_at,
        ended_at=record.ended_at,
        attempts=1,
        images=1,
        pixels=96 * 96,
        steps=28,
        device_seconds=4,
        tenant_seconds=4,
        compile_seconds=1,
        pool="pool",
        chip="h100",
        chips=8,
        region="us-central1",
        spot=True,
        checkpoint="f00d",
    )


@pytest.mark.parametrize("how", ["finish", "pause", "fail", "cancel", "delete", "expire"])
async def test_ledger_records_each_job_end_once(queue: Queue, how: str) -> None:
    stop = {"stop_at_step": 9} if how == "pause" else {}
    claim = await claimed(queue, request={"prompt": PROMPT, **stop})
    for _ in range(2):
        match how:
            case "finish" | "pause":
                await queue.finish(claim, [an_output(claim.job)], OWN)
            case "fail":
                await queue.fail(claim, FAILURE)
            case "cancel":
                await queue.cancel(claim.job.id)
            case "delete":
                await queue.delete(claim.job.id)
            case _:
                await expire(queue, claim) if not await records(queue) else await queue.reap()
    ends = {
        "finish": "succeeded",
        "pause": "paused",
        "fail": "failed",
        "cancel": "canceled",
        "delete": "canceled",
    }
    assert (await only_record(queue)).outcome == ends.get(how, "expired")
    assert PROMPT not in str(await queue.redis.xrange(keys.LEDGER))


async def test_a_job_that_never_ran_has_a_record_without_a_worker(queue: Queue) -> None:
    job, _ = await queue.put(a_job(fingerprint="f00d"))
    await queue.cancel(job.id)
    record = await only_record(queue)
    assert (record.outcome, record.device_seconds, record.pool) == ("canceled", 0, None)
    assert (record.chip, record.checkpoint) == (None, "f00d")


async def test_record_survives_its_job(queue: Queue, hasty: Queue) -> None:
    claim = await claimed(queue)
    await queue.finish(claim, [], OWN)
    await hasty.reap()
    assert await queue.get(claim.job.id) is None
    assert (await only_record(queue)).job == claim.job.id


@pytest.mark.parametrize(
    "code, payer",
    [
        ("invalid_request", "tenant"),
        ("lora_gone", "tenant"),
        ("refused_by_safety", "tenant"),
        ("out_of_memory", "house"),
        ("non_finite", "house"),
        ("safety_unavailable", "house"),
        ("store", "house"),
        ("internal", "house"),
    ],
)
async def test_failure_is_charged_by_its_cause(queue: Queue, code: str, payer: str) -> None:
    claim = await claimed(queue)
    error = JobError.model_validate({"code": code, "message": "it failed"})
    await queue.fail(claim, error, spent=ClaimUsage(3, 0))
    record = await only_record(queue)
    assert record.error == code
    assert (record.device_seconds, getattr(record, f"{payer}_seconds")) == (3, 3)
    assert record.tenant_seconds + record.house_seconds == 3


async def test_a_cancel_pays_and_an_expiry_does_not(queue: Queue) -> None:
    for stop in (lambda claim: queue.cancel(claim.job.id), lambda claim: expire(queue, claim)):
        claim = await claimed(queue)
        await queue.renew([claim], [ClaimUsage(3, 1)])
        await stop(claim)
    canceled, expired = await records(queue)
    assert (canceled.tenant_seconds, canceled.house_seconds) == (3, 0)
    assert (expired.tenant_seconds, expired.house_seconds, expired.lost_seconds) == (0, 3, 0)


async def test_lost_work_of_a_crashed_worker_is_charged_to_the_operator(
    queue: Queue, hasty: Queue
) -> None:
    first = await claimed(hasty)
    assert await queue.progress(first, 5, 28, spent=ClaimUsage(3, 1))
    await hasty.reap()
    await queue.finish(await claim_again(queue), [], OWN)
    record = await only_record(queue)
    assert (record.device_seconds, record.tenant_seconds) == (7, 4)
    assert (record.house_seconds, record.lost_seconds, record.attempts) == (3, 3, 2)
    assert record.compile_seconds == 2


async def test_resumed_usage_is_not_lost(queue: Queue) -> None:
    first = await claimed(queue)
    snapshot = a_snapshot(first, step=5).model_copy(update={"device_seconds": 2.0})
    await queue.snapshot(first, [snapshot])
    await queue.release(first, spent=ClaimUsage(3, 0))
    await queue.finish(await claim_again(queue), [], OWN)
    record = await only_record(queue)
    assert (record.device_seconds, record.tenant_seconds, record.lost_seconds) == (7, 6, 1)


async def test_cancellation_charges_the_snapshot_to_the_tenant(queue: Queue) -> None:
    claim = await claimed(queue)
    snapshot = a_snapshot(claim, step=5).model_copy(update={"device_seconds": 2.0})
    await queue.snapshot(claim, [snapshot])
    await queue.release(claim, preempted=True, spent=ClaimUsage(3, 0))
    await queue.cancel(claim.job.id)
    record = await only_record(queue)
    assert (record.device_seconds, record.tenant_seconds, record.lost_seconds) == (3, 2, 1)


async def test_poisonous_job_is_charged_to_the_operator(queue: Queue, hasty: Queue) -> None:
    claim = await claimed(hasty)
    for _ in range(hasty._settings.max_deaths):
        assert await queue.progress(claim, 5, 28, spent=ClaimUsage(3, 0))
        await hasty.reap()
        claim = (await hasty.claim("pool", MODEL, 1) or [claim])[0]
    record = await only_record(queue)
    assert (record.outcome, record.error) == ("failed", "poisonous")
    assert (record.tenant_seconds, record.house_seconds) == (0, 3 * hasty._settings.max_deaths)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_late_usage_report_is_a_correction(queue: Queue, is_deleted: bool) -> None:
    claim = await claimed(queue, tenant="acme", key_id="0123")
    await queue.renew([claim], [ClaimUsage(1, 1)])
    await (queue.delete if is_deleted else queue.cancel)(claim.job.id)
    for _ in range(2):
        assert await queue.spent(claim, ClaimUsage(9, 9))
    end, more = await records(queue)
    assert (end.tenant_seconds, end.is_correction) == (1, False)
    assert (more.job, more.tenant_seconds, more.is_correction) == (claim.job.id, 8, True)
    assert (more.tenant, more.key, more.chip, more.outcome) == ("acme", "0123", "h100", "canceled")
    assert (more.images, more.steps) == (0, 0)


async def test_late_usage_of_an_earlier_attempt_is_lost(queue: Queue) -> None:
    first = await claimed(queue)
    await queue.release(first, spent=ClaimUsage(1, 1))
    await queue.finish(await claim_again(queue), [], OWN)
    await queue.spent(first, ClaimUsage(3, 3))
    end, more = await records(queue)
    assert (end.tenant_seconds, end.lost_seconds) == (4, 1)
    assert (more.tenant_seconds, more.house_seconds, more.lost_seconds) == (0, 2, 2)


async def test_the_sums_are_those_of_the_records(queue: Queue) -> None:
    done = await claimed(queue, tenant_class="paid")
    await queue.finish(done, [an_output(done.job)], OWN)
    gone = await claimed(queue, tenant_class="paid")
    await queue.release(gone, spent=ClaimUsage(1, 0))
    await queue.cancel((await claim_again(queue)).job.id)
    totals = await queue.run(ReadTotals())
    assert totals.pending == 2
    assert totals.sums == {
        ("jobs", MODEL, "paid", "succeeded"): 1,
        ("jobs", MODEL, "paid", "canceled"): 1,
        ("images", MODEL, "paid"): 1,
        ("pixels", MODEL, "paid"): 96 * 96,
        ("device_seconds", MODEL, "paid", "succeeded", "tenant"): 4_000_000,
        ("device_seconds", MODEL, "paid", "lost", "house"): 1_000_000,
    }


def test_delivered_outputs_are_counted_by_kind() -> None:
    image = an_output(a_job())
    clip = image.model_copy(update={"num_frames": 5})
    assert DeliveredOutputs.of({}, [image, image]) == DeliveredOutputs(images=2, pixels=2 * 96 * 96)
    assert DeliveredOutputs.of({"num_frames": 1}, [image]) == DeliveredOutputs(
        images=1, pixels=96 * 96
    )
    request = {"num_frames": 5}
    assert DeliveredOutputs.of(request, [clip] * 2) == DeliveredOutputs(
        videos=2, frames=10, pixels=10 * 96 * 96
    )
    assert DeliveredOutputs.of(request, [image] * 10) == DeliveredOutputs(
        videos=2, frames=10, pixels=10 * 96 * 96
    )
    assert DeliveredOutputs.of({}, []) == DeliveredOutputs()

"""Random histories of many jobs against a real server. After each call, its response and all Redis
keys equal those of a plain model (`queue_model.py`)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from service.jobs.model.errors import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.model.job import STOP_AT_STEP, Job, JobState, SecondPass, Snapshot, Usage
from service.jobs.model.job_filter import JobFilter
from service.jobs.model.state_machine import QUEUED
from service.jobs.queue import Claim, ClaimUsage, Queue, WorkerState
from service.settings.tenants import TenantSettings
from tests.service.eventually import eventually
from tests.service.jobs.examples import FAILURE, a_job, a_snapshot, an_output
from tests.service.jobs.history import History, a_spec
from tests.service.jobs.job_model import Life
from tests.service.jobs.order_model import Offer
from tests.service.jobs.queue_model import MICRO
from tests.service.jobs.strategies import (
    DEADLINES,
    INDEX,
    IS_REPEATED,
    JOB_FIELDS,
    LAPSED_S,
    LIMITS,
    LONG_S,
    MODELS,
    OFFERS,
    SETTINGS,
    SOON_S,
    STEPS,
    TENANTS,
    UNENDED,
)

NAMED = ("bucket", "tenant", "priority", "images", "cost", "avoid")
"""Fields of a job that a client's request names."""
GIVE_UP = ("retry", "release", "make room", "fail")
CLOCK_S = 2e-6
"""Rounding of microseconds in floats of seconds."""


class Lives(History):
    @initialize(
        settings=SETTINGS,
        limits=LIMITS,
        registered=st.sets(st.sampled_from(MODELS)),
        requests=st.lists(JOB_FIELDS, min_size=3, max_size=6),
    )
    def begin(
        self,
        settings: dict[str, Any],
        limits: dict[str, TenantSettings],
        registered: set[str],
        requests: list[dict[str, Any]],
    ) -> None:
        self.start(settings, limits, registered)
        self.put(MODELS[0], requests, False)

    # calls of clients
    @rule(
        model=st.sampled_from([MODELS[0], *MODELS]),
        requests=st.lists(JOB_FIELDS, min_size=1, max_size=3),
        twice=IS_REPEATED,
    )
    def put(self, model: str, requests: list[dict[str, Any]], twice: bool) -> None:
        for fields in requests[: max(0, UNENDED - self.unended())]:
            self._put_one(self.queue(twice), self._job(model, fields), fields)

    def _job(self, model: str, fields: dict[str, Any]) -> Job:
        in_s, run_s = DEADLINES[fields["deadline"]]
        now = self.clock()
        self.count += 1
        reused = {"reuses": "job_before"} if fields["is_reused"] else {}
        job = a_job(
            **reused,
            id=f"job_{self.count:03}",
            model=model,
            weight=self.model.limits[fields["tenant"]].weight,
            steps=STEPS,
            request={STOP_AT_STEP: 2} if fields["is_audition"] else {},
            draft_ttl_s=LAPSED_S if fields["is_audition"] and fields["drafts"] else LONG_S,
            snapshots=[
                Snapshot(
                    index=index,
                    step=step,
                    fence=0,
                    key=f"snapshots/job/0-{index}-{step}",
                    bytes=100,
                )
                for index, step in enumerate([] if fields["is_audition"] else fields["drafts"])
            ],
            second_pass=fields["second"] and SecondPass(bucket=fields["second"], steps=STEPS // 2),
            run_s=run_s,
            deadline_at=in_s and (now + in_s if in_s == SOON_S else int(now) + in_s),
            **{name: fields[name] for name in NAMED},
        )
        if not fields["is_reused"]:
            return job
        return job.model_copy(update={"outputs": [an_output(job)], "snapshots": []})

    def _put_one(self, queue: Queue, job: Job, fields: dict[str, Any]) -> None:
        options = (fields["key"], fields["digest"], fields["is_refused"], fields["input_bytes"])
        expected = self.model.refusal(job, *options)
        answer = self.follow(self._put(queue, job, *options))
        assert answer == (expected or "new")
        if expected is None:
            accepted = float(self.held.jobs[job.id]["accepted"])
            assert accepted >= self.model.now * 1e6 - 1  # a microsecond, as a float of seconds
            self.model.accept(job, fields["key"], fields["digest"], accepted, fields["input_bytes"])
            if job.reuses:
                self.model.reuse(job)

    async def _put(
        self, queue: Queue, job: Job, key: str | None, digest: str, is_refused: bool, size: int
    ) -> str:
        limits = self.model.limits[job.tenant]
        refusal = Refused() if is_refused else None
        try:
            stored, is_new = await queue.put(
                job,
                idempotency_key=key,
                digest=digest,
                limits=limits,
                input_bytes=size,
                refusal=refusal,
            )
        except Refused:
            return "refused"
        except QueueFull:
            return "full"
        except IdempotencyConflict:
            return "conflict"
        except QuotaExceeded as error:
            assert error.usage.next_s >= 0
            return error.quota
        if not is_new:
            assert stored.id == self.model.idempotent[job.tenant, str(key)][1]
        return "new" if is_new else "old"

    @rule(n=INDEX, is_deleted=st.booleans(), twice=IS_REPEATED)
    def stop(self, n: int, is_deleted: bool, twice: bool) -> None:
        if life := self.life_of(n):
            self._stop(life, is_deleted, twice)

    def _stop(self, life: Life, is_deleted: bool, twice: bool) -> None:
        queue = self.queue(twice)
        call, script = (queue.delete, "delete") if is_deleted else (queue.cancel, "cancel")
        answer = self.follow(call(life.job.id))
        self.model.cancel(life, script)
        assert answer and answer.state is life.state
        if is_deleted:
            self.model.forget(life, script)
            assert self.server.run(queue.delete(life.job.id)) is None

    @rule(n=INDEX, to=st.sampled_from(MODELS), twice=IS_REPEATED)
    def switch(self, n: int, to: str, twice: bool) -> None:
        life, queue = self.life_of(n), self.queue(twice)
        if not life:
            return
        job, (other,) = life.job, set(MODELS) - {to}
        waits_for = job.model_copy(update={"model": other})
        answer = self.follow(queue.switch_model(waits_for, a_spec(to)))
        assert answer == self.model.switch(life, to)

    @rule(tenant=st.sampled_from(TENANTS), state=st.sampled_from([None, *JobState]))
    def look(self, tenant: str, state: JobState | None) -> None:
        """Compare all that a client sees: pages of job lists, ranks, and quotas."""
        queue, lives = self.queue(False), self.model.of(tenant, *([state] if state else []))
        newest = sorted(lives, key=lambda life: -life.accepted)
        for at, life in enumerate(newest):
            after = newest[at - 1].job.id if at else None
            page = self.server.run(
                queue.list(tenant=tenant, limit=1, after=after, only=JobFilter(state=state))
            )
            assert [job.id for job in page] == [life.job.id]
            assert page.next == (life.job.id if life is not newest[-1] else None)
        for life in lives:
            rank = self.server.run(queue.rank(life.job))
            before = self.model.order(life.job.model).of(tenant)
            assert rank == (before.index(life) if life.state is QUEUED else None)
        standing = self.server.run(queue.quota_usage(tenant, self.model.limits[tenant]))
        assert standing.queued == len(self.model.of(tenant, QUEUED))
        assert standing.device_seconds == self.model.spent(tenant)

    # calls of workers
    @rule(offers=OFFERS, twice=IS_REPEATED)
    def claim(self, offers: list[tuple[int, Offer]], twice: bool) -> None:
        for n, offer in offers:
            self._claim(self.queue(twice, **patience(offer)), n, offer, False)

    @rule(
        offers=OFFERS,
        step=st.integers(0, STEPS),
        kept=st.lists(st.integers(0, STEPS), max_size=2),
        is_reaped=st.booleans(),
        twice=IS_REPEATED,
    )
    def claim_and_stall(
        self,
        offers: list[tuple[int, Offer]],
        step: int,
        kept: list[int],
        is_reaped: bool,
        twice: bool,
    ) -> None:
        """Claim, work a little, and stop. The leases have lapsed, but only a `reap` notices."""
        for n, offer in offers:
            queue = self.queue(twice, **patience(offer), lease_s=LAPSED_S)
            for claim in self._claim(queue, n, offer, True):
                self._snapshot(claim, kept, twice)
                self._progress(claim, step, None, twice)
        if is_reaped:
            self.reap(False, False, twice)

    @rule(offers=OFFERS, how=st.sampled_from(["finish", *GIVE_UP]), twice=IS_REPEATED)
    def come_too_late(self, offers: list[tuple[int, Offer]], how: str, twice: bool) -> None:
        """A worker stalls until others have claimed its jobs, and then reports how its claims
        ended."""
        before = len(self.claims)
        self.claim_and_stall(offers, 0, [], True, twice)
        late = self.claims[before:]
        self.claim(offers, twice)
        for claim in late:
            if how == "finish":
                self._finish(claim, 0.5, twice)
            else:
                self._give_up(claim, how, twice)

    def _claim(self, queue: Queue, n: int, offer: Offer, lapses: bool) -> list[Claim]:
        model = self.model_of(n)
        if not model:
            return []
        pool, may_compile = offer.pool or f"pool-{len(self.claims)}", offer.may_compile
        claims = self.follow(
            queue.claim(
                pool,
                model,
                offer.slots,
                WorkerState(
                    warm=offer.warm,
                    slowness=offer.slowness,
                    may_compile=None if may_compile is None else lambda: may_compile,
                ),
            )
        )
        touched = [name for name, job in self.held.jobs.items() if job["state"] == "expired"]
        touched += [claim.job.id for claim in claims]
        claimed = self.model.claim(model, pool, offer, touched)
        for life in claimed:
            life.has_lapsed = lapses
        assert [claim.job.id for claim in claims] == [life.job.id for life in claimed]
        assert [claim.fence for claim in claims] == [life.fence for life in claimed]
        self.claims += claims
        return claims

    @rule(n=INDEX, used_s=st.sampled_from([0.0, 0.5, 8.0]), twice=IS_REPEATED)
    def finish(self, n: int, used_s: float, twice: bool) -> None:
        """Finish a chosen claim, which may have ended already."""
        if claim := self.claim_of(n):
            self._finish(claim, used_s, twice)

    def _finish(self, claim: Claim, used_s: float, twice: bool) -> None:
        queue = self.queue(twice)
        outputs, usage = [an_output(claim.job)], Usage(steps=STEPS, device_seconds=used_s)
        answer = self.run_as_holder(claim, queue.finish(claim, outputs, usage))
        assert answer == self.model.finish(claim, outputs, usage)

    @rule(n=INDEX, how=st.sampled_from(GIVE_UP), twice=IS_REPEATED)
    def give_up(self, n: int, how: str, twice: bool) -> None:
        if claim := self.claim_of(n):
            self._give_up(claim, how, twice)

    def _give_up(self, claim: Claim, how: str, twice: bool) -> None:
        queue = self.queue(twice)
        if how == "release":
            assert self.run_as_holder(claim, queue.release(claim)) == self.model.release(claim)
        elif how == "make room":
            self._make_room(claim, queue)
        else:
            state = self.run_as_holder(claim, queue.fail(claim, FAILURE, retry=how == "retry"))
            assert state == self.model.fail(claim, FAILURE.code, how == "retry")

    def _make_room(self, claim: Claim, queue: Queue) -> None:
        """Release a preempted job. Its place moves by its running time, which only the script knows
        exactly."""
        before, is_held = self.held.jobs.get(claim.job.id), self.holds(claim)
        answer = self.run_as_holder(claim, queue.release(claim, preempted=True))
        moved_s = 0.0
        if before and is_held:
            place = float(self.held.jobs[claim.job.id]["place"])
            moved_s = (place - float(before["place"])) / MICRO
            ended = float(before["started_at"]) + moved_s
            assert self.model.now - CLOCK_S <= ended <= self.held.now + CLOCK_S
        assert answer == self.model.make_room(claim, moved_s)

    @rule(n=INDEX, twice=IS_REPEATED)
    def take_back(self, n: int, twice: bool) -> None:
        """Requeue a job as an operator, whether its claim is valid or over."""
        if claim := self.claim_of(n):
            answer = self.follow(self.queue(twice).take_back(claim.job.id))
            assert answer == self.model.take_back(claim.job.id)

    @rule(
        n=INDEX,
        step=st.integers(1, STEPS),
        preview=st.sampled_from([None, "data:,"]),
        is_late=st.booleans(),
        twice=IS_REPEATED,
    )
    def progress(self, n: int, step: int, preview: str | None, is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        if claim := self.claim_of(n):
            self._progress(claim, step, preview, twice)

    def _progress(self, claim: Claim, step: int, preview: str | None, twice: bool) -> None:
        answer = self.run_as_holder(claim, self.queue(twice).progress(claim, step, STEPS, preview))
        preview_data = {"step": step, "steps": STEPS, "preview": preview} if preview else None
        assert answer == self.model.progress(claim, step, preview_data)

    @rule(
        n=INDEX,
        steps=st.lists(st.integers(0, STEPS), max_size=2),
        is_late=st.booleans(),
        twice=IS_REPEATED,
    )
    def snapshot(self, n: int, steps: list[int], is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        if claim := self.claim_of(n):
            self._snapshot(claim, steps, twice)

    @rule(n=INDEX, device_s=st.sampled_from([0.0, 0.5, 8.0]), twice=IS_REPEATED)
    def spend(self, n: int, device_s: float, twice: bool) -> None:
        """Report device-seconds of a claim that may be over, and whose job may be deleted."""
        if claim := self.claim_of(n):
            answer = self.follow(self.queue(twice).spent(claim, ClaimUsage(device_s, 0.0)))
            assert answer == self.model.spend(claim, device_s)

    @rule(n=INDEX, how=st.sampled_from(["cancel", "delete", "fail"]), twice=IS_REPEATED)
    def end_while_compiling(self, n: int, how: str, twice: bool) -> None:
        """End a job while it compiles; the worker reports the cost of compiling afterwards."""
        claim = self.claim_of(n)
        if claim and (life := self.model.lives.get(claim.job.id)):
            if how == "fail":
                self._give_up(claim, how, twice)
            else:
                self._stop(life, how == "delete", twice)
            answer = self.follow(self.queue(twice).spent(claim, ClaimUsage(16.0, 0.0)))
            assert answer == self.model.spend(claim, 16.0)

    def _snapshot(self, claim: Claim, steps: list[int], twice: bool) -> None:
        """Record snapshots. A finished image has output files and no state."""
        snapshots = [costly(a_snapshot(claim, index, step)) for index, step in enumerate(steps)]
        snapshots = [
            finished(snapshot, claim) if snapshot.step == STEPS else snapshot
            for snapshot in snapshots
        ]
        answer = self.run_as_holder(claim, self.queue(twice).snapshot(claim, snapshots))
        assert answer == self.model.snapshot(claim, snapshots)

    @rule(
        ns=st.lists(INDEX, min_size=1, max_size=3),
        lapses=st.booleans(),
        is_late=st.booleans(),
        twice=IS_REPEATED,
    )
    def renew(self, ns: list[int], lapses: bool, is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        claims = list({id(claim): claim for claim in map(self.claim_of, ns) if claim}.values())
        lasting = {"lease_s": LAPSED_S} if lapses else {}
        lost = self.follow(self.queue(twice, **lasting).renew(claims))
        assert lost == self.model.renew(claims, lapses)

    # calls by time
    @rule(forgets=st.booleans(), deletes=st.booleans(), twice=IS_REPEATED)
    def reap(self, forgets: bool, deletes: bool, twice: bool) -> None:
        leases = self.held.keys.get("leases", {})
        retention = {"retention_s": LAPSED_S} if forgets else {}
        queue = self.queue(twice, **retention)
        deleted = self.returned if deletes else set()
        answer = set(self.follow(queue.reap(deleted)))
        for _ in range(1 + twice):
            expected = self.model.reap(leases, deleted, forgets)
        assert answer == expected
        self.returned = answer

    def be_silent(self) -> None:
        """Let leases lapse while no reaper runs, so that no worker could renew them. The jobs are
        queued again and do not count a crash."""
        alarmed = self.queue(False, lease_s=LAPSED_S, reap_every_s=LAPSED_S)
        calm = self.queue(False, lease_s=LAPSED_S, reap_every_s=LONG_S)
        stalled = [life for life in self.model.lives.values() if life.has_lapsed]

        async def are_back() -> bool:
            await calm.reap()
            jobs = [await calm.get(life.job.id) for life in stalled]
            return all(job is not None and job.state is QUEUED for job in jobs)

        self.follow(alarmed.reap())
        self.follow(eventually(are_back))
        for life in stalled:
            self.model.back(life, "excuse", "reap")
        self.model.expire_drafts()


class Refused(Exception):
    """Raised for the front end, which rejects a job whose deadline it predicts to be missed."""


def patience(offer: Offer) -> dict[str, float]:
    return {"affinity_s": LONG_S if offer.is_patient else 0}


def costly(snapshot: Snapshot) -> Snapshot:
    """Set device-seconds by steps, which may differ from the claims' reports, and bytes."""
    return snapshot.model_copy(update={"device_seconds": snapshot.step / STEPS, "bytes": 100})


def finished(snapshot: Snapshot, claim: Claim) -> Snapshot:
    return snapshot.model_copy(update={"key": None, "outputs": (an_output(claim.job),)})

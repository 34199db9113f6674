"""Model of the whole queue in plain Python: the response and effect of every call."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.jobs.model import serialization
from service.jobs.model.job import Job, JobState, Output, Snapshot, Usage
from service.jobs.model.state_machine import PAUSED, QUEUED, RUNNING
from service.jobs.queue import Claim
from service.settings.queue import QueueSettings
from service.settings.tenants import TenantSettings
from tests.service.jobs.audit import Dump, check_derived
from tests.service.jobs.job_model import Life
from tests.service.jobs.order_model import Offer, Order
from tests.service.jobs.strategies import LAPSED_S, POOLS

MICRO = 1_000_000


@dataclass
class Model:
    settings: QueueSettings
    limits: Mapping[str, TenantSettings]
    observed: Counter[tuple[str, str]]
    lives: dict[str, Life] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Device-seconds of ended jobs, by tenant."""
    idempotent: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """(digest, job id) by tenant and idempotency key."""
    registered: set[str] = field(default_factory=set)
    trash: set[str] = field(default_factory=set)
    left: dict[str, Life] = field(default_factory=dict)
    """Deleted jobs whose claims may still report device-seconds."""
    ledger: list[tuple[Any, ...]] = field(default_factory=list)
    """Ledger records: job, outcome, whether a correction, images, and the device-seconds paid by
    tenant and operator, and lost."""
    now: float = 0.0
    """Time of the current call, by Redis's clock."""

    def order(self, model: str) -> Order:
        pools = len(POOLS) if model in self.registered else 0
        return self.orders.setdefault(model, Order(self.settings, pools=pools))

    def of(self, tenant: str, *states: JobState) -> list[Life]:
        return [
            life
            for life in self.lives.values()
            if life.job.tenant == tenant and (not states or life.state in states)
        ]

    # calls of clients
    def refusal(
        self, job: Job, key: str | None, digest: str, is_refused: bool, input_bytes: int
    ) -> str | None:
        """Reason to reject a job: 'old', 'conflict', 'refused', 'full' or a quota's name."""
        if key and (job.tenant, key) in self.idempotent:
            return "old" if self.idempotent[job.tenant, key][0] == digest else "conflict"
        if is_refused:
            return "refused"
        if not job.reuses and self._is_full(job):
            return "full"
        limits = self.limits[job.tenant]
        if limits.max_queued and len(self.of(job.tenant, QUEUED)) >= limits.max_queued:
            return "queued"
        quota = limits.device_seconds_per_hour
        if quota and self.spent(job.tenant) >= quota:
            return "device-seconds"
        stored, most = self.stored(job.tenant), limits.stored_bytes
        new = input_bytes + sum(draft.bytes for draft in job.snapshots)
        is_over = most and (stored >= most or stored + new > most)
        return "stored-bytes" if is_over else None

    def stored(self, tenant: str) -> int:
        return sum(life.stored for life in self.of(tenant))

    def _is_full(self, job: Job) -> bool:
        """Return whether the queue is full for the job's tenant."""
        tenants = Counter(life.job.tenant for life in self.order(job.model).waiting)
        count, most = tenants[job.tenant], self.settings.max_queued
        return tenants.total() >= most and count * len(tenants) >= most and count > 0

    def spent(self, tenant: str) -> float:
        """Device-seconds used or promised in the hour."""
        unended = [life for life in self.of(tenant, QUEUED, RUNNING) if life.is_promised]
        return self.used[tenant] + sum(life.promised_s for life in unended)

    def accept(
        self, job: Job, key: str | None, digest: str, accepted: float, input_bytes: int
    ) -> None:
        assert all(accepted > life.accepted for life in self.lives.values())
        place = accepted + (1 - job.priority) * self.settings.priority_s * MICRO
        is_promised = self.limits[job.tenant].device_seconds_per_hour is not None
        promised_s = job.cost * job.remaining_share
        life = Life(job, accepted, place, is_promised, key, promised_s, self.observed)
        life.input_bytes = input_bytes
        life.snapshots = job.snapshots or None
        life.kept = life.step = life.draft_steps
        life.move("accept", "put")
        self.lives[job.id] = life
        self.order(job.model).add(life)
        if key:
            self.idempotent[job.tenant, key] = (digest, job.id)

    def reuse(self, job: Job) -> None:
        life = self.lives[job.id]
        life.input_bytes -= sum(output.bytes for output in job.outputs)
        life.outputs = job.outputs
        self.end(life, "reuse", "put")

    def cancel(self, life: Life, script: str = "cancel") -> None:
        if not life.is_ended:
            self.end(life, "cancel", script)

    def delete(self, life: Life) -> None:
        self.cancel(life, "delete")
        self.forget(life, "delete")

    # calls of front ends
    def switch(self, life: Life, model: str) -> bool:
        if life.state is not QUEUED:
            return False
        if life.job.model != model:
            self.order(life.job.model).remove(life)
            life.set_usage(life.ran)
            self.drop_snapshots(life, False)
            life.job = life.job.model_copy(update={"model": model, "snapshots": []})
            life.snapshots, life.kept, life.step = None, 0, 0
            life.move("switch", "switch_model")
            self.order(model).add(life)
        return True

    # calls of workers
    def claim(self, model: str, pool: str, offer: Offer, touched: Sequence[str]) -> list[Life]:
        """Move the jobs that the order model claims. Args: touched: as in `Order.claim`."""

        def expire(life: Life) -> bool:
            return self.expire(life, "claim_jobs")

        claimed = self.order(model).claim(replace(offer, pool=pool), self.now, expire, touched)
        for life in claimed:
            life.pool, life.is_started = pool, True
            life.move("claim", "claim_jobs")
        return claimed

    def finish(self, claim: Claim, outputs: list[Output], usage: Usage) -> bool:
        life = self.lives.get(claim.job.id)
        if not life or not life.holds(claim.fence):
            return bool(self.told_before(claim, "finish"))
        life.outputs, life.usage = outputs, usage
        life.spend(claim.fence, usage.device_seconds)
        self.end(life, "pause" if claim.job.stop_at_step else "finish", "finish")
        return self.settle(life, "finish", True)

    def fail(self, claim: Claim, code: str, retry: bool) -> JobState | None:
        life = self.lives.get(claim.job.id)
        if not life or not life.holds(claim.fence):
            return self.told_before(claim, "fail")
        if retry and life.attempts < self.settings.max_attempts:
            self.back(life, "retry", "fail")
        else:
            life.error = code
            self.end(life, "fail", "fail")
        return self.settle(life, "fail", life.state)

    def release(self, claim: Claim) -> bool:
        life = self.lives.get(claim.job.id)
        if not life or not life.holds(claim.fence):
            return bool(self.told_before(claim, "release"))
        self.back(life, "release", "release")
        return self.settle(life, "release", True)

    def make_room(self, claim: Claim, ran_s: float) -> bool:
        life = self.lives.get(claim.job.id)
        if not life or not life.holds(claim.fence):
            return bool(self.told_before(claim, "release"))
        life.place += round(ran_s * MICRO)
        self.back(life, "make room", "release")
        return self.settle(life, "release", True)

    def take_back(self, job_id: str) -> JobState | None:
        life = self.lives.get(job_id)
        before = life.state if life else None
        if life and before is RUNNING:
            self.back(life, "take back", "take_back")
        return before

    def settle(self, life: Life, act: str, answer: Any) -> Any:
        life.settled = (life.fence, act, answer)
        return answer

    def told_before(self, claim: Claim, act: str) -> Any:
        life = self.lives.get(claim.job.id)
        fence, done, answer = (life and life.settled) or (0, "", None)
        return answer if (fence, done) == (claim.fence, act) else None

    def held(self, claim: Claim, script: str) -> Life | None:
        """Return the job if the claim still holds it after this call's check of the deadline."""
        life = self.lives.get(claim.job.id)
        if not life or not life.holds(claim.fence) or self.expire(life, script):
            return None
        return life

    def progress(self, claim: Claim, step: int, preview: dict[str, Any] | None) -> bool:
        life = self.held(claim, "progress")
        if not life:
            return False
        position = (claim.fence, step)
        if life.reported != position:
            life.reported, life.step = position, step
            life.events.append(("progress", {"step": step, "steps": life.job.steps}))
        if preview and life.shown != position:
            life.shown = position
            life.events.append(("preview", preview))
        return True

    def snapshot(self, claim: Claim, snapshots: list[Snapshot]) -> bool:
        life = self.held(claim, "record_snapshots")
        if not life:
            return False
        before, after = (
            {s.key for s in some if s.key} for some in (life.snapshots or [], snapshots)
        )
        self.trash |= before - after
        life.snapshots, life.kept = snapshots, sum(snapshot.step for snapshot in snapshots)
        if life.deaths and life.kept > life.deaths[-1][1]:
            life.deaths = []
        return True

    def spend(self, claim: Claim, device_s: float) -> bool:
        life = self.lives.get(claim.job.id)
        if not life:
            return self.spend_of_deleted(claim, device_s)
        more = life.spend(claim.fence, device_s)
        if life.is_ended:
            self.charge_late(life, claim.fence, more)
        return True

    def spend_of_deleted(self, claim: Claim, device_s: float) -> bool:
        life = self.left.get(claim.job.id)
        if life:
            self.charge_late(life, claim.fence, life.spend(claim.fence, device_s))
        return bool(life)

    def charge_late(self, life: Life, fence: int, device_seconds: float) -> None:
        payer, paid, _ = life.billed or ("", 0, "")
        if device_seconds:
            used = device_seconds if fence == paid else 0.0
            self.record(life, True, payer, used, device_seconds - used)
            self.observed["correct", payer if used else "lost"] += 1
        if life.is_promised:
            self.used[life.job.tenant] += device_seconds
        self.order(life.job.model).charge_late(life, device_seconds)
        life.set_usage()

    def renew(self, claims: Iterable[Claim], has_lapsed: bool) -> list[Claim]:
        lost = []
        for claim in claims:
            life = self.held(claim, "renew")
            if life:
                life.has_lapsed = has_lapsed
            else:
                lost.append(claim)
        return lost

    # calls by time
    def reap(self, leases: Mapping[str, float], deleted: set[str], forgets: bool) -> set[str]:
        """Expire, requeue and forget jobs; return the store keys to delete.

        Args:
            leases: end of each running job's lease, by id.
            deleted: store keys that the caller has deleted.
        """
        self.trash -= deleted
        ended = [life for life in self.lives.values() if life.is_ended]
        for life in list(self.lives.values()):
            passed = life.job.deadline_at is not None and self.now >= life.job.deadline_at
            if passed or life.job.model in self.registered:
                self.expire(life, "reap")
        for name in sorted(leases, key=lambda name: (leases[name], name)):
            life = self.lives[name]
            if life.state is RUNNING and life.has_lapsed:
                self.lose(life)
        for life in ended if forgets else ():
            self.forget(life, "reap")
        self.expire_drafts()
        return self.trash

    def expire_drafts(self) -> None:
        """Delete the drafts of paused jobs whose time has passed."""
        for life in self.lives.values():
            is_due = life.state is PAUSED and life.job.draft_ttl_s == LAPSED_S
            if is_due and life.snapshots is not None:
                life.snapshots = None
                self.trash.add(f"snapshots/{life.job.id}/")

    def lose(self, life: Life) -> None:
        most = min(self.settings.max_deaths, self.settings.max_attempts)
        if len(life.deaths) + 1 < most:
            self.back(life, "lose", "reap")
        else:
            life.error = "poisonous"
            self.end(life, "set aside", "reap")

    def expire(self, life: Life, script: str) -> bool:
        if not life.is_late(self.now):
            return False
        self.end(life, "expire", script)
        return True

    # shared by these calls
    def end(self, life: Life, name: str, script: str) -> None:
        used_s, fence = life.used_s, life.fence if life.state is RUNNING else 0
        is_done = name in ("finish", "pause", "reuse")
        life.set_usage(None if is_done else life.ran)
        if life.state is QUEUED:
            unpaid = used_s - life.paid
            self.order(life.job.model).remove(life, max(0.0, unpaid))
        else:
            self.order(life.job.model).settle(life, used_s)
        if life.is_promised:
            self.used[life.job.tenant] += used_s
        if name != "pause":
            self.drop_snapshots(life, is_done)
        life.move(name, script)
        life.billed = (
            "tenant" if is_done or name == "cancel" else "house",
            fence,
            str(life.state),
        )
        self.record(life, False, life.billed[0], *life.split(fence))

    def drop_snapshots(self, life: Life, is_done: bool) -> None:
        if life.snapshots is not None:
            made = [output for snapshot in life.snapshots for output in snapshot.outputs]
            self.trash |= {output.key for output in made if not is_done}
            self.trash.add(f"snapshots/{life.job.id}/")

    def record(self, life: Life, corrects: bool, payer: str, used: float, lost: float) -> None:
        outcome = life.billed and life.billed[2]  # a deleted job has no state any more
        is_delivered = not corrects and outcome != JobState.PAUSED
        images = len(life.outputs) if is_delivered else 0
        shares = (used, lost, lost) if payer == "tenant" else (0.0, used + lost, lost)
        self.ledger.append((life.job.id, outcome, corrects, images, *shares))

    def back(self, life: Life, name: str, script: str) -> None:
        order = self.order(life.job.model)
        order.settle(life, life.paid)
        life.set_usage(life.ran)
        life.resumes_s = sum(snapshot.device_seconds for snapshot in life.snapshots or [])
        life.move(name, script)
        life.has_lapsed = False
        order.add(life)

    def forget(self, life: Life, script: str) -> None:
        if script == "delete" and life.fence and not life.state.is_done:
            self.left[life.job.id] = life
        del self.lives[life.job.id]
        self.trash |= life.files
        key = (life.job.tenant, life.key or "")
        if self.idempotent.get(key, ("", ""))[1] == life.job.id:
            del self.idempotent[key]
        life.move("forget", script)

    # comparison with Redis
    def check(self, dump: Dump) -> None:
        check_derived(dump)
        jobs = dump.jobs
        assert jobs.keys() == self.lives.keys()
        for name, life in self.lives.items():
            life.check(serialization.from_hash(jobs[name]), jobs[name])
            events, previews = (
                dump.keys.get(f"{kind}:{name}", []) for kind in ("events", "previews")
            )
            life.check_events(events, previews, self.settings.max_events)
        self.check_order(dump)
        self.check_leases(dump)
        self.check_rest(dump)
        self.check_ledger(dump)

    def check_order(self, dump: Dump) -> None:
        expected: dict[str, Any] = {}
        for model, order in self.orders.items():
            expected[f"tenants:{model}"] = {
                tenant: position for position, tenant in order.tenants()
            }
            waiting = {life.job.tenant for life in order.waiting}
            expected[f"tags:{model}"] = {name: order.tag(name) for name in waiting}
            expected[f"idle:{model}"] = order.idle
            virtual = float(dump.keys.get(f"virtual:{model}", 0))
            assert virtual == order.virtual
        held = {
            name: {member: float(position) for member, position in dump.keys[name].items()}
            for kind in ("tenants", "tags", "idle")
            for name in dump.of_kind(kind)
        }
        assert held == {name: content for name, content in expected.items() if content}

    def check_leases(self, dump: Dump) -> None:
        for name, until in dump.keys.get("leases", {}).items():
            assert (until <= dump.now) == self.lives[name].has_lapsed

    def check_rest(self, dump: Dump) -> None:
        assert dump.keys.get("trash", set()) == self.trash
        recorded = {tuple(text.split(" ")) for text in dump.of_kind("idempotency").values()}
        assert recorded == set(self.idempotent.values())
        for tenant in self.limits:
            text = dump.keys.get(f"used:{tenant}", {})
            assert sum(map(int, text.values())) == self.used[tenant] * MICRO
        streams = {**dump.of_kind("events"), **dump.of_kind("previews")}
        assert {name.partition(":")[2] for name in streams} <= self.lives.keys()

    def check_ledger(self, dump: Dump) -> None:
        """Each end and each correction is recorded once, and the totals are the sums of the
        records."""
        records = [json.loads(held["record"]) for _, held in dump.keys.get("ledger", [])]
        assert sorted(map(_shares, records)) == sorted(self.ledger)
        sums: Counter[tuple[str, ...]] = Counter()
        for record in records:
            names = (record["model"], record["tenant_class"])
            outcome, lost = record["outcome"], record["lost_seconds"]
            if not record.get("is_correction"):
                sums["jobs", *names, outcome] += 1
            for kind in ("images", "pixels"):
                sums[kind, *names] += record.get(kind, 0)
            used = {
                "tenant": record["tenant_seconds"],
                "house": record["house_seconds"] - lost,
            }
            for payer, device_s in used.items():
                sums["device_seconds", *names, outcome, payer] += round(device_s * MICRO)
            sums["device_seconds", *names, "lost", "house"] += round(lost * MICRO)
        held = dump.keys.get("totals", {})
        totals = {tuple(json.loads(name)): int(value) for name, value in held.items()}
        assert totals == {name: value for name, value in sums.items() if value}


def _shares(record: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("tenant_seconds", "house_seconds", "lost_seconds")
    corrects, images = record.get("is_correction", False), record.get("images", 0)
    return (record["job"], record["outcome"], corrects, images, *(record[name] for name in names))

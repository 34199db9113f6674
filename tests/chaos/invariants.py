"""Invariants that hold for every history, regardless of the actions on the system."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.jobs.model.job import NO_CLAIM
from service.jobs.model.ledger import HOUSE, LOST, TENANT
from tests.chaos.history import Exit, History, JobRecord, OrderResult
from tests.chaos.orders import AGAIN, FINISHED, SHORT_S, FollowUp
from tests.chaos.plan import Kind

ENDS = frozenset({"succeeded", "paused", "failed", "canceled", "expired"})
DRAINED_S = 30.0
"""Maximum seconds of an orderly exit, regardless of running jobs."""
ROUNDED_S = 1e-4
"""Tolerance for sums of amounts rounded to millionths."""
MICRO = 1_000_000


@dataclass(frozen=True)
class Breach:
    invariant: str
    what: str
    job: JobRecord | None = None

    def __str__(self) -> str:
        text = f"{self.invariant}: {self.what}"
        if self.job is None:
            return text
        events = (f"    {event.id} {event.name} {event.data or ''}" for event in self.job.events)
        return "\n".join([text, f"  {self.job.view}", *events])


Violations = Iterator[str | tuple[str, JobRecord]]


def accepted_is_kept(history: History) -> Violations:
    """Accepted jobs exist until they are deleted."""
    existing = {job.id: job for job in history.jobs}
    for order in history.results:
        jobs = {*order.jobs, *order.continued}
        for job_id in jobs & existing.keys() if order.is_deleted else ():
            yield f"{job_id} was deleted and is there", existing[job_id]
        for job_id in () if order.order.then is FollowUp.DELETES else jobs - existing.keys():
            yield f"{job_id} of order {order.order.number} is gone"


def one_end(history: History) -> Violations:
    """Each job reached one final state, which its last event reports exactly once."""
    for job in history.jobs:
        names = [event.name for event in job.events]
        if job.state not in ENDS:
            yield f"{job.id} has not ended", job
        elif [name for name in names if name in ENDS] != [job.state] or names[-1] != job.state:
            yield f"{job.id} is {job.state} and its events tell otherwise", job


def a_good_end(history: History) -> Violations:
    """All jobs succeed, except those with a short deadline or a cancellation; attempts are
    unlimited."""
    orders = {result.order.number: result.order for result in history.results}
    for job in history.jobs:
        order = None if job.order is None else orders[job.order]
        stops = "stop_at_step" in job.view.get("request", {})
        allowed = {"paused" if stops else "succeeded"}
        allowed |= {"expired"} if order and order.deadline_s == SHORT_S else set()
        allowed |= {"canceled"} if order and order.then is FollowUp.CANCELS else set()
        if job.state in ENDS - allowed:
            due = f", due in {order.deadline_s:g} s" if order and order.deadline_s else ""
            yield f"{job.id} {job.state}{due}", job


def one_job_a_key(history: History) -> Violations:
    """A request repeated with its idempotency key yields the same, single job."""
    jobs_by_order = defaultdict(set)
    for job in history.jobs:
        jobs_by_order[job.order].add(job.id)
    for result in history.results:
        jobs = jobs_by_order[result.order.number] | set(result.jobs)
        if result.order.key and len(jobs) > 1:
            yield f"order {result.order.number} became {sorted(jobs)}"


def events_in_order(history: History) -> Violations:
    """Event ids increase, every claim has its event, and steps do not decrease within a claim."""
    for job in history.jobs:
        if not job.events:  # reported by the invariant one_end
            continue
        ids = [event.id for event in job.events]
        claims = [event for event in job.events if event.name == "running"]
        if ids != sorted(set(ids)) or job.events[0].name != "queued":
            yield f"{job.id} has events out of order", job
        elif _goes_back(job):
            yield f"{job.id} went back", job
        elif len(claims) != job.fence:
            yield f"{job.id} was claimed {job.fence} times, by its events {len(claims)}", job


def _goes_back(job: JobRecord) -> bool:
    step = 0
    for event in job.events:
        if event.name == "running":
            step = 0
        elif event.name in ("progress", "preview"):
            if event.data["step"] < step:
                return True
            step = event.data["step"]
    return False


def no_stale_result(history: History) -> Violations:
    """The last claim finished the job; files are of that claim, or of images that an earlier claim
    had finished in a job of several."""
    for job in history.jobs:
        if not job.is_done:
            continue
        fences = [int(key.rpartition("/")[2].partition("-")[0]) for key in job.keys]
        late = [fence for fence in fences if fence > job.fence]
        early = [fence for fence in fences if fence < job.fence]
        if job.is_copy and fences == [NO_CLAIM] * len(fences):
            continue
        if job.settled != f"{job.fence} finish {job.state}" or late or (early and len(fences) == 1):
            yield f"{job.id}: claim {job.fence} ended as {job.settled!r}, files of {fences}", job


def same_pixels(history: History) -> Violations:
    """Every file equals the undisturbed run's, bit for bit."""
    requests = {result.order.number: result.order.request for result in history.results}
    for job in history.jobs:
        order = requests.get(job.order) if job.order is not None else None
        request = FINISHED if job.view.get("continues") else order
        if not job.is_done or request is None:
            continue
        reported = tuple(output["sha256"] for output in job.view["outputs"])
        if not job.digests == reported == history.expected[request]:
            yield f"{job.id} ({request}) is another image", job


def given_only_what_may_be(history: History) -> Violations:
    """Only jobs that allow reuse get another job's files, and only their tenant's."""
    owners = {job.id: job.tenant for job in history.jobs}
    requests = {result.order.number: result.order.request for result in history.results}
    for job in history.jobs:
        source = job.view["reuses"]
        if source and job.order is not None and requests[job.order] != AGAIN:
            yield f"{job.id} was to be drawn, and has files of {source}", job
        elif source and owners.get(source, job.tenant) != job.tenant:
            yield f"{job.id} has files of another tenant", job


def verified_identical(history: History) -> Violations:
    """An output that a client has verified is identical when generated again."""
    existing = {job.id: job for job in history.jobs}
    for result in history.results:
        job = existing.get(result.jobs[0]) if result.jobs else None
        is_verified = result.order.then is FollowUp.VERIFIES and job and job.state == "succeeded"
        if is_verified and result.verdicts != ["identical"]:
            yield f"{result.jobs[0]} has the verdicts {result.verdicts}", job


def paused_is_finished(history: History) -> Violations:
    """A continued job leads to exactly one job that continues it."""
    existing = {job.id: job for job in history.jobs}
    for result in history.results:
        if len(result.continued) > 1:
            yield f"the rest of order {result.order.number} became {result.continued}"
        for job_id in result.continued:
            job = existing.get(job_id)
            if job and job.view.get("continues") not in result.jobs:
                yield f"{job_id} continues another job than it was asked to", job


def polite(history: History) -> Violations:
    """The only refusals are 429 and 503 with Retry-After, and deadlines that are too short."""
    for result in history.results:
        for answer in (answer for answer in result.answers if not answer.is_hopeless):
            if answer.status not in (429, 503) or not int(answer.retry_after or 0) > 0:
                yield f"order {result.order.number} received {answer}"


def recorded_once(history: History) -> Violations:
    """Each ended job, deleted or not, has one final ledger record, which agrees with the API."""
    ends = Counter(record.job for record in history.ledger if not record.is_correction)
    existing = {job.id: job for job in history.jobs}
    accepted = {job_id for result in history.results for job_id in result.jobs} | existing.keys()
    for job_id in accepted | ends.keys():
        if ends[job_id] != 1:
            yield f"{job_id} has {ends[job_id]} records of its end"
    used: defaultdict[str, float] = defaultdict(float)
    for record in history.ledger:
        used[record.job] += record.device_seconds
        job = existing.get(record.job)
        if job and (record.outcome, record.tenant) != (job.state, job.tenant):
            by_record = f"by its record {record.outcome} of {record.tenant}"
            yield f"{record.job} of {job.tenant} {job.state}, {by_record}", job
    for job in history.jobs:
        if abs(used[job.id] - job.view["usage"]["device_seconds"]) > ROUNDED_S:
            yield f"{job.id} used {used[job.id]} device-seconds, by its records", job


def balanced(history: History) -> Violations:
    """Tenant and operator together pay all device-seconds, and Redis's sums equal the records'."""
    sums: Counter[tuple[str, ...]] = Counter()
    for record in history.ledger:
        shares = record.tenant_seconds + record.house_seconds
        if abs(shares - record.device_seconds) > ROUNDED_S:
            yield f"record {record.id} of {record.job} is not paid for"
        names = (record.model, record.tenant_class)
        if not record.is_correction:
            sums["jobs", *names, record.outcome] += 1
        for quantity in ("images", "videos", "frames", "pixels"):
            sums[quantity, *names] += getattr(record, quantity)
        lost = record.lost_seconds
        for payer, seconds in (
            (TENANT, record.tenant_seconds),
            (HOUSE, record.house_seconds - lost),
        ):
            sums["device_seconds", *names, record.outcome, payer] += round(seconds * MICRO)
        sums["device_seconds", *names, LOST, HOUSE] += round(lost * MICRO)
    for name in sums.keys() | history.totals.keys():
        if sums[name] != history.totals.get(name, 0):
            yield f"{name} is {history.totals.get(name, 0)}, by the records {sums[name]}"


def known_keys(history: History) -> Violations:
    yield from (f"{key} is in no schema" for key in history.unknown_keys)


def nothing_left(history: History) -> Violations:
    yield from (f"key {key}" for key in history.left_keys)
    yield from (f"file {file}" for file in history.left_files)
    yield from (f"process {process}" for process in history.left_processes)


def whole_capacity(history: History) -> Violations:
    """An idle pool has all of its slots free; it checks this at each heartbeat, and exits
    otherwise."""
    if history.pools_without_slots:
        yield f"{history.pools_without_slots} pools lost slots"


def orderly_exits(history: History) -> Violations:
    """Processes exit only when made to; a drained process exits in time with code 0."""
    for exit in history.exits:
        if not _is_orderly(exit):
            yield f"{exit}"


def _is_orderly(exit: Exit) -> bool:
    if exit.act is Kind.DRAIN:
        return exit.code == 0 and exit.lasted_s <= DRAINED_S
    return exit.act is not None


def everybody_served(history: History) -> Violations:
    """A client gives up only if its deadline is too short or acceptance is unknowable."""
    for result in history.results:
        if not result.jobs and not result.gave_up:
            yield f"order {result.order.number} was never accepted: {_last(result)}"


def _last(result: OrderResult) -> str:
    return str(result.answers[-1:])


INVARIANTS: tuple[Callable[[History], Violations], ...] = (
    accepted_is_kept,
    one_end,
    a_good_end,
    one_job_a_key,
    events_in_order,
    no_stale_result,
    same_pixels,
    given_only_what_may_be,
    verified_identical,
    paused_is_finished,
    polite,
    recorded_once,
    balanced,
    known_keys,
    nothing_left,
    whole_capacity,
    orderly_exits,
    everybody_served,
)


def breaches(history: History) -> list[Breach]:
    """Breaches of all invariants."""
    result = []
    for invariant in INVARIANTS:
        for breach in invariant(history):
            message, job = breach if isinstance(breach, tuple) else (breach, None)
            result.append(Breach(invariant.__name__, message, job))
    return result

"""What must be true of every history, whatever was done to the system."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.jobs.model.job import NO_CLAIM
from service.jobs.model.ledger import HOUSE, LOST, TENANT
from tests.chaos.history import Asked, Exit, History, Seen
from tests.chaos.orders import AGAIN, FINISHED, SHORT_S, Then
from tests.chaos.plan import Kind

ENDS = frozenset({"succeeded", "paused", "failed", "canceled", "expired"})
DRAINED_S = 30.0
"""What an orderly end may take, whatever was running."""
ROUNDED_S = 1e-4
"""Of a few amounts in millionths."""
MICRO = 1_000_000


@dataclass(frozen=True)
class Breach:
    invariant: str
    what: str
    job: Seen | None = None

    def __str__(self) -> str:
        said = f"{self.invariant}: {self.what}"
        if self.job is None:
            return said
        told = (f"    {one.id} {one.name} {one.data or ''}" for one in self.job.events)
        return "\n".join([said, f"  {self.job.view}", *told])


Found = Iterator[str | tuple[str, Seen]]


def accepted_is_kept(history: History) -> Found:
    """What was accepted is there, until it is deleted."""
    there = {job.id: job for job in history.seen}
    for asked in history.asked:
        jobs = {*asked.jobs, *asked.continued}
        for job_id in jobs & there.keys() if asked.is_deleted else ():
            yield f"{job_id} was deleted and is there", there[job_id]
        for job_id in () if asked.order.then is Then.DELETES else jobs - there.keys():
            yield f"{job_id} of order {asked.order.number} is gone"


def one_end(history: History) -> Found:
    """Each job has reached one end state, and its events say so, once and last."""
    for job in history.seen:
        names = [event.name for event in job.events]
        if job.state not in ENDS:
            yield f"{job.id} has not ended", job
        elif [name for name in names if name in ENDS] != [job.state] or names[-1] != job.state:
            yield f"{job.id} is {job.state} and its events tell otherwise", job


def a_good_end(history: History) -> Found:
    """All succeed but those that had little time or were canceled; attempts are not limited."""
    orders = {asked.order.number: asked.order for asked in history.asked}
    for job in history.seen:
        order = None if job.order is None else orders[job.order]
        stops = "stop_at_step" in job.view.get("request", {})
        allowed = {"paused" if stops else "succeeded"}
        allowed |= {"expired"} if order and order.deadline_s == SHORT_S else set()
        allowed |= {"canceled"} if order and order.then is Then.CANCELS else set()
        if job.state in ENDS - allowed:
            due = f", due in {order.deadline_s:g} s" if order and order.deadline_s else ""
            yield f"{job.id} {job.state}{due}", job


def one_job_a_key(history: History) -> Found:
    """Whoever repeats a request with its key gets the same job, and there is no other."""
    found = defaultdict(set)
    for job in history.seen:
        found[job.order].add(job.id)
    for asked in history.asked:
        jobs = found[asked.order.number] | set(asked.jobs)
        if asked.order.key and len(jobs) > 1:
            yield f"order {asked.order.number} became {sorted(jobs)}"


def events_in_order(history: History) -> Found:
    """Ids are counted on, claims too, and no step goes back within a claim."""
    for job in history.seen:
        if not job.events:  # it has not ended, which is another invariant's
            continue
        ids = [event.id for event in job.events]
        claims = [event for event in job.events if event.name == "running"]
        if ids != sorted(set(ids)) or job.events[0].name != "queued":
            yield f"{job.id} has events out of order", job
        elif _goes_back(job):
            yield f"{job.id} went back", job
        elif len(claims) != job.fence:
            yield f"{job.id} was claimed {job.fence} times, by its events {len(claims)}", job


def _goes_back(job: Seen) -> bool:
    step = 0
    for event in job.events:
        if event.name == "running":
            step = 0
        elif event.name in ("progress", "preview"):
            if event.data["step"] < step:
                return True
            step = event.data["step"]
    return False


def no_stale_result(history: History) -> Found:
    """What succeeded was finished by the last claim; its files are that claim's, or those of a
    image of several that an earlier one had finished."""
    for job in history.seen:
        if not job.is_done:
            continue
        fences = [int(key.rpartition("/")[2].partition("-")[0]) for key in job.keys]
        late = [fence for fence in fences if fence > job.fence]
        early = [fence for fence in fences if fence < job.fence]
        if job.is_copy and fences == [NO_CLAIM] * len(fences):
            continue
        if job.settled != f"{job.fence} finish {job.state}" or late or (early and len(fences) == 1):
            yield f"{job.id}: claim {job.fence} ended as {job.settled!r}, files of {fences}", job


def same_pixels(history: History) -> Found:
    """Every file is, to the bit, that of the undisturbed run."""
    requests = {asked.order.number: asked.order.request for asked in history.asked}
    for job in history.seen:
        order = requests.get(job.order) if job.order is not None else None
        request = FINISHED if job.view.get("continues") else order
        if not job.is_done or request is None:
            continue
        told = tuple(output["sha256"] for output in job.view["outputs"])
        if not job.digests == told == history.expected[request]:
            yield f"{job.id} ({request}) is another image", job


def given_only_what_may_be(history: History) -> Found:
    """Files of another job are given to those alone who let them be, and to its tenant."""
    owners = {job.id: job.tenant for job in history.seen}
    requests = {asked.order.number: asked.order.request for asked in history.asked}
    for job in history.seen:
        source = job.view["reuses"]
        if source and job.order is not None and requests[job.order] != AGAIN:
            yield f"{job.id} was to be drawn, and has files of {source}", job
        elif source and owners.get(source, job.tenant) != job.tenant:
            yield f"{job.id} has files of another tenant", job


def paused_is_finished(history: History) -> Found:
    """Whoever asked for the rest of a paused job has got it."""
    there = {job.id: job for job in history.seen}
    for asked in history.asked:
        if len(asked.continued) > 1:
            yield f"the rest of order {asked.order.number} became {asked.continued}"
        for job_id in asked.continued:
            job = there.get(job_id)
            if job and job.view.get("continues") not in asked.jobs:
                yield f"{job_id} continues another job than it was asked to", job


def polite(history: History) -> Found:
    """What cannot be done now is refused with a time to come back, and nothing else goes wrong."""
    for asked in history.asked:
        for answer in (answer for answer in asked.answers if not answer.is_hopeless):
            if answer.status not in (429, 503) or not int(answer.retry_after or 0) > 0:
                yield f"order {asked.order.number} was told {answer}"


def recorded_once(history: History) -> Found:
    """Each job that ended, deleted ones too, has one record of its end; what the record says is
    what the client is shown."""
    ends = Counter(record.job for record in history.ledger if not record.is_correction)
    there = {job.id: job for job in history.seen}
    accepted = {job_id for asked in history.asked for job_id in asked.jobs} | there.keys()
    for job_id in accepted | ends.keys():
        if ends[job_id] != 1:
            yield f"{job_id} has {ends[job_id]} records of its end"
    used: defaultdict[str, float] = defaultdict(float)
    for record in history.ledger:
        used[record.job] += record.device_seconds
        job = there.get(record.job)
        if job and (record.outcome, record.tenant) != (job.state, job.tenant):
            by_record = f"by its record {record.outcome} of {record.tenant}"
            yield f"{record.job} of {job.tenant} {job.state}, {by_record}", job
    for job in history.seen:
        if abs(used[job.id] - job.view["usage"]["device_seconds"]) > ROUNDED_S:
            yield f"{job.id} used {used[job.id]} device-seconds, by its records", job


def balanced(history: History) -> Found:
    """Everything that was used is paid for, by one of the two; Redis's sums are the records'."""
    sums: Counter[tuple[str, ...]] = Counter()
    for record in history.ledger:
        shares = record.tenant_seconds + record.house_seconds
        if abs(shares - record.device_seconds) > ROUNDED_S:
            yield f"record {record.id} of {record.job} is not paid for"
        names = (record.model, record.tenant_class)
        if not record.is_correction:
            sums["jobs", *names, record.outcome] += 1
        for what in ("images", "videos", "frames", "pixels"):
            sums[what, *names] += getattr(record, what)
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


def known_keys(history: History) -> Found:
    yield from (f"{key} is in no schema" for key in history.unknown_keys)


def nothing_left(history: History) -> Found:
    yield from (f"key {key}" for key in history.left_keys)
    yield from (f"file {file}" for file in history.left_files)
    yield from (f"process {process}" for process in history.left_processes)


def orderly_exits(history: History) -> Found:
    """A process ends when it is made to; one that drains, in time and with exit code 0."""
    for exit in history.exits:
        if not _is_orderly(exit):
            yield f"{exit}"


def _is_orderly(exit: Exit) -> bool:
    if exit.asked is Kind.DRAIN:
        return exit.code == 0 and exit.lasted_s <= DRAINED_S
    return exit.asked is not None


def everybody_served(history: History) -> Found:
    """A client gives up where it was told that it would be too late, or could not know."""
    for asked in history.asked:
        if not asked.jobs and not asked.gave_up:
            yield f"order {asked.order.number} was never accepted: {_last(asked)}"


def _last(asked: Asked) -> str:
    return str(asked.answers[-1:])


INVARIANTS: tuple[Callable[[History], Found], ...] = (
    accepted_is_kept,
    one_end,
    a_good_end,
    one_job_a_key,
    events_in_order,
    no_stale_result,
    same_pixels,
    given_only_what_may_be,
    paused_is_finished,
    polite,
    recorded_once,
    balanced,
    known_keys,
    nothing_left,
    orderly_exits,
    everybody_served,
)


def breaches(history: History) -> list[Breach]:
    """Of all invariants, by name."""
    found = []
    for invariant in INVARIANTS:
        for breach in invariant(history):
            what, job = breach if isinstance(breach, tuple) else (breach, None)
            found.append(Breach(invariant.__name__, what, job))
    return found

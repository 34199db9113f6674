"""What must be true of every history, whatever was done to the system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.history import Asked, Exit, History, Seen
from tests.chaos.orders import SHORT_S, Then
from tests.chaos.plan import Kind

ENDS = frozenset({"succeeded", "failed", "canceled", "expired"})
DRAINED_S = 30.0
"""What an orderly end may take, whatever was running."""


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
        jobs = set(asked.jobs)
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
        allowed = {"succeeded"}
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
        if job.state != "succeeded":
            continue
        fences = [int(key.rpartition("/")[2].partition("-")[0]) for key in job.keys]
        late = [fence for fence in fences if fence > job.fence]
        early = [fence for fence in fences if fence < job.fence]
        if job.settled != f"{job.fence} finish succeeded" or late or (early and len(fences) == 1):
            yield f"{job.id}: claim {job.fence} ended as {job.settled!r}, files of {fences}", job


def same_pixels(history: History) -> Found:
    """Every file is, to the bit, that of the undisturbed run."""
    requests = {asked.order.number: asked.order.request for asked in history.asked}
    for job in history.seen:
        if job.state != "succeeded" or job.order is None:
            continue
        told = tuple(output["sha256"] for output in job.view["outputs"])
        if not job.digests == told == history.expected[requests[job.order]]:
            yield f"{job.id} ({requests[job.order]}) is another image", job


def polite(history: History) -> Found:
    """What cannot be done now is refused with a time to come back, and nothing else goes wrong."""
    for asked in history.asked:
        for answer in (answer for answer in asked.answers if not answer.is_hopeless):
            if answer.status not in (429, 503) or not int(answer.retry_after or 0) > 0:
                yield f"order {asked.order.number} was told {answer}"


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
    polite,
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

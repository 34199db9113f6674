"""Metrics of jobs, counted for Prometheus by the process whose call changed the job.

A job's end is counted once: by the pool that finishes or fails it, by the front end that cancels
it. What a script does beside its caller's errand (a deadline that has passed, a lease that has
lapsed) it writes down in Redis, and the reaper that takes the note away counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics

from service.jobs.model import gen_ai
from service.jobs.model.gen_ai import Durations
from service.jobs.model.histogram import Histogram
from service.jobs.model.job import DEFAULT_CLASS, ErrorCode, Job
from service.jobs.model.state_machine import ENDED, JobState
from service.tracing import spans

disable_created_metrics()  # they would double the series, and Prometheus has no use for them

WAIT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 2400, 4800)
DURATION_BUCKETS_S = (
    0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 240, 480, 720, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Buckets from an image of a distilled model to a queued video in high resolution."""

LOST, EXCUSED = "lost", "excused"
RETRY_REASONS = (LOST, EXCUSED, "store", "safety_unavailable", "internal")
"""Reasons for requeuing a job: its lease lapsed, its lease lapsed while nobody could be heard, or
what its pool reports (a `JobError.code`)."""
SET_ASIDE: ErrorCode = "poisonous"
"""Failure that no caller reports: the queue sets it."""
MET, MISSED = "met", "missed"
OUTCOMES = tuple(sorted(ENDED))


@dataclass(frozen=True)
class End:
    """End of one job. Times are seconds since the epoch, by Redis's clock."""

    model: str
    outcome: JobState
    created_at: float
    finished_at: float
    tenant_class: str = DEFAULT_CLASS
    deadline_at: float | None = None
    failure: ErrorCode | None = None
    """Reason, where it failed."""
    traceparent: str | None = None
    """The span of the request that it came with."""
    request_model: str | None = None
    """The model that the request names; None: the same."""

    @classmethod
    def of(
        cls, job: Job, outcome: JobState, finished_at: float, failure: ErrorCode | None = None
    ) -> End:
        """Return the end of a job, as metrics count it."""
        return cls(
            job.model,
            outcome,
            job.created_at,
            finished_at,
            job.tenant_class,
            job.deadline_at,
            failure if outcome is JobState.FAILED else None,
            job.traceparent,
            gen_ai.request_model(job),
        )

    @property
    def error_type(self) -> str:
        """Return why it did not succeed; empty: it did."""
        return "" if self.outcome.is_done else self.failure or self.outcome

    @property
    def deadline(self) -> str | None:
        """Met or missed; None: there was none, or the client did not want the answer any more."""
        if self.deadline_at is None or self.outcome is JobState.CANCELED:
            return None
        is_met = self.outcome.is_done and self.finished_at <= self.deadline_at
        return MET if is_met else MISSED


class JobMetrics:
    """The counts of one process.

    Args:
        registry: whose page they are told on.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.objectives: dict[str, float] = {}
        """Time in seconds that a job may wait, by model: of those that this process claims for."""
        self.wait = Histogram(
            "atelier_job_wait_seconds",
            "Seconds from a job's acceptance to its first claim.",
            ("model", "tenant_class"),
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            "atelier_job_duration_seconds",
            "Seconds from a job's acceptance to its end.",
            ("model", "outcome"),
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self.gen_ai = Durations(registry)
        self.ends = Counter(
            "atelier_jobs_ended_total",
            "Jobs ended, reported by the process whose call ended them.",
            ("model", "tenant_class", "outcome"),
            registry=registry,
        )
        self.failures = Counter(
            "atelier_job_failures_total",
            "Jobs failed for good, by reason.",
            ("model", "reason"),
            registry=registry,
        )
        self.deadlines = Counter(
            "atelier_job_deadlines_total",
            "Ended jobs that had a deadline, canceled ones excepted.",
            ("model", "tenant_class", "outcome"),
            registry=registry,
        )
        self.in_time = Counter(
            "atelier_jobs_in_time_total",
            "Jobs by whether they were in time: ended by their deadline, or without one claimed"
            " within the model's objective.",
            ("model", "outcome"),
            registry=registry,
        )
        self.reclaimed = Counter(
            "atelier_reclaimed_leases_total",
            "Leases that expired: the job was reclaimed from its pool.",
            ("model",),
            registry=registry,
        )
        self.retries = Counter(
            "atelier_retries_total",
            "Jobs requeued for another attempt, by reason.",
            ("model", "reason"),
            registry=registry,
        )

    def expect(self, models: Iterable[str], classes: Iterable[str]) -> None:
        """Tell of these from now on, with 0 where nothing has happened yet."""
        classes = tuple(classes)
        for model in models:
            self.reclaimed.labels(model)
            for attained in (MET, MISSED):
                self.in_time.labels(model, attained)
            for reason in RETRY_REASONS:
                self.retries.labels(model, reason)
            for code in get_args(ErrorCode):
                self.failures.labels(model, code)
            for outcome in OUTCOMES:
                self.duration.labels(model, outcome)
            self.gen_ai.expect(model)
            for name in classes:
                self._expect(model, name)

    def _expect(self, model: str, tenant_class: str) -> None:
        self.wait.labels(model, tenant_class)
        for outcome in OUTCOMES:
            self.ends.labels(model, tenant_class, outcome)
        for attained in (MET, MISSED):
            self.deadlines.labels(model, tenant_class, attained)

    def claimed(self, job: Job) -> None:
        """Count a job's first claim."""
        waited_s = max(0.0, (job.started_at or job.created_at) - job.created_at)
        exemplar = spans.exemplar_of(job.traceparent)
        self.wait.labels(job.model, job.tenant_class).observe(waited_s, exemplar)
        objective_s = self.objectives.get(job.model)
        if objective_s is not None and job.deadline_at is None:
            self.in_time.labels(job.model, MET if waited_s <= objective_s else MISSED).inc()

    def ended(self, end: End) -> None:
        """Count a job's end, with how long it took."""
        self.ends.labels(end.model, end.tenant_class, end.outcome).inc()
        took_s = max(0.0, end.finished_at - end.created_at)
        exemplar = spans.exemplar_of(end.traceparent)
        self.duration.labels(end.model, end.outcome).observe(took_s, exemplar)
        asked = end.request_model or end.model
        self.gen_ai.observe(asked, end.model, end.error_type, took_s, exemplar)
        if end.failure:
            self.failures.labels(end.model, end.failure).inc()
        if end.deadline:
            self.deadlines.labels(end.model, end.tenant_class, end.deadline).inc()
            self.in_time.labels(end.model, end.deadline).inc()

    def retried(self, model: str, reason: str) -> None:
        """Count a try that was not the last one."""
        self.retries.labels(model, reason).inc()

    def hear(self, said: Mapping[str, Any]) -> None:
        """Count one of the notes that the scripts leave behind (`note` in life.lua)."""
        event, model = said["event"], said["model"]
        if event in (LOST, EXCUSED):
            self.reclaimed.labels(model).inc()
            if said["again"]:
                self.retried(model, event)
            return
        deadline = said.get("deadline_at")
        self.ended(
            End(
                model,
                JobState(event),
                float(said["created_at"]),
                float(said["finished_at"]),
                said.get("tenant_class", DEFAULT_CLASS),
                None if deadline is None else float(deadline),
                SET_ASIDE if event == JobState.FAILED else None,
                (said.get("trace") or {}).get("parent"),
                said.get("served_as"),
            )
        )

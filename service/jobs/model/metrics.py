"""Prometheus metrics of jobs, counted by the process whose call changed the job.

A job's end is counted once: by the worker that finishes or fails it, or by the front end that
cancels it. Scripts may also end jobs in addition to their main task, for a passed deadline or a
lapsed lease. They store a note in Redis then, and the reaper that removes the note counts it.
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
"""Buckets from an image of a distilled model to a queued high-resolution video."""

LOST, EXCUSED = "lost", "excused"
RETRY_REASONS = (LOST, EXCUSED, "store", "safety_unavailable", "internal")
"""Reasons for requeuing a job: its lease lapsed, its lease lapsed while workers could not reach
Redis, or a failure that its worker reports (a `JobError.code`)."""
POISONOUS: ErrorCode = "poisonous"
"""Failure reason that the queue sets, not a caller."""
MET, MISSED = "met", "missed"
"""Outcomes of deadlines and of wait objectives."""
OUTCOMES = tuple(sorted(ENDED))


@dataclass(frozen=True)
class JobEnd:
    """End of a job, as input of the metrics. Times are seconds since the epoch by Redis's clock."""

    model: str
    outcome: JobState
    created_at: float
    finished_at: float
    tenant_class: str = DEFAULT_CLASS
    deadline_at: float | None = None
    failure: ErrorCode | None = None
    """Reason of a failed job."""
    traceparent: str | None = None
    """Span of the request."""
    request_model: str | None = None
    """Model that the request names; None: equal to `model`."""

    @classmethod
    def of(
        cls, job: Job, outcome: JobState, finished_at: float, failure: ErrorCode | None = None
    ) -> JobEnd:
        """Create the end of a job for the metrics."""
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
        """Failure reason or end state of an unsuccessful job; empty if it succeeded."""
        return "" if self.outcome.is_done else self.failure or self.outcome

    @property
    def deadline(self) -> str | None:
        """Met or missed; None: the job had no deadline or was canceled."""
        if self.deadline_at is None or self.outcome is JobState.CANCELED:
            return None
        is_met = self.outcome.is_done and self.finished_at <= self.deadline_at
        return MET if is_met else MISSED


class JobMetrics:
    """Job metrics of one process.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.objectives: dict[str, float] = {}
        """Maximum wait in seconds by model, for the models that this process claims jobs of."""
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
            "Leases that expired: the job was reclaimed from its worker.",
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
        """Create the series of these models with value 0, before their first job."""
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

    def ended(self, end: JobEnd) -> None:
        """Count a job's end and its duration in the metrics."""
        self.ends.labels(end.model, end.tenant_class, end.outcome).inc()
        took_s = max(0.0, end.finished_at - end.created_at)
        exemplar = spans.exemplar_of(end.traceparent)
        self.duration.labels(end.model, end.outcome).observe(took_s, exemplar)
        request_model = end.request_model or end.model
        self.gen_ai.observe(request_model, end.model, end.error_type, took_s, exemplar)
        if end.failure:
            self.failures.labels(end.model, end.failure).inc()
        if end.deadline:
            self.deadlines.labels(end.model, end.tenant_class, end.deadline).inc()
            self.in_time.labels(end.model, end.deadline).inc()

    def retried(self, model: str, reason: str) -> None:
        """Count an attempt after which the job is requeued."""
        self.retries.labels(model, reason).inc()

    def count_note(self, note: Mapping[str, Any]) -> None:
        """Count a note that a Lua script stored about a job (`note` in transitions.lua)."""
        event, model = note["event"], note["model"]
        if event in (LOST, EXCUSED):
            self.reclaimed.labels(model).inc()
            if note["again"]:
                self.retried(model, event)
            return
        deadline = note.get("deadline_at")
        self.ended(
            JobEnd(
                model,
                JobState(event),
                float(note["created_at"]),
                float(note["finished_at"]),
                note.get("tenant_class", DEFAULT_CLASS),
                None if deadline is None else float(deadline),
                POISONOUS if event == JobState.FAILED else None,
                (note.get("trace") or {}).get("parent"),
                note.get("served_as"),
            )
        )


class ReuseMetrics:
    """Reuse metrics of one process.

    Args:
        registry: registry that exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Counter(
            "atelier_jobs_reused_total",
            "Jobs that received copies of another job's files: from a front end if that job had"
            " ended, else from a worker.",
            ("model",),
            registry=registry,
        )
        self._device_s = Counter(
            "atelier_reused_device_seconds_total",
            "Device-seconds that generating those files took.",
            ("model",),
            registry=registry,
        )

    def expect(self, model: str) -> None:
        """Create a model's series with value 0, before its first job."""
        self._jobs.labels(model)
        self._device_s.labels(model)

    def saved(self, model: str, device_seconds: float) -> None:
        """Count a job that got copies, and the device-seconds that the files had taken."""
        self._jobs.labels(model).inc()
        self._device_s.labels(model).inc(device_seconds)


CHECK_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
VERDICTS = ("allowed", "refused", "absent")


class SafetyMetrics:
    """Safety metrics of one process.

    Args:
        registry: registry that exports them.
        when: which of the two safety checks this process makes.
    """

    def __init__(self, registry: CollectorRegistry, when: str) -> None:
        self.checks = Counter(
            "atelier_safety_checks_total",
            "Checks by the safety hook, by verdict.",
            ("when", "verdict"),
            registry=registry,
        )
        self.seconds = Histogram(
            "atelier_safety_check_seconds",
            "Seconds from a request to the safety hook to its verdict, including retries.",
            ("when",),
            buckets=CHECK_BUCKETS_S,
            registry=registry,
        )
        self.seconds.labels(when)
        for verdict in VERDICTS:
            self.checks.labels(when, verdict)

    def record(self, when: str, verdict: str, seconds: float) -> None:
        """Count one safety check with its verdict and duration."""
        self.checks.labels(when, verdict).inc()
        exemplar = spans.exemplar_of(spans.current_traceparent())
        self.seconds.labels(when).observe(seconds, exemplar)

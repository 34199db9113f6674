"""Conversion of a job to a Replicate prediction."""

from __future__ import annotations

from service.jobs.model.job import Job, JobState
from service.responses.render import problem_without_output
from service.routes.compat import addresses
from service.routes.compat.call import Call
from service.routes.compat.replicate.bodies import Prediction, Status
from service.tracing.log_format import rfc3339

OWNER = "atelier"
"""Owner of all models in responses; requests may name any owner."""
STATUSES: dict[JobState, Status] = {
    JobState.QUEUED: "starting",
    JobState.RUNNING: "processing",
    JobState.SUCCEEDED: "succeeded",
    JobState.PAUSED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.EXPIRED: "failed",
}


async def prediction(call: Call, job: Job) -> Prediction:
    """Build Replicate's prediction of a job."""
    get = addresses.absolute_url(call, f"/v1/predictions/{job.id}")
    return Prediction(
        id=job.id,
        model=f"{OWNER}/{job.model}",
        version=job.model,
        status=STATUSES[job.state],
        input=job.request,
        output=await addresses.output_urls(call, job) or None,
        logs=_logs(job),
        error=_error(job),
        metrics={"predict_time": job.usage.device_seconds} if job.state.ended else {},
        created_at=rfc3339(job.created_at),
        started_at=job.started_at and rfc3339(job.started_at),
        completed_at=job.finished_at and rfc3339(job.finished_at),
        urls={"get": get, "cancel": f"{get}/cancel"},
    )


def _logs(job: Job) -> str:
    """Format a job's progress as a bar that Replicate's client parses."""
    if not job.steps or job.state is JobState.QUEUED:
        return ""
    percent = round(100 * job.step / job.steps)
    return f"{percent}%|{'#' * (percent // 10):10}| {job.step}/{job.steps}"


def _error(job: Job) -> str | None:
    if job.state not in (JobState.FAILED, JobState.EXPIRED):
        return None
    return problem_without_output(job).detail

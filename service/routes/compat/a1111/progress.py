"""`progress`, `interrupt` and `skip`, for jobs that the sender waits for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict

from service.errors.problems import Unservable
from service.jobs.model.job import Job, JobState
from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.call import Call
from service.routes.documented_responses import with_example
from service.schemas.examples import PIXEL, Example, schema_example

ERRORS = documents.errors(A1111Error, 401, 422, 503)
EXAMPLE: Example = {
    "progress": 0.5,
    "eta_relative": 1.5,
    "state": {"job": "job_0f8a1c2d3e4b5a69", "job_count": 1, "sampling_step": 10},
    "current_image": PIXEL,
    "textinfo": "denoising",
}


class A1111Progress(BaseModel):
    """Progress of the sender's running or next job."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(EXAMPLE)
    )

    progress: float
    """Share of finished steps; 0 if there is no job."""
    eta_relative: float
    """Seconds until the job ends; 0 if unknown."""
    state: dict[str, Any]
    """Current step of the job, and number of jobs."""
    current_image: str | None
    """Latest preview in base64; null before the first."""
    textinfo: str | None
    """Stage of the job."""


@router.get("/progress", responses=ERRORS)
async def sdapi_progress(
    call: ByKey,
    skip_current_image: Annotated[
        bool, Query(description="Whether to leave out the preview.")
    ] = False,
) -> A1111Progress:
    """Return the progress of the job that this key or address waits for."""
    jobs = await _jobs(call)
    if not jobs:
        return _idle()
    preview = None if skip_current_image else await call.front.queue.newest_preview(jobs[0].id)
    _, eta_s = await call.front.costs.position_and_end(jobs[0])
    return _progress(jobs, eta_s, preview)


@router.post("/interrupt", responses=with_example({}) | ERRORS)
async def sdapi_interrupt(call: ByKey) -> dict[str, Any]:
    """Cancel the job that this key or address waits for; the waiting request gets a 409."""
    for job in (await _jobs(call))[:1]:
        await call.front.queue.cancel(job.id)
    return {}


@router.post("/skip", responses=ERRORS)
async def sdapi_skip(call: ByKey) -> None:
    """Cancel the sender's job if it has one image: single images of a job cannot be skipped."""
    for job in (await _jobs(call))[:1]:
        if job.images > 1:
            message = (
                f"single images of a job cannot be skipped; interrupt cancels all {job.images}"
            )
            raise Unservable(message)
        await call.front.queue.cancel(job.id)


async def _jobs(call: Call) -> list[Job]:
    """Return the sender's jobs that have not ended: running ones first, then by arrival."""
    ids = await call.front.queue.waiting_jobs(call.sender)
    stored = [await call.front.queue.get(job_id) for job_id in ids]
    jobs = [job for job in stored if job and not job.state.ended and job.tenant == call.tenant]
    return sorted(jobs, key=lambda job: job.state is not JobState.RUNNING)


def _idle() -> A1111Progress:
    state = {"job_count": 0, "sampling_step": 0, "sampling_steps": 0, **_flags("")}
    return A1111Progress(progress=0, eta_relative=0, state=state, current_image=None, textinfo=None)


def _progress(jobs: list[Job], eta_s: float | None, preview: str | None) -> A1111Progress:
    job = jobs[0]
    timestamp = str(int(job.created_at))
    steps = {"sampling_step": job.step, "sampling_steps": job.steps}
    return A1111Progress(
        progress=job.step / job.steps if job.steps else 0,
        eta_relative=eta_s or 0,
        state={"job_count": len(jobs), **steps, **_flags(job.id), "job_timestamp": timestamp},
        current_image=preview.partition(",")[2] if preview else None,
        textinfo=job.detail.stage if job.detail else job.state.value,
    )


def _flags(job: str) -> dict[str, Any]:
    flags = dict.fromkeys(("skipped", "interrupted", "stopping_generation"), False)
    return {**flags, "job": job, "job_no": 0, "job_timestamp": "0"}

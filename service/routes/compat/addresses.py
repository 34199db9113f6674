"""Addresses in answers: whole ones, as clients of other APIs expect them."""

from __future__ import annotations

from service.jobs.model.job import Job
from service.routes.compat.call import Call
from service.schemas.response import job_url


def whole(call: Call, path: str) -> str:
    """Return where clients reach a path of this server."""
    return str(call.request.base_url).rstrip("/") + path


async def of_outputs(call: Call, job: Job) -> list[str]:
    """Return the address of each of a job's outputs."""
    return [whole(call, f"{job_url(job.id)}/outputs/{one.index}") for one in job.outputs]

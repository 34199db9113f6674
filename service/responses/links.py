"""Absolute URLs in responses, which clients of other vendors' APIs expect."""

from __future__ import annotations

from fastapi import Request

from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job


async def links_of(front: FrontEnd, request: Request, job: Job) -> list[str]:
    """Return a signed URL for each of a job's outputs."""
    base = public_url(front, request)
    return [base + await front.links.path(job.id, output.index) for output in job.outputs]


def public_url(front: FrontEnd, request: Request) -> str:
    """Return the server's base URL: the setting, or the URL of this request."""
    return (front.settings.server.public_url or str(request.base_url)).rstrip("/")

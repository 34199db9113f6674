"""Absolute URLs in responses of compatible endpoints."""

from __future__ import annotations

from service.jobs.model.job import Job
from service.responses.links import links_of, public_url
from service.routes.compat.call import Call


def absolute_url(call: Call, path: str) -> str:
    """Return the absolute URL of a path of this server."""
    return public_url(call.front, call.request) + path


async def output_urls(call: Call, job: Job) -> list[str]:
    """Return a signed URL of each of a job's outputs, valid without a key until it expires."""
    return await links_of(call.front, call.request, job)

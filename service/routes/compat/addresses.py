"""Addresses in answers: whole ones, as clients of other APIs expect them."""

from __future__ import annotations

from service.jobs.model.job import Job
from service.responses.links import links_of, public_url
from service.routes.compat.call import Call


def whole(call: Call, path: str) -> str:
    """Return where clients reach a path of this server."""
    return public_url(call.front, call.request) + path


async def of_outputs(call: Call, job: Job) -> list[str]:
    """Return a link to each of a job's outputs, which needs no key for a while."""
    return await links_of(call.front, call.request, job)

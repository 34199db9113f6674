"""/links: download outputs without an API key, by signed URLs that expire."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.front_end.front_end import Front, no_such_job
from service.http.headers import is_head
from service.responses.render import output_answer, output_head
from service.routes.documented_responses import LINK

router = APIRouter(prefix="/links", tags=["links"])

LATEST = 2**53


@router.get("/{job_id}/{index}", **LINK)
async def get_linked_output(
    job_id: Annotated[str, Path(description="A job's `id`.")],
    index: Annotated[int, Path(ge=0, description="Number of the output, from 0.")],
    expires: Annotated[
        int, Query(ge=0, le=LATEST, description="Expiry of the link: seconds since the epoch.")
    ],
    signature: Annotated[str, Query(max_length=100, description="The server's signature.")],
    request: Request,
    front: Front,
) -> Response:
    """Download one output, in full or as a byte range, by a signed link of the server.

    It needs no key. It expires at its time, or with its job or the server's secret.
    """
    await front.links.check(job_id, index, expires, signature)
    job = await front.queue.get(job_id)
    if job is None:
        raise no_such_job(job_id)
    if is_head(request):
        return await output_head(front, job, index, request.headers)
    client = front.client_of(request, job.tenant)
    return await output_answer(front, job, index, request.headers, client)

"""POST /v1/jobs/{id}/continue: finish images of a paused job with a new job."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.admission.drafts import continuation_request
from service.admission.parse import parse_as
from service.admission.refusals import Attempt
from service.front_end.front_end import Front, KeyId, Tenant
from service.http.body import read_json
from service.http.inflight_limits import Hold
from service.routes.documented_responses import CONTINUE
from service.routes.generate import ReadRequest, serve
from service.routes.jobs import JobId
from service.schemas.request import ContinueRequest

router = APIRouter(tags=["jobs"])


@router.post("/v1/jobs/{job_id}/continue", **CONTINUE)
async def continue_job(
    job_id: JobId, request: Request, front: Front, tenant: Tenant, key_id: KeyId
) -> Response:
    """Finish images of a paused job.

    A new job runs the remaining steps. It generates the same images as the request without
    `stop_at_step`. With another prompt, guidance or other adapters the images are branches: images
    that no other request generates. The response is that of `POST /v1/generate`.
    """

    async def read(hold: Hold, attempt: Attempt, media_types: tuple[str, ...]) -> ReadRequest:
        audition, limit = await front.job(job_id, tenant), front.settings.limits.max_body_bytes
        attempt.record_model(audition.request["model"])
        body = await read_json(request, limit, hold, partial(parse_as, ContinueRequest))
        return await continuation_request(front, audition, body, attempt.read, hold, media_types)

    return await serve(request, front, tenant, key_id, read)

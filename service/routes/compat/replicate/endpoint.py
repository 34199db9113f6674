"""Routes of Replicate's API, and the conversion of a job to a prediction."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from service.errors.problems import FieldError, NotFound
from service.http.negotiation import JSON, preferred_wait_s
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import Job, JobState
from service.responses.render import job_headers, problem_without_output
from service.responses.wait import wait_until_ended
from service.responses.warning_header import warning_header
from service.routes.compat import addresses, documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.hosted_fields import with_size
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.outcome import json_once_ended
from service.routes.compat.replicate.bodies import (
    Prediction,
    PredictionPage,
    PredictionRequest,
    Status,
    field_names,
    model_in_body,
    named_model,
    to_generate_fields,
)
from service.routes.documented_responses import Documents, problems
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


PAGE = 100

router = APIRouter(tags=["replicate"], dependencies=documented("bearer"))
Id = Annotated[str, Path(description="A prediction's `id`, which is its job's id.")]
ADMISSION_RESPONSES: Documents = {
    "response_class": Response,
    "status_code": 201,
    "responses": {
        201: {
            "description": "The prediction.",
            "content": {JSON: documents.schema_of(Prediction)},
        },
        **problems(*documents.ADMITTING),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {JSON: documents.schema_of(PredictionRequest)},
        }
    },
}


@router.post("/v1/predictions", **ADMISSION_RESPONSES)
async def create_prediction(call: ByBearer) -> Response:
    """Create a prediction: images or videos, for Replicate's client.

    With `Prefer: wait` the response arrives when the job has ended, or after 60 s.
    """
    return await _create(call, None)


@router.post("/v1/models/{name:path}/predictions", **ADMISSION_RESPONSES)
async def create_prediction_of_model(
    name: Annotated[str, Path(description="A model's `name`; an owner before it is ignored.")],
    call: ByBearer,
) -> Response:
    """Create a prediction of a model in the path, for Replicate's client."""
    return await _create(call, name)


@router.get("/v1/predictions", responses=problems(401, 404, 422, 503))
async def list_predictions(
    call: ByBearer,
    cursor: Annotated[
        str | None, Query(description="Cursor: from the previous page's `next`.")
    ] = None,
) -> PredictionPage:
    """Return a page of the tenant's jobs, as Replicate's predictions."""
    try:
        jobs = await call.front.queue.list(tenant=call.tenant, limit=PAGE, after=cursor)
    except UnknownCursor as error:
        errors = [FieldError("cursor", "there is no such job")]
        raise NotFound(str(error), errors=errors) from None
    next_path = f"/v1/predictions?cursor={jobs.next}" if jobs.next else None
    return PredictionPage(
        next=next_path and addresses.absolute_url(call, next_path),
        results=[await prediction(call, job) for job in jobs],
    )


@router.get("/v1/predictions/{prediction_id}", responses=problems(401, 404, 503))
async def get_prediction(prediction_id: Id, call: ByBearer, response: Response) -> Prediction:
    """Return a job, as a prediction in Replicate's format."""
    job = await call.front.job(prediction_id, call.tenant)
    response.headers.update(warning_header(job.warnings))
    return await prediction(call, job)


@router.post("/v1/predictions/{prediction_id}/cancel", responses=problems(401, 404, 503))
async def cancel_prediction(prediction_id: Id, call: ByBearer) -> Prediction:
    """Cancel a job by Replicate's API; a job that has ended is unchanged."""
    job = await call.front.job(prediction_id, call.tenant)
    return await prediction(call, await call.front.queue.cancel(job.id) or job)


async def _create(call: Call, path: str | None) -> Response:
    wait_s = preferred_wait_s(call.request.headers.getlist("prefer"))
    with call.front.waits.holding(call.client, int(wait_s is not None)) as waiting:
        job = await _admit(call, path)

        async def build() -> Response:
            return await _created(call, job, wait_s or 0.0)

        return await json_once_ended(call, job, waiting, build, status=201)


async def _admit(call: Call, path: str | None) -> Job:
    """Admit a prediction; its body is not kept while the job runs. Raises: Problem."""
    async with receive_request(call) as incoming:
        prediction_request = await incoming.json(
            PredictionRequest, lambda body: model_in_body(call.front.models, body, path)
        )
        model = await named_model(call.front.models, prediction_request, path)
        names = field_names(prediction_request)
        fields = await with_size(call, to_generate_fields(prediction_request, model), names)
        return await incoming.admit(fields, names)


async def _created(call: Call, job: Job, wait_s: float) -> Response:
    """Return the prediction of a new job, after its end or `wait_s` seconds."""
    timeout_s = min(wait_s, call.front.settings.limits.max_wait_s)
    job = await wait_until_ended(call.front, job, timeout_s, call.request)
    view = await prediction(call, job)
    if not job.state.ended:  # Replicate's client treats any other status as the end
        view.status = "starting"
    return Response(view.model_dump_json(), 201, headers=job_headers(job), media_type=JSON)


ENDPOINT = CompatibleEndpoint(router, bodies=(PredictionRequest, Prediction, PredictionPage))

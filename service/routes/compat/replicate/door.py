"""Routes of Replicate's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from service.errors.problems import FieldError, NotFound
from service.http.negotiation import JSON, preferred_wait_s
from service.jobs.model.errors import UnknownCursor
from service.responses import render
from service.responses.wait import until_ended
from service.routes.compat import addresses, documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.entry import entry
from service.routes.compat.replicate.bodies import Prediction, PredictionPage, PredictionRequest
from service.routes.compat.replicate.translation import named, names_of, translated
from service.routes.compat.replicate.views import prediction
from service.routes.documented_responses import Documents, problems

PAGE = 100

router = APIRouter(tags=["replicate"], dependencies=documented("bearer"))
Id = Annotated[str, Path(description="A prediction's `id`, which is its job's.")]
ADMITTED: Documents = {
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


@router.post("/v1/predictions", **ADMITTED)
async def create_prediction(call: ByBearer) -> Response:
    """Ask for images or videos, by Replicate's client.

    With `Prefer: wait` the answer comes when the job has ended, or after 60 s.
    """
    return await _created(call, None)


@router.post("/v1/models/{owner}/{name}/predictions", **ADMITTED)
async def create_prediction_of_model(
    owner: Annotated[str, Path(description="Any name.")],
    name: Annotated[str, Path(description="A model's `name`.")],
    call: ByBearer,
) -> Response:
    """Ask a model for images or videos, by Replicate's client."""
    return await _created(call, name)


@router.get("/v1/predictions", responses=problems(401, 404, 422, 503))
async def list_predictions(
    call: ByBearer,
    cursor: Annotated[
        str | None, Query(description="Where to go on: of the page's `next`.")
    ] = None,
) -> PredictionPage:
    """A page of the tenant's jobs, as predictions."""
    try:
        found = await call.front.queue.list(tenant=call.tenant, limit=PAGE, after=cursor)
    except UnknownCursor as error:
        said = [FieldError("cursor", "there is no such job")]
        raise NotFound(str(error), errors=said) from None
    after = f"/v1/predictions?cursor={found.next}" if found.next else None
    return PredictionPage(
        next=after and addresses.whole(call, after),
        results=[await prediction(call, job) for job in found],
    )


@router.get("/v1/predictions/{prediction_id}", responses=problems(401, 404, 503))
async def get_prediction(prediction_id: Id, call: ByBearer) -> Prediction:
    """A job, as a prediction."""
    return await prediction(call, await call.front.job(prediction_id, call.tenant))


@router.post("/v1/predictions/{prediction_id}/cancel", responses=problems(401, 404, 503))
async def cancel_prediction(prediction_id: Id, call: ByBearer) -> Prediction:
    """Stop a job; one that has ended stays as it is."""
    job = await call.front.job(prediction_id, call.tenant)
    return await prediction(call, await call.front.queue.cancel(job.id) or job)


async def _created(call: Call, model: str | None) -> Response:
    wait_s = preferred_wait_s(call.request.headers.getlist("prefer"))
    with call.front.waits.holding(call.client, int(wait_s is not None)):
        async with entry(call) as entering:
            asked = await entering.json(PredictionRequest, lambda body: named(body, model))
            job = await entering.admit(translated(asked, model), names_of(asked))
        with render.naming_the_job(job):
            most = min(wait_s or 0.0, call.front.settings.limits.max_wait_s)
            job = await until_ended(call.front, job, most, call.request)
            shown = await prediction(call, job)
    if not job.state.ended:  # its client takes anything else for the end
        shown.status = "starting"
    return Response(shown.model_dump_json(), 201, headers=render.names_of(job), media_type=JSON)


DOOR = Door(router, bodies=(PredictionRequest, Prediction, PredictionPage))

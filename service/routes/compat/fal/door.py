"""Routes of fal's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from starlette.convertors import StringConvertor, register_url_convertor

from service.errors.problems import Conflict, Gone, Malformed
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.responses.render import names_of as names_of_job
from service.responses.render import naming_the_job, without_output
from service.routes.compat import documents
from service.routes.compat.call import Call, call_by, documented
from service.routes.compat.door import Door
from service.routes.compat.entry import entry
from service.routes.compat.fal.bodies import (
    FalCanceled,
    FalError,
    FalRequest,
    FalResult,
    FalStatus,
    FalSubmitted,
    error_form,
)
from service.routes.compat.fal.translation import model_of, names_of, translated
from service.routes.compat.fal.views import result, status, submitted
from service.routes.compat.outcome import ended

PREFIX = "/fal"


class AppConvertor(StringConvertor):
    """Name of an app in a path: segments of which none is `requests`, behind which its own are."""

    regex = "(?!requests/)[^/]+(?:/(?!requests(?:/|$))[^/]+)*"


register_url_convertor("fal_app", AppConvertor())
ByKey = Annotated[Call, Depends(call_by("key", "bearer"))]
App = Annotated[str, Path(description="A model's `name`; what stands before it changes nothing.")]
Id = Annotated[str, Path(description="A request's `request_id`, which is its job's id.")]
ASKED = {JSON: documents.schema_of(FalRequest)}
ERRORS = documents.errors(FalError, 400, 401, 404, 410, 422, 500, 503, 504)

router = APIRouter(prefix=PREFIX, tags=["fal"], dependencies=documented("key", "bearer"))


@router.post(
    "/run/{app:fal_app}",
    **documents.operation(ASKED, {JSON: documents.schema_of(FalResult)}, FalError),
)
async def fal_run(app: App, call: ByKey) -> Response:
    """Make images or videos, and wait for them."""
    with call.waiting():
        job = await _admitted(call, app)
        with naming_the_job(job):
            body = await result(call, await ended(call, job))
    content = body.model_dump_json(exclude_none=True)
    return Response(content, headers=names_of_job(job), media_type=JSON)


@router.post(
    "/queue/{app:fal_app}",
    **documents.operation(ASKED, {JSON: documents.schema_of(FalSubmitted)}, FalError),
)
async def fal_submit(app: App, call: ByKey) -> Response:
    """Ask for images or videos, to come back for."""
    job = await _admitted(call, app)
    content = submitted(call, app, job).model_dump_json()
    return Response(content, headers=names_of_job(job), media_type=JSON)


@router.get("/queue/{app:fal_app}/requests/{request_id}/status", responses=ERRORS)
async def fal_status(
    app: App,
    request_id: Id,
    call: ByKey,
    logs: Annotated[bool, Query(description="Whether to show the progress.")] = False,
) -> FalStatus:
    """Return how far a request is."""
    job = await call.front.job(request_id, call.tenant)
    return await status(call, app, job, with_logs=logs)


@router.get(
    "/queue/{app:fal_app}/requests/{request_id}",
    responses=ERRORS,
    response_model_exclude_none=True,
)
async def fal_result(app: App, request_id: Id, call: ByKey) -> FalResult:
    """Return the result of a request."""
    job = await call.front.job(request_id, call.tenant)
    if not job.state.ended:
        raise Malformed("the request is still in progress; ask for its status", code="in_progress")
    if not job.state.is_done:
        raise _lasting(job)
    return await result(call, job)


def _lasting(job: Job) -> Exception:
    """Return why there is no result: never by a 409, which its client asks again ten times."""
    problem = without_output(job)
    if isinstance(problem, Conflict):
        return Gone(problem.detail, code=problem.code, headers=problem.headers)
    return problem


@router.put("/queue/{app:fal_app}/requests/{request_id}/cancel", status_code=202, responses=ERRORS)
async def fal_cancel(app: App, request_id: Id, call: ByKey) -> FalCanceled:
    """Stop a request. One that has ended is refused."""
    job = await call.front.job(request_id, call.tenant)
    if job.state.ended:
        raise Malformed("the request has ended already", code="already_completed")
    await call.front.queue.cancel(job.id)
    return FalCanceled(status="CANCELLATION_REQUESTED")


async def _admitted(call: Call, app: str) -> Job:
    async with entry(call) as entering:
        asked = await entering.json(FalRequest, lambda _: model_of(app))
        priority = call.request.headers.get("x-fal-queue-priority")
        return await entering.admit(translated(asked, app, priority), names_of(asked))


DOOR = Door(
    router,
    bodies=(FalRequest, FalSubmitted, FalResult, FalError),
    error_forms={PREFIX: error_form},
)

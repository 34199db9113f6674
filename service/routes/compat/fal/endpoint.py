"""Routes of fal's API, and its responses: submitted, status, and result."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Response
from starlette.convertors import StringConvertor, register_url_convertor

from service.errors.problems import Conflict, Gone, Malformed
from service.http.negotiation import JSON
from service.jobs.model.job import Job, JobState, Output
from service.responses.render import job_headers as names_of_job
from service.responses.render import problem_without_output
from service.responses.warning_header import warning_header
from service.routes.compat import addresses, documents
from service.routes.compat.call import Call, call_by, documented
from service.routes.compat.endpoint import CompatibleEndpoint, code_of
from service.routes.compat.fal.bodies import (
    FalCanceled,
    FalError,
    FalFile,
    FalRequest,
    FalResult,
    FalStatus,
    FalSubmitted,
    error_form,
    field_names,
    to_generate_fields,
)
from service.routes.compat.hosted_fields import with_size
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.outcome import json_once_ended, wait_for_success


def submitted(call: Call, app: str, job: Job) -> FalSubmitted:
    """Build fal's response about an accepted request."""
    url = addresses.absolute_url(call, f"/fal/queue/{quote(app)}/requests/{job.id}")
    return FalSubmitted(
        request_id=job.id,
        response_url=url,
        status_url=f"{url}/status",
        cancel_url=f"{url}/cancel",
    )


async def status(call: Call, app: str, job: Job, *, with_logs: bool) -> FalStatus:
    """Build fal's status of a job."""
    urls = submitted(call, app, job).model_dump()
    if job.state is JobState.QUEUED:
        position, _ = await call.front.costs.position_and_end(job)
        return FalStatus(**urls, status="IN_QUEUE", queue_position=position or 0)
    logs = [{"message": f"step {job.step} of {job.steps}"}] if with_logs else None
    if not job.state.ended:
        return FalStatus(**urls, status="IN_PROGRESS", logs=logs)
    metrics = {"inference_time": job.usage.device_seconds}
    completed = FalStatus(**urls, status="COMPLETED", logs=logs, metrics=metrics)
    if not job.state.is_done:
        problem = problem_without_output(job)
        completed.error, completed.error_type = problem.detail, code_of(problem)
    return completed


async def result(call: Call, job: Job) -> FalResult:
    """Build fal's result of a successful job."""
    urls = await addresses.output_urls(call, job)
    files = [_file(output, url) for output, url in zip(job.outputs, urls, strict=True)]
    are_videos = job.outputs[0].content_type.startswith("video/")
    return FalResult(
        images=None if are_videos else files,
        video=files[0] if are_videos else None,
        videos=files if are_videos else None,
        seed=job.outputs[0].seed,
        prompt=job.request["prompt"],
        timings={"inference": job.usage.device_seconds},
        has_nsfw_concepts=[False] * len(files),
    )


def _file(output: Output, url: str) -> FalFile:
    _, _, kind = output.content_type.partition("/")
    return FalFile(
        url=url,
        content_type=output.content_type,
        file_name=f"{output.index}.{kind}",
        file_size=output.bytes,
        width=output.width,
        height=output.height,
    )


PREFIX = "/fal"


class AppConvertor(StringConvertor):
    """Path parameter of a fal app's name: all segments up to `requests`."""

    regex = "(?!requests/)[^/]+(?:/(?!requests(?:/|$))[^/]+)*"


register_url_convertor("fal_app", AppConvertor())
ByKey = Annotated[Call, Depends(call_by("key", "bearer"))]
App = Annotated[str, Path(description="A model's `name`; a prefix is ignored.")]
Id = Annotated[str, Path(description="A request's `request_id`, which is its job's id.")]
REQUEST_CONTENT = {JSON: documents.schema_of(FalRequest)}
ERRORS = documents.errors(FalError, 400, 401, 404, 410, 422, 500, 503, 504)

router = APIRouter(prefix=PREFIX, tags=["fal"], dependencies=documented("key", "bearer"))


@router.post(
    "/run/{app:fal_app}",
    **documents.operation(REQUEST_CONTENT, {JSON: documents.schema_of(FalResult)}, FalError),
)
async def fal_run(app: App, call: ByKey) -> Response:
    """Generate images or videos for fal's client, and wait for them."""
    with call.waiting() as waiting:
        job = await _admit(call, app)

        async def build() -> Response:
            view = await result(call, await wait_for_success(call, job))
            content = view.model_dump_json(exclude_none=True)
            return Response(content, headers=names_of_job(job), media_type=JSON)

        return await json_once_ended(call, job, waiting, build)


@router.post(
    "/queue/{app:fal_app}",
    **documents.operation(REQUEST_CONTENT, {JSON: documents.schema_of(FalSubmitted)}, FalError),
)
async def fal_submit(app: App, call: ByKey) -> Response:
    """Queue a fal request for images or videos, whose result is fetched later."""
    job = await _admit(call, app)
    content = submitted(call, app, job).model_dump_json()
    return Response(content, headers=names_of_job(job), media_type=JSON)


@router.get("/queue/{app:fal_app}/requests/{request_id}/status", responses=ERRORS)
async def fal_status(
    app: App,
    request_id: Id,
    call: ByKey,
    response: Response,
    logs: Annotated[bool, Query(description="Whether to show the progress.")] = False,
) -> FalStatus:
    """Return the progress of a fal request."""
    job = await call.front.job(request_id, call.tenant)
    response.headers.update(warning_header(job.warnings))
    return await status(call, app, job, with_logs=logs)


@router.get(
    "/queue/{app:fal_app}/requests/{request_id}",
    responses=ERRORS,
    response_model_exclude_none=True,
)
async def fal_result(app: App, request_id: Id, call: ByKey, response: Response) -> FalResult:
    """Return the result of a fal request."""
    job = await call.front.job(request_id, call.tenant)
    response.headers.update(warning_header(job.warnings))
    if not job.state.ended:
        raise Malformed("the request is still in progress; poll its status", code="in_progress")
    if not job.state.is_done:
        raise _final_problem(job)
    return await result(call, job)


def _final_problem(job: Job) -> Exception:
    """Return the problem of a job without a result, for fal's client.

    Its status is never 409, which fal's client retries ten times.
    """
    problem = problem_without_output(job)
    if isinstance(problem, Conflict):
        return Gone(problem.detail, code=problem.code, headers=problem.headers)
    return problem


@router.put("/queue/{app:fal_app}/requests/{request_id}/cancel", status_code=202, responses=ERRORS)
async def fal_cancel(app: App, request_id: Id, call: ByKey) -> FalCanceled:
    """Cancel a fal request; a request that has ended is rejected."""
    job = await call.front.job(request_id, call.tenant)
    if job.state.ended:
        raise Malformed("the request has ended already", code="already_completed")
    await call.front.queue.cancel(job.id)
    return FalCanceled(status="CANCELLATION_REQUESTED")


async def _admit(call: Call, app: str) -> Job:
    async with receive_request(call) as incoming:
        model = await call.front.models.find(app)
        body = await incoming.json(FalRequest, lambda _: model)
        priority = call.request.headers.get("x-fal-queue-priority")
        names = field_names(body)
        fields = await with_size(call, to_generate_fields(body, model, priority), names)
        return await incoming.admit(fields, names)


ENDPOINT = CompatibleEndpoint(
    router,
    bodies=(FalRequest, FalSubmitted, FalResult, FalError),
    error_forms={PREFIX: error_form},
)

"""Routes of OpenAI's video API, which other open engines and LiteLLM share. Lists filter jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from models.spec.request_images import image_values
from service.errors.problems import Conflict, FieldError, Invalid, NotFound, Unservable
from service.front_end.front_end import FrontEnd
from service.http.headers import is_head
from service.http.multipart import MEDIA_TYPE as FORM
from service.http.negotiation import JSON
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import Job
from service.jobs.storage.object_store import sibling_key
from service.responses.preview import preview_answer
from service.responses.render import job_headers as headers_of
from service.responses.render import output_answer, output_head, problem_without_output
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.forms import in_base64
from service.routes.compat.incoming_request import IncomingRequest, receive_request
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.field_values import naming_sizes
from service.routes.compat.openai.video_answers import (
    DeletedVideo,
    VideoPage,
    VideoView,
    is_video,
    page_of,
    to_video_view,
)
from service.routes.compat.openai.video_requests import (
    RemixRequest,
    VideoForm,
    VideoRequest,
    VideoSettings,
    field_names,
    image_of,
    naming_frames,
    remix_fields,
    to_generate_fields,
)
from service.routes.documented_responses import Documents

Order = Literal["asc", "desc"]
PAGE = 100
"""Number of jobs read at a time."""
MAX_JOBS = 10_000
"""Maximum number of jobs that one request scans."""


async def videos(
    front: FrontEnd, tenant: str, limit: int, after: str | None, order: Order
) -> tuple[list[Job], bool]:
    """Return a page of videos by creation time, and whether more follow.

    Raises: NotFound: no job `after`. Unservable: the tenant has too many jobs to scan.
    """
    newest = _newest(front, tenant, after if order == "desc" else None)
    if order == "desc":
        jobs = [job async for job in _first(newest, limit + 1)]
    else:
        jobs = _jobs_after([job async for job in newest][::-1], after)
    return jobs[:limit], len(jobs) > limit


async def _newest(front: FrontEnd, tenant: str, after: str | None) -> AsyncIterator[Job]:
    scanned = 0
    while True:
        try:
            page = await front.queue.list(tenant=tenant, limit=PAGE, after=after)
        except UnknownCursor:
            raise _no_such(after) from None
        for job in page:
            if is_video(job):
                yield job
        scanned += len(page)
        after = page.next
        if after is None:
            return
        if scanned >= MAX_JOBS:
            raise Unservable(
                f"the list scans {MAX_JOBS} jobs at most; delete some, or list /v1/jobs by model"
            )


async def _first(jobs: AsyncIterator[Job], count: int) -> AsyncIterator[Job]:
    async for job in jobs:
        yield job
        count -= 1
        if not count:
            return


def _jobs_after(jobs: list[Job], after: str | None) -> list[Job]:
    """Return the jobs after the one with this id. Raises: NotFound."""
    if after is None:
        return jobs
    ids = [job.id for job in jobs]
    if after not in ids:
        raise _no_such(after)
    return jobs[ids.index(after) + 1 :]


def _no_such(after: str | None) -> NotFound:
    message = f"there is no video {str(after)[:80]!r}"
    return NotFound(message, errors=[FieldError("after", "there is no such video")])


PREFIX = "/v1/videos"
MAX_PAGE = 100
POLL_AFTER = "openai-poll-after-ms"
POLL_MS = (250, 1000, 5000)
"""Minimum, default and maximum time until a client polls again. OpenAI's SDKs read it once, so that
it must suit the whole wait."""
POLLS = 10
"""Number of polls of a video whose end is predicted."""

router = APIRouter(prefix=PREFIX, tags=["openai videos"], dependencies=documented("bearer"))

VideoId = Annotated[str, Path(description="A video's `id`.")]
READING = (401, 404, 429, 503)


def _responses(kind: type[Any], *statuses: int) -> Documents:
    return {
        "response_class": Response,
        "responses": {
            200: {
                "description": "The requested output.",
                "content": {JSON: documents.schema_of(kind)},
            },
            **documents.errors(OpenAIError, *statuses),
        },
    }


CREATE = documents.operation(
    {JSON: documents.schema_of(VideoRequest), FORM: documents.schema_of(VideoForm)},
    {JSON: documents.schema_of(VideoView)},
    OpenAIError,
    fails=ADMITTING,
)
REMIX = documents.operation(
    {JSON: documents.schema_of(RemixRequest)},
    {JSON: documents.schema_of(VideoView)},
    OpenAIError,
    fails=ADMITTING,
)
CONTENT: Documents = {
    "response_class": Response,
    "responses": {
        200: {"description": "The file.", "content": documents.FILES},
        206: {"description": "The requested byte range.", "content": documents.FILES},
        304: {"description": "The client's copy is current."},
        307: {"description": "Redirect to the object store."},
        **documents.errors(OpenAIError, 400, 401, 404, 409, 410, 416, 429, 503, 504),
    },
}


@router.post("", **CREATE)
async def create_video(call: ByBearer) -> Response:
    """Create a video, as OpenAI's `videos.create`.

    Fields of `POST /v1/generate` may be added: `num_frames`, `fps`, `seed`, `negative_prompt` and
    others; in a form, lists and objects are JSON.
    """
    async with receive_request(call) as incoming:
        if call.request.headers.get("content-type", "").lower().startswith(FORM):
            body, image = await _form(incoming)
        else:
            body = video_request = await incoming.json(VideoRequest)
            image = image_of(video_request.input_reference)
        job = await admit_video(incoming, body, image)
    return await _video(call, job)


async def _form(incoming: IncomingRequest) -> tuple[VideoSettings, str | None]:
    body, files = await incoming.form(VideoForm, ["input_reference"])
    references = files.get("input_reference", [])
    if len(references) > 1:
        raise Invalid([FieldError("input_reference", f"send one, not {len(references)}")])
    return body, in_base64(references[0]) if references else image_of(body.input_reference)


async def admit_video(
    incoming: IncomingRequest, body: VideoSettings, image: str | None = None
) -> Job:
    """Admit a video request, optionally with a first frame; return its job. Raises: Problem."""
    front = incoming.call.front
    spec = (await front.models.get(body.model)).spec
    fields = to_generate_fields(body, spec, image)
    limits = front.settings.limits
    with naming_sizes(spec, limits, body.size), naming_frames(body, fields):
        return await incoming.admit(fields, field_names(body))


async def _video(call: Call, job: Job) -> Response:
    """Build OpenAI's response about a video's job, with a polling interval."""
    headers = headers_of(job)
    if not job.state.ended:
        _, eta_s = await call.front.costs.position_and_end(job)
        headers[POLL_AFTER] = str(_poll_ms(eta_s))
    return _json(to_video_view(job, call.front.settings.queue.retention_s), headers)


def _poll_ms(eta_s: float | None) -> int:
    minimum, default, maximum = POLL_MS
    return default if eta_s is None else round(min(maximum, max(minimum, 1000 * eta_s / POLLS)))


def _json(view: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(view.model_dump_json(), headers=headers, media_type=JSON)


@router.get("", **_responses(VideoPage, 400, *READING))
async def list_videos(
    call: ByBearer,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Maximum number of videos of the page.")
    ] = 20,
    after: Annotated[
        str | None, Query(description="Cursor: `last_id` of the previous page.")
    ] = None,
    order: Annotated[
        Order, Query(description="Order by creation time: newest or oldest first.")
    ] = "desc",
) -> Response:
    """Return a page of the tenant's videos, as OpenAI's `videos.list`."""
    jobs, has_more = await videos(call.front, call.tenant, limit, after, order)
    return _json(page_of(jobs, call.front.settings.queue.retention_s, has_more=has_more))


@router.get("/{video_id}", **_responses(VideoView, *READING))
async def get_video(video_id: VideoId, call: ByBearer) -> Response:
    """Return one video; the header `openai-poll-after-ms` contains a polling interval."""
    return await _video(call, await _job(call, video_id))


async def _job(call: Call, video_id: str) -> Job:
    """Return the job of a tenant's video. Raises: NotFound."""
    job = await call.front.job(video_id, call.tenant)
    if not is_video(job):
        raise NotFound(f"the job {job.id!r} generates no video; request /v1/jobs/{job.id}")
    return job


@router.delete("/{video_id}", **_responses(DeletedVideo, *READING))
async def delete_video(video_id: VideoId, call: ByBearer) -> Response:
    """Delete a video; its job is canceled first if it has not ended."""
    job = await _job(call, video_id)
    await call.front.delete(job)
    return _json(DeletedVideo(id=job.id))


@router.post("/{video_id}/remix", **REMIX)
async def remix_video(video_id: VideoId, call: ByBearer) -> Response:
    """Create the same video with another prompt, keeping its settings, image and seed."""
    async with receive_request(call) as incoming:
        body = await incoming.json(RemixRequest)
        job = await _job(call, video_id)
        images = {
            path: in_base64(await call.front.store.get(key))
            for path, key in image_values(job.request).items()
        }
        remix_job = await incoming.admit(remix_fields(job.request, job.id, body.prompt, images))
    return await _video(call, remix_job)


@router.get("/{video_id}/content", **CONTENT)
async def get_video_content(
    video_id: VideoId,
    request: Request,
    call: ByBearer,
    variant: Annotated[
        Literal["video", "thumbnail", "spritesheet"], Query(description="Which file to download.")
    ] = "video",
) -> Response:
    """Download a video, in full or as a byte range, or a small WebP of it.

    `thumbnail` is its first frame, `spritesheet` a grid of up to 16 frames, row by row.
    """
    job = await _job(call, video_id)
    if not job.state.ended:
        message = "the video is not finished yet; poll its status until it is completed"
        raise Conflict(message, code="video_not_ready")
    if not job.state.is_done:
        raise problem_without_output(job)
    if variant != "video":
        key = _variant_key(job, variant)
        return await preview_answer(call.front, key, request.headers, call.client)
    if is_head(request):
        return await output_head(call.front, job, 0, request.headers)
    return await output_answer(call.front, job, 0, request.headers, call.client)


def _variant_key(job: Job, variant: str) -> str:
    """Return the store key of a video's thumbnail or sprite sheet. Raises: NotFound."""
    first = job.outputs[0]
    if first.num_frames is None:
        message = f"frames in {first.content_type} have no {variant}; they are at "
        raise NotFound(message + f"/v1/jobs/{job.id}")
    return sibling_key(first.key, variant)


ENDPOINT = CompatibleEndpoint(
    router,
    bodies=(VideoRequest, VideoForm, RemixRequest, VideoView, VideoPage, DeletedVideo),
    error_forms={PREFIX: openai_error},
)

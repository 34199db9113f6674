"""Videos in the shape of OpenAI's API, which other open engines and LiteLLM share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from models.spec.request_images import image_values
from service.errors.problems import Conflict, FieldError, Invalid, NotFound
from service.http.head import is_head
from service.http.multipart import MEDIA_TYPE as FORM
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.jobs.storage.object_store import beside_key
from service.responses.preview import preview_answer
from service.responses.render import names_of as headers_of
from service.responses.render import output_answer, output_head, without_output
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.entry import Entry, entry
from service.routes.compat.forms import in_base64
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.sizes import naming_sizes
from service.routes.compat.openai.video_answers import (
    DeletedVideo,
    VideoPage,
    VideoView,
    is_video,
    page_of,
    shown,
)
from service.routes.compat.openai.video_list import Order, videos
from service.routes.compat.openai.video_requests import (
    RemixRequest,
    VideoForm,
    VideoRequest,
    VideoSettings,
    image_of,
    names_of,
    naming_frames,
    remixed,
    translated,
)

PREFIX = "/v1/videos"
MAX_PAGE = 100
POLL_AFTER = "openai-poll-after-ms"
POLL_MS = (250, 1000, 5000)
"""Time until a client should ask again: at least, where nothing is known, and at most. The SDKs
read it once, so that it must do for the whole wait."""
POLLS = 10
"""Polls of a video whose end is known."""

router = APIRouter(prefix=PREFIX, tags=["openai videos"], dependencies=documented("bearer"))

VideoId = Annotated[str, Path(description="A video's `id`.")]
READING = (401, 404, 429, 503)


def _answered(kind: type[Any], *statuses: int) -> documents.Documents:
    return {
        "response_class": Response,
        "responses": {
            200: {
                "description": "What was asked for.",
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
CONTENT: documents.Documents = {
    "response_class": Response,
    "responses": {
        200: {"description": "The file.", "content": documents.FILES},
        206: {"description": "The part of it that was asked for.", "content": documents.FILES},
        304: {"description": "The client holds it already."},
        307: {"description": "The object store has it."},
        **documents.errors(OpenAIError, 400, 401, 404, 409, 410, 416, 429, 503, 504),
    },
}


@router.post("", **CREATE)
async def create_video(call: ByBearer) -> Response:
    """Ask for a video, by OpenAI's `videos.create`.

    Fields of `POST /v1/generate` may stand beside OpenAI's: `num_frames`, `fps`, `seed`,
    `negative_prompt` and others; in a form lists and objects as JSON.
    """
    async with entry(call) as entering:
        if call.request.headers.get("content-type", "").lower().startswith(FORM):
            asked, image = await _form(entering)
        else:
            asked = sent = await entering.json(VideoRequest)
            image = image_of(sent.input_reference)
        job = await admitted_video(entering, asked, image)
    return await _video(call, job)


async def _form(entering: Entry) -> tuple[VideoSettings, str | None]:
    asked, sent = await entering.form(VideoForm, ["input_reference"])
    given = sent.get("input_reference", [])
    if len(given) > 1:
        raise Invalid([FieldError("input_reference", f"send one, not {len(given)}")])
    return asked, in_base64(given[0]) if given else image_of(asked.input_reference)


async def admitted_video(entering: Entry, asked: VideoSettings, image: str | None = None) -> Job:
    """Return the job of a request for a video, which begins with an image if there is one.

    Raises: Problem.
    """
    front = entering.call.front
    spec = (await front.models.get(asked.model)).spec
    fields = translated(asked, spec, image)
    limits = front.settings.limits
    with naming_sizes(spec, limits, asked.size), naming_frames(asked, fields):
        return await entering.admit(fields, names_of(asked))


async def _video(call: Call, job: Job) -> Response:
    """Answer with a job as it is, and when to ask again."""
    headers = headers_of(job)
    if not job.state.ended:
        _, eta_s = await call.front.costs.place(job)
        headers[POLL_AFTER] = str(_poll_ms(eta_s))
    return _json(shown(job, call.front.settings.queue.retention_s), headers)


def _poll_ms(eta_s: float | None) -> int:
    least, unknown, most = POLL_MS
    return unknown if eta_s is None else round(min(most, max(least, 1000 * eta_s / POLLS)))


def _json(view: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(view.model_dump_json(), headers=headers, media_type=JSON)


@router.get("", **_answered(VideoPage, 400, *READING))
async def list_videos(
    call: ByBearer,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Maximum number of videos of the page.")
    ] = 20,
    after: Annotated[
        str | None, Query(description="Where to go on: the `last_id` of the page before.")
    ] = None,
    order: Annotated[
        Order, Query(description="By the time of the request: newest or oldest first.")
    ] = "desc",
) -> Response:
    """A page of the tenant's videos."""
    found, has_more = await videos(call.front, call.tenant, limit, after, order)
    return _json(page_of(found, call.front.settings.queue.retention_s, has_more=has_more))


@router.get("/{video_id}", **_answered(VideoView, *READING))
async def get_video(video_id: VideoId, call: ByBearer) -> Response:
    """One video; `openai-poll-after-ms` says when to ask for it again."""
    return await _video(call, await _job(call, video_id))


async def _job(call: Call, video_id: str) -> Job:
    """Return a video's job. Raises: NotFound."""
    job = await call.front.job(video_id, call.tenant)
    if not is_video(job):
        raise NotFound(f"the job {job.id!r} makes no video; ask for /v1/jobs/{job.id}")
    return job


@router.delete("/{video_id}", **_answered(DeletedVideo, *READING))
async def delete_video(video_id: VideoId, call: ByBearer) -> Response:
    """Delete a video; one that has not ended is canceled first."""
    job = await _job(call, video_id)
    await call.front.delete(job)
    return _json(DeletedVideo(id=job.id))


@router.post("/{video_id}/remix", **REMIX)
async def remix_video(video_id: VideoId, call: ByBearer) -> Response:
    """Ask for the same video by another prompt: with its settings, its image and its seed."""
    async with entry(call) as entering:
        asked = await entering.json(RemixRequest)
        job = await _job(call, video_id)
        images = {
            path: in_base64(await call.front.store.get(key))
            for path, key in image_values(job.request).items()
        }
        new = await entering.admit(remixed(job.request, job.id, asked.prompt, images))
    return await _video(call, new)


@router.get("/{video_id}/content", **CONTENT)
async def get_video_content(
    video_id: VideoId,
    request: Request,
    call: ByBearer,
    variant: Annotated[
        Literal["video", "thumbnail", "spritesheet"], Query(description="What of it.")
    ] = "video",
) -> Response:
    """The bytes of a video, whole or in part, or a small WebP of it.

    `thumbnail` is its first frame, `spritesheet` a grid of up to 16 frames, row by row.
    """
    job = await _job(call, video_id)
    if not job.state.ended:
        said = "the video is not done yet; ask for it until its status is completed"
        raise Conflict(said, code="video_not_ready")
    if not job.state.is_done:
        raise without_output(job)
    if variant != "video":
        key = _key_beside(job, variant)
        return await preview_answer(call.front, key, request.headers, call.client)
    if is_head(request):
        return await output_head(call.front, job, 0, request.headers)
    return await output_answer(call.front, job, 0, request.headers, call.client)


def _key_beside(job: Job, variant: str) -> str:
    """Return the key of a small image of a video. Raises: NotFound: frames as PNG have none."""
    first = job.outputs[0]
    if first.num_frames is None:
        said = f"there is no {variant} of frames as {first.content_type}; they are at "
        raise NotFound(said + f"/v1/jobs/{job.id}")
    return beside_key(first.key, variant)


DOOR = Door(
    router,
    bodies=(VideoRequest, VideoForm, RemixRequest, VideoView, VideoPage, DeletedVideo),
    error_forms={PREFIX: openai_error},
)

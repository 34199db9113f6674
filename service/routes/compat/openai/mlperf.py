"""MLPerf Endpoints' videos: one request, answered when the video is done.

Source: MLPerf Endpoints, src/inference_endpoint/videogen/types.py, adapter.py.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict

from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import HeldResponse
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.responses.links import links_of
from service.responses.render import names_of as headers_of
from service.responses.render import naming_the_job
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.entry import entry
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.video_requests import VideoSettings
from service.routes.compat.openai.videos import admitted_video
from service.routes.compat.outcome import ended, files
from service.schemas.examples import shown
from service.schemas.response import View

PATH = "/v1/videos/generations"

router = APIRouter(tags=["mlperf"], dependencies=documented("bearer"))


class MlperfVideoRequest(VideoSettings):
    """Request for a video by MLPerf Endpoints' harness."""

    model_config = ConfigDict(json_schema_extra=shown(examples.MLPERF_REQUEST))

    latent_path: str | None = None
    """Refused: initial noise is drawn from the seed."""
    output_format: Literal["auto", "mp4", "avi"] | None = None
    """Format of the file: `mp4`; `avi` is refused."""
    response_format: Literal["video_bytes", "video_path"] | None = None
    """Form of the answer: the video in base64, or a link to it, which is the default."""


class MlperfVideoView(View):
    """A video as MLPerf Endpoints' harness reads it."""

    model_config = ConfigDict(json_schema_extra=shown(examples.MLPERF_VIDEO))

    video_id: str
    """Id of its job."""
    video_bytes: str | None = None
    """The file in base64, where the request asked for it."""
    video_path: str | None = None
    """A link to it that needs no key, and expires."""


DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(MlperfVideoRequest)},
    {JSON: documents.schema_of(MlperfVideoView)},
    OpenAIError,
    fails=ADMITTING,
)


@router.post(PATH, **DOCUMENTS)
async def generate_video(call: ByBearer) -> Response:
    """Make a video and wait for it, by MLPerf Endpoints' harness."""
    with call.waiting():
        async with entry(call) as entering:
            asked = await entering.json(MlperfVideoRequest)
            if errors := [*_unserved(asked)]:
                raise Invalid(errors)
            job = await admitted_video(entering, asked)
        with naming_the_job(job):
            job = await ended(call, job)
            whole = asked.response_format == "video_bytes"
            return await (_bytes(call, job) if whole else _link(call, job))


def _unserved(asked: MlperfVideoRequest) -> Iterator[FieldError]:
    if asked.latent_path is not None:
        yield FieldError("latent_path", "is not read here; send a seed")
    if asked.output_format == "avi":
        yield FieldError("output_format", "there is mp4")


async def _link(call: Call, job: Job) -> Response:
    (link, *_) = await links_of(call.front, call.request, job)
    view = MlperfVideoView(video_id=job.id, video_path=link)
    return Response(view.model_dump_json(), headers=headers_of(job), media_type=JSON)


async def _bytes(call: Call, job: Job) -> Response:
    hold = call.front.bodies.hold(call.client)
    (data, *_) = await files(call.front, job, hold)
    hold.add(len(data))  # in base64, beside itself
    view = MlperfVideoView(video_id=job.id, video_bytes=base64.b64encode(data).decode())
    content = view.model_dump_json().encode()
    return HeldResponse(content, hold, headers=headers_of(job), media_type=JSON)


DOOR = Door(router, bodies=(MlperfVideoRequest, MlperfVideoView), error_forms={PATH: openai_error})

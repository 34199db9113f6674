"""MLPerf Endpoints' video API: one request, with a response once the video is done.

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
from service.responses.json_content import in_thread_if_large
from service.responses.links import links_of
from service.responses.render import job_headers as headers_of
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.video_requests import VideoSettings
from service.routes.compat.openai.videos import admit_video
from service.routes.compat.outcome import (
    json_once_ended,
    read_output_files,
    wait_for_success,
)
from service.schemas.examples import schema_example
from service.schemas.response import View

PATH = "/v1/videos/generations"

router = APIRouter(tags=["mlperf"], dependencies=documented("bearer"))


class MlperfVideoRequest(VideoSettings):
    """Video request of MLPerf Endpoints' harness."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.MLPERF_REQUEST))

    latent_path: str | None = None
    """Rejected: the seed determines the initial noise."""
    output_format: Literal["auto", "mp4", "avi"] | None = None
    """File format: `mp4`; `avi` is rejected."""
    response_format: Literal["video_bytes", "video_path"] | None = None
    """Base64 of the video (`video_bytes`), or a link to it (default)."""


class MlperfVideoView(View):
    """Video in the format of MLPerf Endpoints' harness."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.MLPERF_VIDEO))

    video_id: str
    """Id of the job."""
    video_bytes: str | None = None
    """The file in base64, if requested."""
    video_path: str | None = None
    """Signed link that needs no key, and expires."""


DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(MlperfVideoRequest)},
    {JSON: documents.schema_of(MlperfVideoView)},
    OpenAIError,
    fails=ADMITTING,
)


@router.post(PATH, **DOCUMENTS)
async def generate_video(call: ByBearer) -> Response:
    """Generate a video and wait for it, for MLPerf Endpoints' harness."""
    with call.waiting() as waiting:
        async with receive_request(call) as incoming:
            body = await incoming.json(MlperfVideoRequest)
            if errors := [*_unserved(body)]:
                raise Invalid(errors)
            job = await admit_video(incoming, body)

        async def build() -> Response:
            ended = await wait_for_success(call, job)
            as_bytes = body.response_format == "video_bytes"
            return await (_bytes(call, ended) if as_bytes else _link(call, ended))

        return await json_once_ended(call, job, waiting, build)


def _unserved(body: MlperfVideoRequest) -> Iterator[FieldError]:
    if body.latent_path is not None:
        yield FieldError("latent_path", "is not supported; send a seed")
    if body.output_format == "avi":
        yield FieldError("output_format", "must be mp4")


async def _link(call: Call, job: Job) -> Response:
    (link, *_) = await links_of(call.front, call.request, job)
    view = MlperfVideoView(video_id=job.id, video_path=link)
    return Response(view.model_dump_json(), headers=headers_of(job), media_type=JSON)


async def _bytes(call: Call, job: Job) -> Response:
    hold = call.front.bodies.hold(call.client)
    (data, *_) = await read_output_files(call.front, job, hold)
    hold.add(len(data))  # for the base64 copy

    def serialize() -> str:
        view = MlperfVideoView(video_id=job.id, video_bytes=base64.b64encode(data).decode())
        return view.model_dump_json()

    content = await in_thread_if_large(serialize, len(data))
    return HeldResponse(content.encode(), hold, headers=headers_of(job), media_type=JSON)


ENDPOINT = CompatibleEndpoint(
    router, bodies=(MlperfVideoRequest, MlperfVideoView), error_forms={PATH: openai_error}
)

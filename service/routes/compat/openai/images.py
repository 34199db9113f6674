"""Routes of OpenAI's image API: `client.images.generate`, `edit` and `create_variation`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response

from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import HeldResponse
from service.http.multipart import MEDIA_TYPE as FORM
from service.http.negotiation import EVENTS, JSON
from service.jobs.model.job import Job
from service.responses.json_content import in_thread_if_large
from service.responses.links import links_of
from service.responses.render import job_headers as headers_of
from service.responses.render import job_headers_on_errors
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.incoming_request import IncomingRequest, receive_request
from service.routes.compat.light_bodies import without_images
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.examples import EVENT
from service.routes.compat.openai.image_admission import (
    ImageOptions,
    admit_images,
    edit_options,
    in_files,
)
from service.routes.compat.openai.image_answers import ImagesView, to_images_view
from service.routes.compat.openai.image_requests import (
    ImageEditBody,
    ImageEditForm,
    ImageRequest,
    ImageVariationForm,
)
from service.routes.compat.openai.image_stream import (
    EDIT,
    GENERATION,
    ImageEvent,
    Kind,
    stream_response,
)
from service.routes.compat.outcome import (
    json_once_ended,
    read_output_files,
    wait_for_success,
)
from service.routes.documented_responses import Documents

PREFIX = "/v1/images"
STREAM = f"event: {EVENT['type']}\ndata: {json.dumps(EVENT)}\n\n"
IMAGES = ("image", "image[]", "images")
"""Form parts of input images; clients send several images as a list named `image[]`."""

router = APIRouter(prefix=PREFIX, tags=["openai images"], dependencies=documented("bearer"))


def _documents(**kinds: type[ImageRequest]) -> Documents:
    response_content = {
        JSON: documents.schema_of(ImagesView),
        EVENTS: documents.stream_of(documents.schema_of(ImageEvent)["schema"], STREAM),
    }
    media_types = {"json": JSON, "form": FORM}
    request_content = {media_types[name]: documents.schema_of(kind) for name, kind in kinds.items()}
    return documents.operation(request_content, response_content, OpenAIError, fails=ADMITTING)


@router.post("/generations", **_documents(json=ImageRequest))
async def create_image(call: ByBearer) -> Response:
    """Generate images from a prompt, as OpenAI's `images.generate`.

    Fields of `POST /v1/generate` may be added: `negative_prompt`, `num_inference_steps`,
    `guidance_scale`, `seed`, `loras` and others.
    """

    async def read(incoming: IncomingRequest) -> ImageOptions:
        return ImageOptions(await incoming.json(ImageRequest))

    return await _generate(call, read, GENERATION)


@router.post("/edits", **_documents(form=ImageEditForm, json=ImageRequest))
async def edit_image(call: ByBearer) -> Response:
    """Edit an image by a prompt, where its mask is transparent, as OpenAI's `images.edit`.

    Fields of `POST /v1/generate` may be added, in a form with lists and objects as JSON. JSON has
    `images` and `mask`, each image as `{"image_url": …}`.
    """

    async def read(incoming: IncomingRequest) -> ImageOptions:
        if call.request.headers.get("content-type", "").lower().startswith(JSON):
            return await edit_options(call, await incoming.json(ImageEditBody))
        body, files = await incoming.form(ImageEditForm, (*IMAGES, "mask"))
        first, *references = await in_files(call, _images(files))
        masks = await in_files(call, files.get("mask", ()), "mask")
        return ImageOptions(body, {"image": first, **_mask(masks)}, references)

    return await _generate(call, read, EDIT)


@router.post("/variations", **_documents(form=ImageVariationForm))
async def vary_image(call: ByBearer) -> Response:
    """Generate variations of an image, as OpenAI's `images.create_variation`."""

    async def read(incoming: IncomingRequest) -> ImageOptions:
        body, files = await incoming.form(ImageVariationForm, IMAGES)
        return ImageOptions(body, {"image": _only("image", await in_files(call, _images(files)))})

    return await _generate(call, read, EDIT)


def _images(files: Mapping[str, list[bytes]]) -> list[bytes]:
    """Return the input images of a form. Raises: Invalid: there is no image."""
    images = [data for name in IMAGES for data in files.get(name, ())]
    if not images:
        raise Invalid([FieldError("image", "send one as a file")])
    return images


def _mask(masks: Sequence[bytes]) -> dict[str, bytes]:
    """Return the mask of a form as `mask_image`. Raises: Invalid: there are several masks."""
    return {"mask_image": _only("mask", masks)} if masks else {}


def _only(name: str, files: Sequence[bytes]) -> bytes:
    """Return the only file of a form part. Raises: Invalid: there are several files."""
    if len(files) > 1:
        raise Invalid([FieldError(name, f"send one, not {len(files)}")])
    return files[0]


async def _generate(call: Call, read: Any, kind: Kind) -> Response:
    """Admit an OpenAI image request and respond with its images. Raises: Problem."""
    with call.waiting() as waiting:
        job, body = await _admit(call, read)
        if body.stream:
            with job_headers_on_errors(job):
                return stream_response(call, job, kind, body.partial_images or 0, waiting)

        async def build() -> Response:
            return await _answer(call, await wait_for_success(call, job), body)

        return await json_once_ended(call, job, waiting, build)


async def _admit(call: Call, read: Any) -> tuple[Job, ImageRequest]:
    """Admit a request; return its job, and its body without images. Raises: Problem."""
    async with receive_request(call) as incoming:
        parsed = await read(incoming)
        return await admit_images(incoming, parsed), without_images(parsed.body)


async def _answer(call: Call, job: Job, body: ImageRequest) -> Response:
    hold = call.front.bodies.hold(call.client)
    if body.response_format == "url":
        links = await links_of(call.front, call.request, job)
        content = to_images_view(job, links=links).model_dump_json()
        return Response(content, headers=headers_of(job), media_type=JSON)
    data = await read_output_files(call.front, job, hold)
    hold.add(size := sum(map(len, data)))  # for the base64 copies
    content = await in_thread_if_large(
        lambda: to_images_view(job, files=data).model_dump_json(), size
    )
    return HeldResponse(content.encode(), hold, headers=headers_of(job), media_type=JSON)


ENDPOINT = CompatibleEndpoint(
    router,
    bodies=(ImageRequest, ImageEditForm, ImageVariationForm, ImagesView, ImageEvent, OpenAIError),
    error_forms={PREFIX: openai_error},
)

"""OpenAI's images: `client.images.generate`, `edit` and `create_variation`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Response

from models.spec.image_files import ImageFileError
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import HeldResponse, Hold
from service.http.multipart import MEDIA_TYPE as FORM
from service.http.negotiation import EVENTS, JSON
from service.jobs.model.job import Job
from service.responses.links import links_of
from service.responses.render import names_of as headers_of
from service.responses.render import naming_the_job
from service.responses.wait import unless_left
from service.routes.compat import documents, forms
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.entry import Entry, entry
from service.routes.compat.openai.errors import ADMITTING, OpenAIError, openai_error
from service.routes.compat.openai.examples import EVENT
from service.routes.compat.openai.further import joined
from service.routes.compat.openai.image_answers import ImagesView, shown
from service.routes.compat.openai.image_requests import (
    ImageEditForm,
    ImageRequest,
    ImageVariationForm,
    names_of,
    translated,
)
from service.routes.compat.openai.image_stream import (
    EDIT,
    GENERATION,
    ImageEvent,
    Kind,
    stream_answer,
)
from service.routes.compat.openai.sizes import naming_sizes, nearest
from service.routes.compat.outcome import ended, files

PREFIX = "/v1/images"
STREAM = f"event: {EVENT['type']}\ndata: {json.dumps(EVENT)}\n\n"
IMAGES = ("image", "image[]")
"""Parts of forms that hold the image; clients send several as a list of the second name."""

router = APIRouter(prefix=PREFIX, tags=["openai images"], dependencies=documented("bearer"))


@dataclass(frozen=True)
class Wanted:
    """A request as it was sent, with its files by our field."""

    asked: ImageRequest
    files: Mapping[str, bytes] = field(default_factory=dict)
    references: Sequence[bytes] = ()
    """Further images, which become `reference_images`."""


def _documents(kind: type[ImageRequest], media_type: str) -> documents.Documents:
    answered = {
        JSON: documents.schema_of(ImagesView),
        EVENTS: documents.stream_of(documents.schema_of(ImageEvent)["schema"], STREAM),
    }
    asked = {media_type: documents.schema_of(kind)}
    return documents.operation(asked, answered, OpenAIError, fails=ADMITTING)


@router.post("/generations", **_documents(ImageRequest, JSON))
async def create_image(call: ByBearer) -> Response:
    """Make images of a prompt, by OpenAI's `images.generate`.

    Fields of `POST /v1/generate` may stand beside OpenAI's: `negative_prompt`,
    `num_inference_steps`, `guidance_scale`, `seed`, `loras` and others.
    """

    async def read(entering: Entry) -> Wanted:
        return Wanted(await entering.json(ImageRequest))

    return await _made(call, read, GENERATION)


@router.post("/edits", **_documents(ImageEditForm, FORM))
async def edit_image(call: ByBearer) -> Response:
    """Change an image by a prompt, where its mask is transparent; by OpenAI's `images.edit`.

    Fields of `POST /v1/generate` may stand beside OpenAI's; lists and objects as JSON.
    """

    async def read(entering: Entry) -> Wanted:
        asked, sent = await entering.form(ImageEditForm, (*IMAGES, "mask"))
        first, *further = _images(sent)
        return Wanted(asked, {"image": first, **_mask(sent)}, further)

    return await _made(call, read, EDIT)


@router.post("/variations", **_documents(ImageVariationForm, FORM))
async def vary_image(call: ByBearer) -> Response:
    """Make images like another one, by OpenAI's `images.create_variation`."""

    async def read(entering: Entry) -> Wanted:
        asked, sent = await entering.form(ImageVariationForm, IMAGES)
        return Wanted(asked, {"image": _one("image", _images(sent))})

    return await _made(call, read, EDIT)


def _images(sent: Mapping[str, list[bytes]]) -> list[bytes]:
    """Return the images of a form. Raises: Invalid: there is none."""
    images = [data for name in IMAGES for data in sent.get(name, ())]
    if not images:
        raise Invalid([FieldError("image", "send one as a file")])
    return images


def _mask(sent: Mapping[str, list[bytes]]) -> dict[str, bytes]:
    """Return the mask of a form by our field. Raises: Invalid: there are several."""
    masks = sent.get("mask", [])
    return {"mask_image": _one("mask", masks)} if masks else {}


def _one(name: str, files: Sequence[bytes]) -> bytes:
    """Return the only file. Raises: Invalid: there are several."""
    if len(files) > 1:
        raise Invalid([FieldError(name, f"send one, not {len(files)}")])
    return files[0]


def _check_count(wanted: Wanted, spec: ModelSpec) -> None:
    """Raises: Invalid: the model does not see that many images."""
    count, top = len(wanted.references), spec.limits.max_reference_images
    if count > top:
        said = f"has {1 + count} images; the model {spec.name!r} sees {1 + top} at most"
        raise Invalid([FieldError("image", said)])


def _check_mask(fields: Mapping[str, Any], spec: ModelSpec) -> None:
    """Raises: Invalid: the model draws an image where a mask says so, and there is none."""
    if spec.tasks == ("inpainting",) and "image" in fields and "mask_image" not in fields:
        said = f"the model {spec.name!r} does inpainting: send an image that is transparent where"
        raise Invalid([FieldError("mask", f"{said} the image is to be redrawn, as mask")])


async def _made(call: Call, read: Any, kind: Kind) -> Response:
    """Answer with the images of a request. Raises: Problem."""
    with call.waiting() as waiting:
        async with entry(call) as entering:
            wanted = await read(entering)
            job = await _admitted(entering, wanted)
        with naming_the_job(job):
            if wanted.asked.stream:
                return stream_answer(call, job, kind, wanted.asked.partial_images or 0, waiting)
            job = await ended(call, job)
            return await _answer(call, job, wanted.asked)


async def _admitted(entering: Entry, wanted: Wanted) -> Job:
    front, asked = entering.call.front, wanted.asked
    spec = (await front.models.get(asked.model)).spec
    limits = front.settings.limits
    _check_count(wanted, spec)
    fields = translated(asked, spec)
    fields = joined(await _pictures(entering.call, wanted), fields, names_of(asked))
    _check_mask(fields, spec)
    if wanted.files and not spec.scales_sizes and not {"width", "height"} & fields.keys():
        fields |= await _size_of_image(entering.call, spec, wanted.files["image"])
    with naming_sizes(spec, limits, asked.size):
        previews = asked.partial_images or 0
        return await entering.admit(fields, names_of(asked), previews=previews)


async def _pictures(call: Call, wanted: Wanted) -> dict[str, Any]:
    """Return the files in our fields: ours is a mask that is white where OpenAI's is clear."""
    found: dict[str, Any] = {name: forms.in_base64(data) for name, data in wanted.files.items()}
    if wanted.references:
        found["reference_images"] = [forms.in_base64(data) for data in wanted.references]
    if "mask_image" in wanted.files:
        mask = call.front.images.mask(wanted.files["mask_image"], call.client)
        try:
            found["mask_image"] = await unless_left(call.request, mask)
        except ImageFileError as error:
            raise Invalid([FieldError("mask", str(error))]) from error
    return found


async def _size_of_image(call: Call, spec: ModelSpec, image: bytes) -> dict[str, int]:
    """Return the size that a model makes nearest to an image's. Raises: Invalid."""
    checked = call.front.images.check(image, call.client)
    try:
        file = await unless_left(call.request, checked)
    except ImageFileError as error:
        raise Invalid([FieldError("image", str(error))]) from error
    width, height = nearest(spec, call.front.settings.limits, file.width, file.height)
    return {"width": width, "height": height}


async def _answer(call: Call, job: Job, asked: ImageRequest) -> Response:
    hold = call.front.bodies.hold(call.client)
    if asked.response_format == "url":
        return _held(shown(job, links=await links_of(call.front, call.request, job)), job, hold)
    data = await files(call.front, job, hold)
    hold.add(sum(map(len, data)))  # in base64, beside themselves
    return _held(shown(job, files=data), job, hold)


def _held(view: ImagesView, job: Job, hold: Hold) -> Response:
    content = view.model_dump_json().encode()
    return HeldResponse(content, hold, headers=headers_of(job), media_type=JSON)


DOOR = Door(
    router,
    bodies=(ImageRequest, ImageEditForm, ImageVariationForm, ImagesView, ImageEvent, OpenAIError),
    error_forms={PREFIX: openai_error},
)
